"""The closed op table: one row per op with its inputs, attributes, shape and dtype rule.

A name ending in `?` is an optional input. Composites have an `expand()` to primitives in `expand.py`; backends must implement the primitives and
may match composites. The meaning of every op is its reference function in `runtime_min/interp.py`. There is no `custom` op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .graph import AttrValue, Dim, Node, Type

REQUIRED: Final = object()
Attrs = dict[str, AttrValue]
TypeRule = Callable[[Sequence[Type], Attrs], Type]


class OpError(ValueError):
    """A node's inputs or attributes break its op's rule; the verifier turns it into a violation."""


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its exact Python type and default (REQUIRED when it has none)."""

    type: type
    default: object = REQUIRED


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table."""

    name: str
    inputs: tuple[str, ...]
    attrs: dict[str, Attr]
    rule: TypeRule
    composite: bool = False


def need(ok: bool, message: str) -> None:
    """Raise OpError(message) unless `ok`."""
    if not ok:
        raise OpError(message)


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """Numpy broadcasting over dims that may be symbols (a symbol equals only itself, or stretches a 1)."""
    n = max(len(a), len(b))
    out: list[Dim] = []
    for x, y in zip((1,) * (n - len(a)) + tuple(a), (1,) * (n - len(b)) + tuple(b), strict=True):
        need(x == y or x == 1 or y == 1, f"shapes {list(a)} and {list(b)} don't broadcast")
        out.append(y if x == 1 else x)
    return tuple(out)


def _ints(value: AttrValue) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


def _int(value: AttrValue) -> int:
    assert isinstance(value, int)
    return value


def _axis(t: Type, attrs: Attrs) -> int:
    axis = _int(attrs["axis"])
    need(-len(t.shape) <= axis < 0, f"axis {axis} must lie in [-{len(t.shape)}, -1]")
    return len(t.shape) + axis


def _fixed(dim: Dim, what: str) -> int:
    need(isinstance(dim, int), f"{what} must be a number, not {dim}")
    return int(dim)


def _same(ts: Sequence[Type], _: Attrs) -> Type:
    return ts[0]


def _binary(ts: Sequence[Type], _: Attrs) -> Type:
    return Type("f32", broadcast(ts[0].shape, ts[1].shape))


def _embedding(ts: Sequence[Type], _: Attrs) -> Type:
    need(ts[0].dtype == "i32", "ids must be i32")
    need(len(ts[1].shape) == 2, f"table must be [V, H], not {ts[1]}")
    return Type("f32", (*ts[0].shape, ts[1].shape[1]))


def _linear(ts: Sequence[Type], _: Attrs) -> Type:
    x, w = ts[0], ts[1]
    need(len(w.shape) == 2, f"weight must be [out, in], not {w}")
    need(x.shape[-1] == w.shape[1], f"weight [out, in] = {list(w.shape)} does not take inputs of last dim {x.shape[-1]}")
    if len(ts) == 3:
        need(ts[2].shape == (w.shape[0],), f"bias {list(ts[2].shape)} != [out] = [{w.shape[0]}]")
    return Type("f32", (*x.shape[:-1], w.shape[0]))


def _matmul(ts: Sequence[Type], _: Attrs) -> Type:
    a, b = ts[0].shape, ts[1].shape
    need(len(a) >= 2 and len(b) >= 2 and a[-1] == b[-2], f"matmul of {list(a)} and {list(b)}")
    return Type("f32", (*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))


def _norm(ts: Sequence[Type], attrs: Attrs) -> Type:
    last, groups = ts[0].shape[-1], _int(attrs["groups"])
    need(attrs["kind"] in ("rms", "layer", "l2"), f"kind {attrs['kind']!r} is none of rms, layer, l2")
    need(_fixed(last, "last dim") % groups == 0 and groups >= 1, f"last dim {last} is not {groups} equal groups")
    for weight in ts[1:]:
        need(weight.shape == (last,), f"weight {list(weight.shape)} != last dim [{last}]")
    return ts[0]


def _rope(ts: Sequence[Type], _: Attrs) -> Type:
    x, positions, freqs = ts
    need(len(x.shape) == 4, f"x must be [B, T, N, D], not {x}")
    need(positions == Type("i32", x.shape[:2]), f"positions {positions} != i32{list(x.shape[:2])}")
    need(2 * _fixed(freqs.shape[0], "freqs") <= _fixed(x.shape[3], "head dim"), f"{freqs.shape[0]} frequencies rotate more than D = {x.shape[3]}")
    return x


def _attention(ts: Sequence[Type], attrs: Attrs) -> Type:
    q, k, v, positions = ts[:4]
    need(len(q.shape) == len(k.shape) == len(v.shape) == 4, "q, k, v must be [B, T, heads, dim]")
    need(q.shape[3] == k.shape[3], f"q dim {q.shape[3]} != k dim {k.shape[3]}")
    need(k.shape[:3] == v.shape[:3], f"k {k} and v {v} differ in heads")
    need(_fixed(q.shape[2], "heads") % _fixed(k.shape[2], "kv heads") == 0, f"{q.shape[2]} query heads over {k.shape[2]} kv heads")
    need(positions.dtype == "i32" and positions.shape == q.shape[:2], "positions must be i32[B, T]")
    need(_int(attrs["window"]) >= 0 and _int(attrs["cache"]) >= 0, "window and cache must be >= 0")
    for extra in ts[4:]:
        need(extra.shape == (q.shape[2],), f"sinks and slopes are per query head, not {extra}")
    return Type("f32", (*q.shape[:3], v.shape[3]))


def _reshape(ts: Sequence[Type], attrs: Attrs) -> Type:
    shape = attrs["shape"]
    assert isinstance(shape, tuple)
    out = tuple(d if isinstance(d, str) else int(d) for d in shape)
    need(_volume(ts[0].shape) == _volume(out), f"{list(ts[0].shape)} can't become {list(out)}")
    return Type(ts[0].dtype, out)


def _volume(shape: Sequence[Dim]) -> tuple[int, tuple[str, ...]]:
    n = 1
    for d in shape:
        n *= d if isinstance(d, int) else 1
    return n, tuple(sorted(d for d in shape if isinstance(d, str)))


def _transpose(ts: Sequence[Type], attrs: Attrs) -> Type:
    perm = _ints(attrs["perm"])
    need(sorted(perm) == list(range(len(ts[0].shape))), f"perm {list(perm)} does not permute {list(ts[0].shape)}")
    return Type(ts[0].dtype, tuple(ts[0].shape[i] for i in perm))


def _slice(ts: Sequence[Type], attrs: Attrs) -> Type:
    axis = _axis(ts[0], attrs)
    size, start, stop, step = _fixed(ts[0].shape[axis], "sliced dim"), _int(attrs["start"]), _int(attrs["stop"]), _int(attrs["step"])
    need(0 <= start < stop <= size and step >= 1, f"slice {start}:{stop}:{step} of a dim of {size}")
    return Type(ts[0].dtype, (*ts[0].shape[:axis], len(range(start, stop, step)), *ts[0].shape[axis + 1 :]))


def _concat(ts: Sequence[Type], attrs: Attrs) -> Type:
    a, b, axis = ts[0].shape, ts[1].shape, _axis(ts[0], attrs)
    need(len(a) == len(b) and a[:axis] + a[axis + 1 :] == b[:axis] + b[axis + 1 :], f"concat of {list(a)} and {list(b)} along {axis}")
    return Type(ts[0].dtype, (*a[:axis], _fixed(a[axis], "dim") + _fixed(b[axis], "dim"), *a[axis + 1 :]))


def _softmax_sink(ts: Sequence[Type], _: Attrs) -> Type:
    x, sink = ts[0].shape, ts[1].shape
    need(len(sink) <= len(x) and sink[-1] == 1 and broadcast(x, sink) == x, f"sink {list(sink)} must give one logit per row of {list(x)}")
    return ts[0]


def _repeat(ts: Sequence[Type], attrs: Attrs) -> Type:
    axis, times = _axis(ts[0], attrs), _int(attrs["times"])
    need(times >= 1, "times must be >= 1")
    return Type(ts[0].dtype, (*ts[0].shape[:axis], _fixed(ts[0].shape[axis], "dim") * times, *ts[0].shape[axis + 1 :]))


def _reduce(ts: Sequence[Type], attrs: Attrs) -> Type:
    axis = _axis(ts[0], attrs)
    return Type("f32", (*ts[0].shape[:axis], 1, *ts[0].shape[axis + 1 :]))


def _cast(ts: Sequence[Type], _: Attrs) -> Type:
    return Type("f32", ts[0].shape)


def _pairwise(ts: Sequence[Type], _: Attrs) -> Type:
    need(ts[0].dtype == "i32" and len(ts[0].shape) == 2, "positions must be i32[B, T]")
    b, t = ts[0].shape
    return Type("f32", (b, 1, t, t))


def _unary(*names: str) -> tuple[Op, ...]:
    return tuple(Op(n, ("x",), {}, _same) for n in names)


_AXIS = {"axis": Attr(int, -1)}

_ROWS: tuple[Op, ...] = (
    # primitives
    Op("embedding", ("ids", "table"), {}, _embedding),
    Op("linear", ("x", "w", "bias?"), {}, _linear),  # x wᵀ + bias
    Op("matmul", ("a", "b"), {}, _matmul),
    *(Op(n, ("a", "b"), {}, _binary) for n in ("add", "sub", "mul")),
    *_unary("neg", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "softplus", "exp", "square", "rsqrt", "cos", "sin"),
    Op("scale", ("x",), {"by": Attr(float)}, _same),  # x * by
    Op("shift", ("x",), {"by": Attr(float)}, _same),  # x + by
    Op("cast", ("x",), {}, _cast),  # integers become reals
    Op("softmax", ("x",), {}, _same),  # over the last axis
    Op("softmax_sink", ("x", "sink"), {}, _softmax_sink),  # softmax of x with one more logit, whose probability is dropped
    Op("mean", ("x",), _AXIS, _reduce),
    Op("sum", ("x",), _AXIS, _reduce),
    Op("reshape", ("x",), {"shape": Attr(tuple)}, _reshape),
    Op("transpose", ("x",), {"perm": Attr(tuple)}, _transpose),
    Op("slice", ("x",), {**_AXIS, "start": Attr(int, 0), "stop": Attr(int), "step": Attr(int, 1)}, _slice),
    Op("concat", ("a", "b"), _AXIS, _concat),
    Op("repeat", ("x",), {**_AXIS, "times": Attr(int)}, _repeat),  # each element `times` times in a row
    Op("causal_mask", ("positions",), {"window": Attr(int, 0)}, _pairwise),  # [B, 1, T, T]: 0 where key j is seen by query i, else -inf
    Op("distance", ("positions",), {}, _pairwise),  # [B, 1, T, T]: position of key j minus position of query i
    # composites
    Op("softcap", ("x",), {"cap": Attr(float)}, _same, composite=True),  # cap * tanh(x / cap)
    Op(
        "norm",
        ("x", "w?", "b?"),
        {"kind": Attr(str, "rms"), "eps": Attr(float), "offset": Attr(float, 0.0), "groups": Attr(int, 1)},
        _norm,
        composite=True,
    ),  # over the last axis, in `groups` equal parts; weight is w + offset
    Op("rope", ("x", "positions", "freqs"), {"scale": Attr(float, 1.0), "interleaved": Attr(bool, False)}, _rope, composite=True),
    Op(
        "attention",
        ("q", "k", "v", "positions", "sinks?", "slopes?"),
        {"scale": Attr(float), "window": Attr(int, 0), "softcap": Attr(float, 0.0), "cache": Attr(int), "owns": Attr(bool, True)},
        _attention,
        composite=True,
    ),  # causal; `cache` names the KV slot, `owns` says who appends to it (a layer that shares another's KV does not)
)

OPS: Final[dict[str, Op]] = {op.name: op for op in _ROWS}
assert len(OPS) == len(_ROWS), "an op is listed twice"


def attrs_of(node: Node) -> Attrs:
    """All attributes of `node`, defaults filled in."""
    out: Attrs = {k: a.default for k, a in OPS[node.op].attrs.items() if a.default is not REQUIRED}  # pyright: ignore[reportAssignmentType]
    out.update(node.attrs)
    return out
