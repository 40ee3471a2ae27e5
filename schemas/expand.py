"""Composites as primitives: `expand(graph)` computes the same function without any composite op.

In: a verified graph. Out: a graph of primitives with the same inputs, params, public outputs, and the same names for the values that it had;
equal on the interpreter within 1e-12 in float64. A backend that lacks a composite may run its expansion; attention's has no KV cache, so
`cache` and `owns` are gone. Each composite of the op table has one function in EXPAND.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from .build import GraphBuilder
from .graph import AttrValue, Graph, Node, Type
from .ops import OPS, attrs_of
from .verify import infer

Expansion = Callable[[GraphBuilder, Node, Mapping[str, Type]], str]


def expand(graph: Graph) -> Graph:
    """`graph` with every composite replaced by primitives."""
    types, _ = infer(graph)
    names = {*types, *(n.output for n in graph.nodes)}
    prefix = "x"
    while any(name.startswith(prefix) for name in names):
        prefix += "x"
    b = GraphBuilder(graph.name, prefix=prefix)
    for node in graph.nodes:
        if node.op in EXPAND:
            value = EXPAND[node.op](b, node, types)
            assert b.nodes[-1].output == value, "an expansion returns its last node"
            b.nodes[-1] = replace(b.nodes[-1], output=node.output)
        else:
            b.nodes.append(node)
    return replace(graph, nodes=tuple(b.nodes))


def _optional(node: Node, i: int) -> str:
    return node.inputs[i] if i < len(node.inputs) else ""


def _softcap(b: GraphBuilder, x: str, cap: float) -> str:
    return b.node("scale", b.node("tanh", b.node("scale", x, by=1 / cap)), by=cap)


def expand_softcap(b: GraphBuilder, node: Node, types: Mapping[str, Type]) -> str:
    """cap * tanh(x / cap)."""
    return _softcap(b, node.inputs[0], _float(attrs_of(node)["cap"]))


def expand_norm(b: GraphBuilder, node: Node, types: Mapping[str, Type]) -> str:
    """Each group times rsqrt(mean or sum of squares + eps), then weight and bias."""
    attrs, (x, w, bias) = attrs_of(node), (_optional(node, i) for i in range(3))
    shape, groups = types[x].shape, _int(attrs["groups"])
    y = b.node("reshape", x, shape=(*shape[:-1], groups, _int(shape[-1]) // groups)) if groups > 1 else x
    if attrs["kind"] == "layer":
        y = b.node("sub", y, b.node("mean", y))
    power = b.node("sum" if attrs["kind"] == "l2" else "mean", b.node("square", y))
    y = b.node("mul", y, b.node("rsqrt", b.node("shift", power, by=attrs["eps"])))
    if groups > 1:
        y = b.node("reshape", y, shape=shape)
    if w:
        y = b.node("mul", y, b.node("shift", w, by=attrs["offset"]) if attrs["offset"] else w)
    return b.node("add", y, bias) if bias else y


def expand_rope(b: GraphBuilder, node: Node, types: Mapping[str, Type]) -> str:
    """(first, second) -> (first cos - second sin, second cos + first sin); the dims after them pass."""
    attrs, (x, positions, freqs) = attrs_of(node), node.inputs
    shape, n = types[x].shape, _int(types[freqs].shape[0])
    angle = b.node("mul", b.node("reshape", b.node("cast", positions), shape=(*shape[:2], 1, 1)), freqs)
    cos, sin = (b.node("scale", b.node(f, angle), by=attrs["scale"]) for f in ("cos", "sin"))
    start, step = (1, 2) if attrs["interleaved"] else (n, 1)
    first, second = b.node("slice", x, stop=2 * n - start, step=step), b.node("slice", x, start=start, stop=2 * n, step=step)
    left = b.node("sub", b.node("mul", first, cos), b.node("mul", second, sin))
    right = b.node("add", b.node("mul", second, cos), b.node("mul", first, sin))
    if attrs["interleaved"]:
        left, right = (b.node("reshape", half, shape=(*shape[:3], n, 1)) for half in (left, right))
    y = b.node("concat", left, right)
    if attrs["interleaved"]:
        y = b.node("reshape", y, shape=(*shape[:3], 2 * n))
    dim = _int(shape[3])
    return b.node("concat", y, b.node("slice", x, start=2 * n, stop=dim)) if 2 * n < dim else y


def expand_attention(b: GraphBuilder, node: Node, types: Mapping[str, Type]) -> str:
    """softmax(scale q k, capped, plus slopes and mask, with sinks) v, over [B, heads, T, T] scores."""
    attrs, (q, k, v, positions, sinks, slopes) = attrs_of(node), (_optional(node, i) for i in range(6))
    heads = _int(types[q].shape[2])
    times = heads // _int(types[k].shape[2])
    k, v = (b.node("repeat", a, axis=-2, times=times) for a in (k, v))
    scores = b.node("matmul", b.node("transpose", q, perm=(0, 2, 1, 3)), b.node("transpose", k, perm=(0, 2, 3, 1)))
    scores = b.node("scale", scores, by=attrs["scale"])
    if attrs["softcap"]:
        scores = _softcap(b, scores, _float(attrs["softcap"]))
    if slopes:
        bias = b.node("mul", b.node("reshape", slopes, shape=(heads, 1, 1)), b.node("distance", positions))
        scores = b.node("add", scores, bias)
    scores = b.node("add", scores, b.node("causal_mask", positions, window=attrs["window"]))
    if sinks:
        weights = b.node("softmax_sink", scores, b.node("reshape", sinks, shape=(heads, 1, 1)))
    else:
        weights = b.node("softmax", scores)
    return b.node("transpose", b.node("matmul", weights, b.node("transpose", v, perm=(0, 2, 1, 3))), perm=(0, 2, 1, 3))


def _int(value: AttrValue) -> int:
    assert isinstance(value, int)
    return value


def _float(value: AttrValue) -> float:
    assert isinstance(value, float)
    return value


EXPAND: Final[dict[str, Expansion]] = {
    "softcap": expand_softcap,
    "norm": expand_norm,
    "rope": expand_rope,
    "attention": expand_attention,
}
assert set(EXPAND) == {op.name for op in OPS.values() if op.composite}, "every composite has one expansion"
