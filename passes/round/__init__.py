"""How codes and scales are chosen: weights f32[rows, cols] -> parts of a number format. One function per family in ROUNDERS.

`h` f[cols] weighs the squared error of each column (the second moment of that input on calibration text); None = all alike.
Every choice is deterministic, one numpy thread of arithmetic, and never worse than plain rounding in the same format (weighted by `h`).
Refused with InputError: weights that are not finite, a family that nothing here rounds to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...artifacts.formats import Format, Parts
from ...schemas.errors import InputError
from . import casts, grouped

Rounder = Callable[[Format, np.ndarray, np.ndarray], Parts]

ROUNDERS: dict[str, Rounder] = {"int": grouped.round_groups, "fp8": casts.round_fp8_rows, "float": casts.cast}

FLOOR = 1e-3  # of the mean of h: a column that calibration never excited still counts a little


def encode_slab(fmt: Format, w: np.ndarray, h: np.ndarray | None = None) -> Parts:
    """Parts of `fmt` for the matrix w f32[rows, cols], its rows independent of each other."""
    if fmt.family not in ROUNDERS:
        raise InputError(f"{fmt.name}: no rounding for family {fmt.family!r}, only {', '.join(ROUNDERS)}")
    if not np.isfinite(w).all():
        raise InputError(f"a weight to be stored as {fmt.name} is not finite")
    return ROUNDERS[fmt.family](fmt, np.ascontiguousarray(w, np.float32), _column_weights(h, w.shape[1]))


def _column_weights(h: np.ndarray | None, cols: int) -> np.ndarray:
    """float32[cols], mean about 1, never 0."""
    mean = 0.0 if h is None else float(np.mean(h))
    if h is None or mean <= 0:
        return np.ones(cols, np.float32)
    return (np.maximum(h, 0) / mean + FLOOR).astype(np.float32)
