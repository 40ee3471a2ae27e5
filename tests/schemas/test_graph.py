"""Choice groups, encodings, and the builder's and op table's own rules."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, strategies as st

from graphs import random_graph
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.graph import LOSSLESS_ROLES, Graph, Param, Type, choice_groups, uses
from thinlm.schemas.ops import INTEGER_INPUTS, OPS, REQUIRED, attrs_of
from thinlm.schemas.verify import checked, verify
from tiny import Dims, tiny_graph


def block(i: int) -> list[tuple[str, ...]]:
    p = f"blk.{i}"
    return [(f"{p}.attn.q", f"{p}.attn.k", f"{p}.attn.v"), (f"{p}.attn.o",), (f"{p}.ffn.gate", f"{p}.ffn.up"), (f"{p}.ffn.down",)]


def test_groups_of_a_tied_decoder() -> None:
    assert choice_groups(tiny_graph(Dims(layers=2))) == (("embed",), *block(0), *block(1))


def test_groups_of_an_untied_decoder() -> None:
    """The embedding is a look-up and shares its input with nothing; nor does the head."""
    assert choice_groups(tiny_graph(Dims(layers=1, tied=False))) == (("embed",), *block(0), ("head",))


def graph_with(*linears: tuple[str, str]) -> Graph:
    """Linears (input value, weight) over %x, all outputs published."""
    b = GraphBuilder("g")
    b.node("embedding", "ids", b.param(Param("embed", (8, 8), "f32", "embed")), name="x")
    for i, (value, weight) in enumerate(linears):
        if weight != "embed":
            b.param(Param(weight, (8, 8), "f32", "q"))
        b.output(f"o{i}", b.node("linear", value, weight, name=f"y{i}"))
    b.output("logits", "y0")
    return checked(b.finish())


@pytest.mark.parametrize(
    ("linears", "groups"),
    [
        ([("x", "a"), ("x", "b")], [("embed",), ("a", "b")]),
        ([("x", "a"), ("y0", "b")], [("embed",), ("a",), ("b",)]),
        # a tied head that reads what other linears read drags the embedding into their group
        ([("x", "a"), ("x", "embed")], [("embed", "a")]),
        ([("x", "embed")], [("embed",)]),
        # groups join over a weight that two inputs share
        ([("x", "a"), ("x", "b"), ("y0", "b"), ("y0", "c"), ("y1", "d")], [("embed",), ("a", "b", "c"), ("d",)]),
    ],
)
def test_groups(linears: list[tuple[str, str]], groups: list[tuple[str, ...]]) -> None:
    assert list(choice_groups(graph_with(*linears))) == groups


def test_only_linears_share_a_format() -> None:
    """Two tables that are looked up by the same ids keep their own."""
    b = GraphBuilder("g")
    first, second = (b.node("embedding", "ids", b.param(Param(name, (8, 8), "f32", "embed"))) for name in ("a", "b"))
    b.output("logits", b.node("add", first, second))
    assert choice_groups(checked(b.finish())) == (("a",), ("b",))


@given(st.integers(0, 10**6))
def test_groups_partition_the_params_that_have_a_choice(seed: int) -> None:
    graph = random_graph(seed)
    grouped = [name for group in choice_groups(graph) for name in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {p.name for p in graph.params if p.role not in LOSSLESS_ROLES}


def test_encodings_are_recorded() -> None:
    graph = tiny_graph(Dims())
    changed = graph.with_encodings({"embed": "int8-sym-g64/1"})
    assert changed.param_table()["embed"].encoding == "int8-sym-g64/1"
    assert changed.with_encodings({"embed": ""}) == graph
    assert verify(changed) == ()
    with pytest.raises(KeyError, match="no such params: \\['a', 'b'\\]"):
        graph.with_encodings({"b": "f32/1", "a": "f32/1", "embed": "f32/1"})


def test_look_ups() -> None:
    graph = tiny_graph(Dims())
    assert graph.output("logits") == graph.nodes[-1].output
    with pytest.raises(KeyError):
        graph.output("nothing")
    assert [n.op for n in uses(graph, "embed")] == ["embedding", "linear"]
    assert Param("w", (3, 4, 5), "f32", "q").size == 60
    assert str(Type("f32", ("B", "T", 8))) == "f32[B, T, 8]"


def test_graphs_are_immutable_and_hashable() -> None:
    graph = tiny_graph(Dims())
    with pytest.raises(FrozenInstanceError):
        graph.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    assert hash(graph) == hash(replace(graph))


def test_builder() -> None:
    b = GraphBuilder("g", prefix="t")
    w = b.param(Param("w", (2, 2), "f32", "embed"))
    assert b.param(Param("w", (2, 2), "f32", "embed")) == w
    assert b.const("c", (1.0,)) == b.const("c", (1.0,))
    assert [b.node("neg", "x"), b.node("neg", "t0", name="y"), b.node("neg", "y")] == ["t0", "y", "t2"]
    b.node("norm", "x", "", "", eps=0.1, groups=1, kind="l2")
    assert (b.nodes[-1].inputs, b.nodes[-1].attrs) == (("x",), (("eps", 0.1), ("kind", "l2")))
    with pytest.raises(AssertionError, match="declared twice"):
        b.param(Param("w", (2, 3), "f32", "embed"))
    with pytest.raises(AssertionError, match="declared twice"):
        b.const("c", (2.0,))


def test_op_table() -> None:
    for name, op in OPS.items():
        required = [not i.endswith("?") for i in op.inputs]
        assert name == op.name
        assert required == sorted(required, reverse=True), "optional inputs come last"
        assert required[0]
        for attr in op.attrs.values():
            assert attr.default is REQUIRED or type(attr.default) is attr.type
            assert (attr.type is tuple) == bool(attr.items)
    assert {i for op in OPS.values() for i in op.inputs} >= INTEGER_INPUTS


def test_attrs_of_fills_defaults() -> None:
    b = GraphBuilder("g")
    b.node("attention", "q", "k", "v", "positions", scale=2.0, cache=1, window=5)
    assert attrs_of(b.nodes[0]) == {"scale": 2.0, "cache": 1, "window": 5, "softcap": 0.0, "owns": True}
