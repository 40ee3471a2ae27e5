"""Plain rounding to a number format: what STRUCTURE's error bound is relative to. Shares nothing with the compiler's own rounding.

In: float32 [rows, cols], a Format. Out: float32 of the same shape, the values that the format would hold. Every group of a row takes its
scale from its own extremes and every weight goes to the nearest level:
1. float       the nearest number of the type
2. symmetric   scale = largest magnitude / largest level
3. affine      scale = (max - min) / (levels - 1), offset = min
4. fp8         scale = largest magnitude of the row / 448
Scales and offsets are rounded to float16 as stored. Refused (CertifyError): a family that has no plain rounding here.
"""

from __future__ import annotations

import numpy as np

from ..artifacts.formats import Format
from ..artifacts.formats.floats import E4M3_MAX, bf16_to_f32, e4m3_to_f32, f32_to_bf16, f32_to_e4m3
from ..schemas.errors import CertifyError


def round_plainly(fmt: Format, w: np.ndarray) -> np.ndarray:
    """`w` float32 [rows, cols] rounded to `fmt`, decoded again."""
    match fmt.family:
        case "float":
            return _float(fmt.name.split("/")[0], w)
        case "int":
            return _grouped(fmt, w)
        case "fp8":
            scale = _divisor(np.abs(w).max(-1, keepdims=True) / E4M3_MAX)
            return e4m3_to_f32(f32_to_e4m3(w / scale)) * scale
    raise CertifyError(f"certify/plain_rounding.py has no rule for format {fmt.name} of family {fmt.family!r}; add one")


def _float(kind: str, w: np.ndarray) -> np.ndarray:
    if kind == "bf16":
        return bf16_to_f32(f32_to_bf16(w))
    return w.astype(np.float16).astype(np.float32) if kind == "f16" else w


def _grouped(fmt: Format, w: np.ndarray) -> np.ndarray:
    rows, cols = w.shape
    groups = -(-cols // fmt.group)
    # The last group may be short: pad it with its own last weight, which changes no extreme.
    x = np.pad(w, ((0, 0), (0, groups * fmt.group - cols)), mode="edge").reshape(rows, groups, fmt.group)
    top = 2**fmt.bits - 1
    if fmt.affine:
        low = x.min(-1, keepdims=True).astype(np.float16).astype(np.float32)
        scale = ((x.max(-1, keepdims=True) - low) / top).astype(np.float16).astype(np.float32)
        y = np.clip(np.rint((x - low) / _divisor(scale)), 0, top) * scale + low
    else:
        centre = 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
        scale = (np.abs(x).max(-1, keepdims=True) / (top - centre)).astype(np.float16).astype(np.float32)
        y = (np.clip(np.rint(x / _divisor(scale) + centre), 0, top) - centre) * scale
    return y.astype(np.float32).reshape(rows, -1)[:, :cols]


def _divisor(scale: np.ndarray) -> np.ndarray:
    return np.where(scale == 0, np.float32(1), scale)
