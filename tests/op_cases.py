"""One table of inputs and attributes for every op, shared by the tests of the interpreter and of backends.

`CASES` sets every attribute, leaves every defaulted one out, and gives and leaves out every optional input (a test counts). Positions hold
a row of batch padding (-1) unless an op could not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinlm.schemas.ops import OPS, REQUIRED

B, T = 2, 5
POSITIONS = np.array([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]], np.int32)

# An input: dims of a real array, an array itself, or None for an absent one.
Given = tuple[int, ...] | np.ndarray | None


@dataclass(frozen=True)
class Case:
    """One call: `args` makes its inputs (float64 reals, int32 integers) from a seed."""

    op: str
    given: tuple[Given, ...]
    attrs: dict[str, Any]

    def __str__(self) -> str:
        present = "".join("-" if g is None else "x" for g in self.given)
        return "-".join([self.op, present, *(f"{k}={v}" for k, v in self.attrs.items())])

    def args(self, seed: int = 0) -> list[np.ndarray | None]:
        """The inputs; reals lie in [-3, 3]."""
        rng = np.random.default_rng(seed)
        return [rng.uniform(-3, 3, g) if isinstance(g, tuple) else g for g in self.given]


def case(op: str, *given: Given, **attrs: Any) -> Case:
    """A row of the table."""
    return Case(op, given, attrs)


X = (B, T, 12)
FREQS = np.array([1.0, 0.3, 0.05])
IDS = np.array([[0, 6, 3], [2, 2, 5]], np.int32)
ELEMENTWISE = ("neg", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "softplus", "exp", "square", "cos", "sin")


def heads(n: int, m: int, d: int, dv: int) -> tuple[Given, ...]:
    """q, k, v and positions."""
    return (B, T, n, d), (B, T, m, d), (B, T, m, dv), POSITIONS


def _norms() -> list[Case]:
    cases: list[Case] = []
    for kind in ({}, {"kind": "layer"}, {"kind": "l2"}):
        cases += [
            case("norm", X, eps=1e-6, **kind),
            case("norm", X, (12,), eps=0.5, offset=1.0, **kind),
            case("norm", X, (12,), (12,), eps=1e-5, groups=3, **kind),
            case("norm", (B, T, 2, 6), None, (6,), eps=1e-5, **kind),
        ]
    return cases


CASES: tuple[Case, ...] = (
    case("embedding", IDS, (7, 4)),
    case("linear", X, (5, 12)),
    case("linear", X, (5, 12), (5,)),
    case("matmul", (B, 3, 2, 4), (B, 1, 4, 5)),
    *(case(op, X, other) for op in ("add", "sub", "mul") for other in (X, (12,), (B, 1, 1))),
    *(case(op, X) for op in ELEMENTWISE),
    case("rsqrt", np.linspace(0.01, 9, 12)),
    case("scale", X, by=-0.25),
    case("shift", X, by=1.5),
    case("cast", POSITIONS),
    case("softmax", X),
    case("softmax_sink", (B, 3, 4, 5), (3, 1, 1)),
    case("mean", X),
    case("mean", (B, T, 3, 4), axis=-3),
    case("sum", X),
    case("sum", X, axis=-2),
    case("reshape", X, shape=("B", "T", 3, 4)),
    case("transpose", (B, T, 3, 4), perm=(0, 2, 3, 1)),
    case("slice", X, stop=5),
    case("slice", (B, T, 9, 2), axis=-2, start=1, stop=8, step=3),
    case("concat", X, (B, T, 2)),
    case("concat", (B, T, 2, 3), (B, T, 1, 3), axis=-2),
    case("repeat", X, times=2),
    case("repeat", (B, T, 2, 3), axis=-2, times=3),
    case("causal_mask", POSITIONS),
    case("causal_mask", POSITIONS, window=2),
    case("distance", POSITIONS),
    case("softcap", X, cap=2.0),
    *_norms(),
    case("rope", (B, T, 2, 6), POSITIONS, FREQS),
    case("rope", (B, T, 2, 8), POSITIONS, FREQS, scale=1.3),
    case("rope", (B, T, 2, 6), POSITIONS, FREQS, interleaved=True),
    case("rope", (B, T, 1, 9), POSITIONS, FREQS, interleaved=True, scale=0.5),
    case("attention", *heads(2, 2, 4, 4), scale=0.5, cache=0),
    case("attention", *heads(6, 2, 4, 3), scale=0.3, cache=1, window=2),
    case("attention", *heads(4, 1, 3, 5), (4,), scale=1.0, cache=0, softcap=1.5),
    case("attention", *heads(4, 2, 3, 3), None, (4,), scale=0.7, cache=0, window=3, owns=False),
    case("attention", *heads(4, 2, 3, 2), (4,), (4,), scale=0.7, cache=0, window=1, softcap=20.0),
)


def uncovered() -> list[str]:
    """What no case shows: ops, attributes set or left at their default, optional inputs given or absent."""
    missing = []
    for op in OPS.values():
        mine = [c for c in CASES if c.op == op.name]
        wanted: dict[str, Callable[[Case], bool]] = {"a case": lambda c: True}
        for key, attr in op.attrs.items():
            wanted[f"{key} set"] = lambda c, key=key: key in c.attrs
            if attr.default is not REQUIRED:
                wanted[f"{key} left out"] = lambda c, key=key: key not in c.attrs
        for i, name in enumerate(op.inputs):
            if name.endswith("?"):
                wanted[f"{name} given"] = lambda c, i=i: len(c.given) > i and c.given[i] is not None
                wanted[f"{name} absent"] = lambda c, i=i: len(c.given) <= i or c.given[i] is None
        missing += [f"{op.name}: {what}" for what, shows in wanted.items() if not any(map(shows, mine))]
    return missing
