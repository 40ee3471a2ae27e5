"""The verifier: broken graphs with the exact texts of their violations; several at once are all reported; anything of the declared Python
types gives violations, never another exception; and every kind of violation in the source has a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from graphs import random_graph
from thinlm.schemas import verify as verify_module
from thinlm.schemas.build import IDS, GraphBuilder
from thinlm.schemas.errors import VerifyError
from thinlm.schemas.graph import Const, Graph, Input, Node, Param, Type
from thinlm.schemas.ops import OPS, Attr
from thinlm.schemas.verify import checked, infer, verify
from violations import op_graph, said_of, templates, untested

NAN, INF = float("nan"), float("inf")

# op, inputs (as graphs.one_op takes them), attributes -> what is said about node %out
NODE_CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("silly", ((4,),), {}, f"unknown op; the table has {', '.join(sorted(OPS))}"),
    ("add", ((4,),), {}, "takes inputs (a, b), got (%h1)"),
    ("neg", ((4,), (4,)), {}, "takes inputs (x), got (%h1, %h3)"),
    ("linear", ("", ("w", 2, 4)), {}, "takes inputs (x, w, bias?), got (_, %p1)"),
    ("linear", ((4,), ("w", 2, 4), ""), {}, "takes inputs (x, w, bias?), got (%h1, %p1, _)"),
    ("neg", (), {}, "takes inputs (x), got ()"),
    ("neg", ((4,),), {"by": 1.0}, "unknown attribute by; it has none"),
    ("scale", ((4,),), {"by": 1.0, "to": 2.0}, "unknown attribute to; it has by"),
    ("scale", ((4,),), {}, "attribute by is missing"),
    ("scale", ((4,),), {"by": 1}, "attribute by must be a finite float, not 1"),
    ("scale", ((4,),), {"by": NAN}, "attribute by must be a finite float, not nan"),
    ("scale", ((4,),), {"by": -INF}, "attribute by must be a finite float, not -inf"),
    ("mean", ((4,),), {"axis": True}, "attribute axis must be int, not True"),
    ("mean", ((4,),), {"axis": -1}, "attribute axis equals its default and must be left out"),
    ("rope", ((2, 4), "positions", ("c", 1.0)), {"interleaved": 1}, "attribute interleaved must be bool, not 1"),
    ("norm", ((4,),), {"eps": 0.1, "kind": 3}, "attribute kind must be str, not 3"),
    ("reshape", ((4,),), {"shape": "BT"}, "attribute shape must be a list of int and str, not 'BT'"),
    ("reshape", ((4,),), {"shape": ("B", "T", 4.0)}, "attribute shape must be a list of int and str, not ('B', 'T', 4.0)"),
    ("transpose", ((4,),), {"perm": (0, True, 2)}, "attribute perm must be a list of int, not (0, True, 2)"),
    # operands
    ("silu", ("positions",), {}, "x must be real, not i32[B, T]"),
    ("embedding", ((4,), ("w", 2, 4)), {}, "ids must be i32, not f32[B, T, 4]"),
    ("linear", ((4,), ("w", 0, 4)), {}, "w f32[0, 4] has no elements"),
    ("linear", ((4,), ("w", 2, 4), ("w",)), {}, "bias f32[] has no elements"),
    ("add", ((4,), ("c",)), {}, "b f64[0] has no elements"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "message"), NODE_CASES)
def test_broken_nodes(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any], message: str) -> None:
    types, broken = infer(op_graph(op, inputs, attrs))
    assert broken == (said_of(op, message),)
    assert "out" not in types


# whole graphs


def base() -> Graph:
    """A small sound graph in which every part exists: %h %n %q %a (owner of slot 0) %s (shares it) %y %z."""
    b = GraphBuilder("base")
    h = b.node("embedding", "ids", b.param(Param("embed", (11, 8), "f32", "embed")), name="h")
    n = b.node("norm", h, b.param(Param("norm", (8,), "f32", "norm")), name="n", eps=1e-5)
    q = b.node("rope", b.node("reshape", n, name="r", shape=("B", "T", 2, 4)), "positions", b.const("freqs", (1.0, 0.5)), name="q")
    a = b.node("attention", q, q, q, "positions", name="a", scale=0.5, cache=0, window=3)
    s = b.node("attention", a, q, q, "positions", name="s", scale=0.5, cache=0, window=3, owns=False)
    y = b.node("reshape", s, name="y", shape=("B", "T", 8))
    b.output("hidden", h)
    b.output("logits", b.node("linear", y, "embed", name="z"))
    return b.finish()


BASE = base()


def node(name: str, **changes: Any) -> Graph:
    """BASE with node `name` changed."""
    return replace(BASE, nodes=tuple(replace(n, **changes) if n.output == name else n for n in BASE.nodes))


def attrs(name: str, **changes: Any) -> Graph:
    """BASE with attributes of node `name` changed, None to drop one."""
    old = dict(next(n for n in BASE.nodes if n.output == name).attrs)
    return node(name, attrs=tuple(sorted((k, v) for k, v in {**old, **changes}.items() if v is not None)))


def param(**changes: Any) -> Graph:
    """BASE with param @norm changed."""
    return replace(BASE, params=(BASE.params[0], replace(BASE.params[1], **changes)))


UNUSED = Param("w", (2,), "f32", "bias")
TWICE = Node("neg", ("h",), "n")
NOT_A_NAME = "must be of letters, digits, '_', '.' and '-'"
GRAPH_CASES: dict[str, tuple[Graph, tuple[str, ...]]] = {
    "graph name": (replace(BASE, name="my model"), (f"name 'my model' {NOT_A_NAME}",)),
    "empty name": (replace(BASE, name=""), (f"name '' {NOT_A_NAME}",)),
    "not ASCII": (replace(BASE, name="é"), (f"name 'é' {NOT_A_NAME}",)),
    "newline": (replace(BASE, name="a\n"), (f"name 'a\\n' {NOT_A_NAME}",)),
    "fact": (replace(BASE, facts=("ok", "a,b")), (f"name 'a,b' {NOT_A_NAME}",)),
    "output name": (replace(BASE, outputs=(*BASE.outputs, ("x y", "n"))), (f"name 'x y' {NOT_A_NAME}",)),
    "defined twice": (replace(BASE, params=(*BASE.params, Param("h", (1,), "f32", "bias"))), ("name 'h' is defined 2 times",)),
    "value twice": (replace(BASE, nodes=(*BASE.nodes[:2], TWICE, *BASE.nodes[2:])), ("name 'n' is defined 2 times",)),
    "inputs": (
        replace(BASE, inputs=(IDS, Input("positions", Type("f32", ("B",))))),
        (
            "inputs must be %ids : i32[B, T], %positions : i32[B, T], not %ids : i32[B, T], %positions : f32[B]",
            "node %q rope: positions must be i32, not f32[B]",
        ),
    ),
    "no inputs": (
        replace(BASE, inputs=()),
        (
            "inputs must be %ids : i32[B, T], %positions : i32[B, T], not none",
            "node %h embedding: reads 'ids' before it is defined",
            "node %q rope: reads 'positions' before it is defined",
            "node %a attention: reads 'positions' before it is defined",
            "node %s attention: reads 'positions' before it is defined",
        ),
    ),
    "const": (replace(BASE, consts=(Const("freqs", (1.0, NAN)),)), ("const $freqs: must be finite numbers, at least one",)),
    "empty const": (
        replace(BASE, consts=(Const("freqs", ()),)),
        ("const $freqs: must be finite numbers, at least one", "node %q rope: freqs f64[0] has no elements"),
    ),
    "role": (param(role="nrm"), ("param @norm: role 'nrm' is none of embed, head, q, k, v, o, gate, up, down, norm, bias",)),
    "dtype": (param(dtype="f64"), ("param @norm: dtype 'f64' is none of bf16, f16, f32",)),
    "shape": (param(shape=(8, -1)), ("param @norm: shape [8, -1] has no elements", "node %n norm: w f32[8, -1] has no elements")),
    "scalar": (param(shape=()), ("param @norm: shape [] has no elements", "node %n norm: w f32[] has no elements")),
    "layer": (param(layer=-1), ("param @norm: layer -1 must be >= 0",)),
    "encoding": (param(encoding="int4"), ("param @norm: encoding 'int4' is no NAME/VERSION",)),
    "order": (replace(BASE, nodes=(BASE.nodes[1], BASE.nodes[0], *BASE.nodes[2:])), ("node %n norm: reads 'h' before it is defined",)),
    "order later": (
        replace(BASE, nodes=(*BASE.nodes[:2], BASE.nodes[3], BASE.nodes[2], *BASE.nodes[4:])),
        ("node %q rope: reads 'r' before it is defined",),
    ),
    "itself": (node("h", inputs=("h", "embed")), ("node %h embedding: reads 'h' before it is defined",)),
    "undefined output": (replace(BASE, outputs=(*BASE.outputs, ("more", "w"))), ("output more: value 'w' is not defined",)),
    "published twice": (replace(BASE, outputs=(*BASE.outputs, ("logits", "z"))), ("output logits is published 2 times",)),
    "no logits": (
        replace(BASE, outputs=BASE.outputs[:1]),
        ("output logits is missing", "node %z linear: its value is never used"),
    ),
    "logits of heads": (
        replace(BASE, outputs=(("logits", "s"), ("z", "z"))),
        ("output logits must be f32[B, T, V], not f32[B, T, 2, 4]",),
    ),
    "logits of ids": (replace(BASE, outputs=(("logits", "ids"), ("z", "z"))), ("output logits must be f32[B, T, V], not i32[B, T]",)),
    "unused": (
        replace(BASE, params=(*BASE.params, UNUSED), consts=(*BASE.consts, Const("c", (1.0,)))),
        ("param @w is never used", "const $c is never used"),
    ),
    "dead": (replace(BASE, nodes=(*BASE.nodes, Node("neg", ("z",), "d"))), ("node %d neg: its value is never used",)),
    "unsorted": (node("n", attrs=(("kind", "l2"), ("eps", 0.1))), ("node %n norm: attributes are not sorted and unique",)),
    "same key": (node("n", attrs=(("eps", 0.1), ("eps", 0.2))), ("node %n norm: attributes are not sorted and unique",)),
    "two owners": (attrs("s", owns=None), ("node %s attention: KV slot 0 is owned by %a already",)),
    "no owner": (attrs("s", cache=1), ("node %s attention: KV slot 1 is read before its owner filled it",)),
    "owner later": (
        replace(BASE, nodes=(*attrs("a", owns=False).nodes[:5], *attrs("s", owns=None).nodes[5:])),
        ("node %a attention: KV slot 0 is read before its owner filled it",),
    ),
    "other keys": (
        node("s", inputs=("a", "q", "r", "positions")),
        ("node %s attention: KV slot 0 holds the k, v, positions and window of %a, not these",),
    ),
    "other window": (attrs("s", window=2), ("node %s attention: KV slot 0 holds the k, v, positions and window of %a, not these",)),
    "form of an attention": (attrs("a", cache=None), ("node %a attention: attribute cache is missing",)),
}


def test_base_is_sound() -> None:
    assert verify(BASE) == ()
    assert checked(BASE) is BASE


@pytest.mark.parametrize("name", GRAPH_CASES)
def test_broken_graphs(name: str) -> None:
    graph, violations = GRAPH_CASES[name]
    extra = {"form of an attention": ("node %s attention: KV slot 0 is read before its owner filled it",)}
    assert verify(graph) == violations + extra.get(name, ())


def test_all_violations_at_once() -> None:
    graph = replace(
        attrs("n", eps=-1.0),
        name="a b",
        params=(*BASE.params, replace(UNUSED, role="x")),
        outputs=(("hidden", "h"), ("hidden", "gone")),
    )
    expected = (
        f"name 'a b' {NOT_A_NAME}",
        "param @w: role 'x' is none of embed, head, q, k, v, o, gate, up, down, norm, bias",
        "output hidden: value 'gone' is not defined",
        "node %n norm: eps -1.0 must be >= 0",
        "output hidden is published 2 times",
        "output logits is missing",
        "param @w is never used",
        "node %z linear: its value is never used",
    )
    assert verify(graph) == expected
    with pytest.raises(VerifyError) as caught:
        checked(graph)
    assert caught.value.violations == expected
    assert str(caught.value) == "; ".join(expected)


def test_every_kind_of_violation_is_tested() -> None:
    said = [message for _, _, _, message in NODE_CASES] + [v for _, violations in GRAPH_CASES.values() for v in violations]
    assert len(set(templates(verify_module))) > 25
    assert untested(verify_module, said) == []


# anything at all

dims = st.integers(-1, 4) | st.sampled_from(["B", "T"])
words = st.sampled_from(["a", "b", "c", "ids", "positions", "h", "", "logits"])
values = st.integers(-2, 5) | st.floats() | st.booleans() | words | st.lists(dims, max_size=4).map(tuple)
attr_keys = st.sampled_from(sorted({k for op in OPS.values() for k in op.attrs}))


def value_for(attr: Attr) -> st.SearchStrategy[Any]:
    """Mostly of the right type."""
    right: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(-4, 4),
        float: st.floats(-1, 3),
        bool: st.booleans(),
        str: st.sampled_from(["rms", "layer", "l2"]),
        tuple: st.lists(dims, max_size=4).map(tuple),
    }
    return right[attr.type] | right[attr.type] | values


@st.composite
def any_node(draw: Callable[..., Any]) -> Node:
    op = draw(st.sampled_from(sorted(OPS)) | words)
    if op not in OPS or draw(st.integers(0, 5)) == 0:
        return Node(op, draw(st.lists(words, max_size=4).map(tuple)), draw(words), tuple(draw(st.lists(st.tuples(attr_keys, values), max_size=2))))
    inputs = [w if w in ("ids", "positions") else draw(words) for w in OPS[op].inputs]
    given = sorted((k, draw(value_for(a))) for k, a in OPS[op].attrs.items())
    return Node(op, tuple(inputs), draw(words), tuple((k, v) for k, v in given if v != OPS[op].attrs[k].default))


any_graph = st.builds(
    Graph,
    st.just("g"),
    st.just(BASE.inputs) | st.lists(st.builds(Input, words, st.builds(Type, st.sampled_from(["i32", "f32"]), st.lists(dims).map(tuple)))).map(tuple),
    st.lists(st.builds(Const, words, st.lists(st.floats(), max_size=3).map(tuple)), max_size=2).map(tuple),
    st.lists(st.builds(Param, words, st.lists(st.integers(-1, 4), max_size=5).map(tuple), st.just("f32"), st.just("norm")), max_size=4).map(tuple),
    st.lists(any_node(), max_size=6).map(tuple),
    st.lists(st.tuples(words, words), max_size=3).map(tuple),
)


@given(any_graph)
def test_verify_never_raises(graph: Graph) -> None:
    assert all(isinstance(v, str) for v in verify(graph))


@given(st.integers(0, 10**6))
def test_types_of_sound_graphs(seed: int) -> None:
    graph = random_graph(seed)
    types, broken = infer(graph)
    assert broken == ()
    assert {types[n.output].dtype for n in graph.nodes} == {"f32"}
    assert all(isinstance(d, str) or d >= 1 for n in graph.nodes for d in types[n.output].shape)
