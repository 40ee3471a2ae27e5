"""The closed op table: one row per op with its inputs, attributes and type rule (`op_types.py`).

A name ending in `?` is an optional input; inputs called `ids` or `positions` are integers, all others real. Composites have an `expand()` to
primitives in `expand.py`; backends must implement the primitives and may match composites. The meaning of every op is its reference function
in `runtime_min/interp_ops.py`. There is no `custom` op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from . import op_types as t
from .graph import Node, Type
from .op_types import Attrs

REQUIRED: Final = object()
INTEGER_INPUTS: Final = frozenset({"ids", "positions"})
TypeRule = Callable[[Sequence[Type], Attrs], Type]


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its exact Python type, its default (REQUIRED when it has none), and the types of a tuple's items."""

    type: type
    default: object = REQUIRED
    items: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table."""

    name: str
    inputs: tuple[str, ...]
    attrs: dict[str, Attr]
    rule: TypeRule
    composite: bool = False


def _unary(*names: str) -> tuple[Op, ...]:
    return tuple(Op(n, ("x",), {}, t.same) for n in names)


_AXIS = {"axis": Attr(int, -1)}

_ROWS: tuple[Op, ...] = (
    # primitives
    Op("embedding", ("ids", "table"), {}, t.embedding),
    Op("linear", ("x", "w", "bias?"), {}, t.linear),  # x wᵀ + bias
    Op("matmul", ("a", "b"), {}, t.matmul),
    *(Op(n, ("a", "b"), {}, t.binary) for n in ("add", "sub", "mul")),
    *_unary("neg", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "softplus", "exp", "square", "rsqrt", "cos", "sin"),
    Op("scale", ("x",), {"by": Attr(float)}, t.same),  # x * by
    Op("shift", ("x",), {"by": Attr(float)}, t.same),  # x + by
    Op("cast", ("positions",), {}, t.same),  # integers become reals
    Op("softmax", ("x",), {}, t.same),  # over the last axis
    Op("softmax_sink", ("x", "sink"), {}, t.softmax_sink),  # softmax of x with one more logit, whose probability is dropped
    Op("mean", ("x",), _AXIS, t.reduce),
    Op("sum", ("x",), _AXIS, t.reduce),
    Op("reshape", ("x",), {"shape": Attr(tuple, items=(int, str))}, t.reshape),
    Op("transpose", ("x",), {"perm": Attr(tuple, items=(int,))}, t.transpose),
    Op("slice", ("x",), {**_AXIS, "start": Attr(int, 0), "stop": Attr(int), "step": Attr(int, 1)}, t.slice_),
    Op("concat", ("a", "b"), _AXIS, t.concat),
    Op("repeat", ("x",), {**_AXIS, "times": Attr(int)}, t.repeat),  # each element `times` times in a row
    Op("causal_mask", ("positions",), {"window": Attr(int, 0)}, t.pairwise),  # [B, 1, T, T]: 0 where key j is seen by query i, else -inf
    Op("distance", ("positions",), {}, t.pairwise),  # [B, 1, T, T]: position of key j minus position of query i
    # composites
    Op("softcap", ("x",), {"cap": Attr(float)}, t.softcap, composite=True),  # cap * tanh(x / cap)
    Op(
        "norm",
        ("x", "w?", "b?"),
        {"kind": Attr(str, "rms"), "eps": Attr(float), "offset": Attr(float, 0.0), "groups": Attr(int, 1)},
        t.norm,
        composite=True,
    ),  # over the last axis, in `groups` equal parts; weight is w + offset
    Op("rope", ("x", "positions", "freqs"), {"scale": Attr(float, 1.0), "interleaved": Attr(bool, False)}, t.rope, composite=True),
    Op(
        "attention",
        ("q", "k", "v", "positions", "sinks?", "slopes?"),
        {"scale": Attr(float), "window": Attr(int, 0), "softcap": Attr(float, 0.0), "cache": Attr(int), "owns": Attr(bool, True)},
        t.attention,
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
