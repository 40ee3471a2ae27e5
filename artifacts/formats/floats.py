"""Small float formats that numpy lacks, as bit patterns: bfloat16 (uint16) and OCP FP8 E4M3 (uint8, one NaN per sign, no infinity).

In and out: float32 arrays of any shape <-> arrays of bit patterns of the same shape. Decoding is exact. Encoding rounds to nearest,
ties to even; a bf16 overflow becomes infinity, an fp8 overflow (infinities too) the largest magnitude, 448; NaN stays NaN.
Equal to torch.bfloat16 and torch.float8_e4m3fn bit for bit (tests/artifacts/test_floats.py).
"""

from __future__ import annotations

import numpy as np

E4M3_MAX = np.float32(448.0)

_E4M3_MIN_NORMAL = np.uint32(0x3C800000)  # 2^-6
_E4M3_MAGIC = np.uint32(0x46800000)  # 2^14: adding it rounds a subnormal to multiples of 2^-9
_E4M3_MAX_BITS = E4M3_MAX.view(np.uint32)
_BIAS_CHANGE = np.uint32((120 << 23) - 0x7FFFF)  # exponent bias 127 -> 7, and half a unit below the kept bits


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """uint16 bfloat16 patterns -> float32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 -> uint16 bfloat16 patterns, nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, (bits >> 16) | 0x40, rounded).astype(np.uint16).reshape(np.shape(x))


def e4m3_to_f32(bits: np.ndarray) -> np.ndarray:
    """uint8 E4M3 patterns -> float32, exact."""
    return E4M3_TABLE[bits]


def f32_to_e4m3(x: np.ndarray) -> np.ndarray:
    """float32 -> uint8 E4M3 patterns, nearest even, saturating; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    sign, magnitude = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    normal = (np.minimum(magnitude, _E4M3_MAX_BITS) - _BIAS_CHANGE + ((magnitude >> 20) & 1)) >> 20
    tiny = np.where(magnitude < _E4M3_MIN_NORMAL, magnitude, 0).astype(np.uint32).view(np.float32)
    subnormal = (tiny + _E4M3_MAGIC.view(np.float32)).view(np.uint32) - _E4M3_MAGIC
    code = np.where(magnitude < _E4M3_MIN_NORMAL, subnormal, normal)
    return (np.where(magnitude > 0x7F800000, 0x7F, code) | sign).astype(np.uint8).reshape(np.shape(x))


def _e4m3_table() -> np.ndarray:
    """float32[256]: sign, 4 exponent bits (bias 7), 3 mantissa bits; all ones is NaN."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(1.0 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


E4M3_TABLE = _e4m3_table()
E4M3_TABLE.setflags(write=False)
