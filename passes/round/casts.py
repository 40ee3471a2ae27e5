"""Families that need no search, or hardly any: plain floats, and FP8 rows under one float32 scale.

1. float: nearest, ties to even; lossless when the source's dtype fits. A finite weight stays finite: it saturates.
2. fp8: the row's scale is tried over one octave (E4M3's steps repeat every factor 2) from the one that maps the row's largest
   magnitude to 448; the smallest weighted error wins, the first of equals. A row of zeros has scale 0.
"""

from __future__ import annotations

import numpy as np

from ...artifacts.formats import Format, Parts
from ...artifacts.formats.floats import E4M3_MAX, e4m3_to_f32, f32_to_bf16, f32_to_e4m3

BF16_MAX = np.float32(3.3895314e38)
F16_MAX = np.float32(65504)
FP8_GRID = tuple(np.float32(2 ** (k / 8)) for k in range(8))


def cast(fmt: Format, w: np.ndarray, h: np.ndarray) -> Parts:
    """bf16, f16 or f32 values of w."""
    (part,) = fmt.spec.parts
    if part.type == "bf16":
        return {part.name: f32_to_bf16(np.clip(w, -BF16_MAX, BF16_MAX))}
    if part.type == "f16":
        return {part.name: np.clip(w, -F16_MAX, F16_MAX).astype(np.float16)}
    return {part.name: w}


def round_fp8_rows(fmt: Format, w: np.ndarray, h: np.ndarray) -> Parts:
    """codes and scale of each row."""
    plain = np.abs(w).max(axis=1, keepdims=True) / E4M3_MAX
    best = np.full((len(w), 1), np.inf, np.float32)
    scale, codes = plain, np.zeros(w.shape, np.uint8)
    for factor in FP8_GRID:
        tried = plain * factor
        got = f32_to_e4m3(np.divide(w, tried, out=np.zeros_like(w), where=tried > 0))
        error = ((w - e4m3_to_f32(got) * tried) ** 2 @ h)[:, None]
        better = error < best
        best, scale, codes = np.where(better, error, best), np.where(better, tried, scale), np.where(better, got, codes)
    return {"codes": codes, "scale": scale.astype(np.float32)}
