"""canonicalise is exact: on random graphs, with identities, duplicates and dead nodes planted in them, every output keeps its bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from graphs import random_graph, random_ids, weights_of
from thinlm.passes.simplify import IDENTITIES, simplify
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.graph import Const, Graph, Node, Param
from thinlm.schemas.verify import infer, verify


def littered(graph: Graph, seed: int) -> Graph:
    """The same function with identity nodes behind some values, some nodes doubled, and dead ones."""
    rng, types = np.random.default_rng(seed), infer(graph)[0]
    nodes: list[Node] = []
    rename: dict[str, str] = {}
    for n, node in enumerate(graph.nodes):
        node = replace(node, inputs=tuple(rename.get(i, i) if rng.integers(2) else i for i in node.inputs))
        nodes.append(node)
        shape = types[node.output].shape
        if node.op != "attention" and rng.integers(2):
            nodes.append(replace(node, output=f"twin.{n}"))
            rename[node.output] = f"twin.{n}"
        if types[node.output].dtype == "f32" and rng.integers(2):
            same = ("transpose", (("perm", tuple(range(len(shape)))),))
            op, attrs = [("scale", (("by", 1.0),)), ("reshape", (("shape", shape),)), same][rng.integers(3)]
            nodes.append(Node(op, (rename.get(node.output, node.output),), f"same.{n}", attrs))
            rename[node.output] = f"same.{n}"
    outputs = tuple((name, rename.get(value, value)) for name, value in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_outputs_keep_their_bits(seed: int) -> None:
    graph = random_graph(seed)
    noisy = littered(graph, seed)
    simple = simplify(noisy)
    assert verify(simple) == ()
    assert len(simple.nodes) <= len(graph.nodes)
    assert [name for name, _ in simple.outputs] == [name for name, _ in graph.outputs]
    weights, ids = weights_of(graph), random_ids(2, 5, seed)
    with np.errstate(all="ignore"):  # a square root of a negative number is the same NaN on both sides
        before, after = (evaluate(g, weights, ids) for g in (graph, simple))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@given(st.integers(0, 10**6))
def test_it_is_idempotent_and_ignores_names(seed: int) -> None:
    graph = random_graph(seed)
    simple = simplify(graph)
    assert simplify(simple) == simple
    rename = {n.output: f"renamed.{i}" for i, n in enumerate(graph.nodes)}
    other = replace(
        graph,
        nodes=tuple(replace(n, output=rename[n.output], inputs=tuple(rename.get(i, i) for i in n.inputs)) for n in graph.nodes),
        outputs=tuple((name, rename.get(value, value)) for name, value in graph.outputs),
    )
    assert simplify(other) == simple


def one_node(op: str, attrs: dict, second: str = "") -> Graph:
    """embedding [B, T, 6] -> op -> linear."""
    b = GraphBuilder("one")
    x = b.node("embedding", "ids", b.param(Param("embed", (5, 6), "f32", "embed")))
    y = b.node(op, x, *([second] if second else []), **attrs)
    b.output("logits", b.node("linear", y, b.param(Param("head", (5, 6), "f32", "head"))))
    return b.finish()


@pytest.mark.parametrize(
    ("op", "attrs", "kept"),
    [
        ("scale", {"by": 1.0}, 0),
        ("scale", {"by": 2.0}, 1),
        ("shift", {"by": 0.0}, 0),
        ("shift", {"by": 1.0}, 1),
        ("reshape", {"shape": ("B", "T", 6)}, 0),
        ("transpose", {"perm": (0, 1, 2)}, 0),
        ("slice", {"start": 0, "stop": 6}, 0),
        ("repeat", {"times": 1}, 0),
        ("neg", {}, 1),
    ],
)
def test_identities(op: str, attrs: dict, kept: int) -> None:
    assert len(simplify(one_node(op, attrs)).nodes) == 2 + kept


def test_every_identity_has_a_row() -> None:
    rows = test_identities.pytestmark[0].args[1]  # pyright: ignore[reportFunctionMemberAccess]
    assert set(IDENTITIES) <= {row[0] for row in rows}


def test_what_is_not_needed_goes_and_equal_constants_merge() -> None:
    graph = one_node("neg", {})
    x = graph.nodes[0].output
    rope = lambda freqs, out: Node("rope", ("heads", "positions", freqs), out)  # noqa: E731
    nodes = (
        graph.nodes[0],
        Node("reshape", (x,), "heads", (("shape", ("B", "T", 3, 2)),)),
        rope("a", "one"),
        rope("b", "two"),
        Node("add", ("one", "two"), "sum"),
        Node("embedding", ("ids", "spare"), "dead"),
        *graph.nodes[1:],
    )
    spare = Param("spare", (5, 6), "f32", "embed")
    outputs = (*graph.outputs, ("hidden.0", "sum"))
    simple = simplify(replace(graph, nodes=nodes, params=(*graph.params, spare), consts=(Const("a", (1.0,)), Const("b", (1.0,))), outputs=outputs))
    assert [c.name for c in simple.consts] == ["a"]
    assert "spare" not in simple.param_table()
    assert [n.op for n in simple.nodes].count("rope") == 1
    assert verify(simple) == ()


def test_values_are_numbered_around_names_in_use() -> None:
    b = GraphBuilder("taken")
    x = b.node("embedding", "ids", b.param(Param("v0", (5, 6), "f32", "embed")), name="x")
    b.output("logits", b.node("linear", b.node("neg", x, name="y"), "v0", name="z"))
    simple = simplify(b.finish())
    assert verify(simple) == ()
    assert [n.output for n in simple.nodes] == ["v_0", "v_1", "v_2"]


def test_attention_is_never_merged() -> None:
    b = GraphBuilder("kv")
    x = b.node("reshape", b.node("embedding", "ids", b.param(Param("embed", (5, 4), "f32", "embed"))), shape=("B", "T", 2, 2))
    first = b.node("attention", x, x, x, "positions", scale=1.0, cache=0)
    second = b.node("attention", x, x, x, "positions", scale=1.0, cache=0, owns=False)
    third = b.node("attention", x, x, x, "positions", scale=1.0, cache=0, owns=False)
    total = b.node("add", b.node("add", first, second), third)
    b.output("logits", b.node("reshape", total, shape=("B", "T", 4)))
    assert [n.op for n in simplify(b.finish()).nodes].count("attention") == 3
