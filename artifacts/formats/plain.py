"""bf16/1, f16/1, f32/1: the number itself, little-endian, nothing lost from a source of the same dtype.

Parts:  value bf16|f16|f32 [cols]
Value:  w[r, c] = value[r, c]
"""

from __future__ import annotations

from ...schemas.encoding import ElementType, FormatSpec, PartSpec
from .base import Format


def _plain(dtype: ElementType, bits: int, lossless: set[str]) -> Format:
    parts = (PartSpec(name="value", type=dtype, count="in"),)
    spec = FormatSpec(name=f"{dtype}/1", group=0, parts=parts, value="value")
    return Format(spec, family="float", bits=bits, lossless=frozenset(lossless))


BF16 = _plain("bf16", 16, {"bf16"})
F16 = _plain("f16", 16, {"f16"})
F32 = _plain("f32", 32, {"f32", "f16", "bf16"})
FORMATS = (BF16, F16, F32)
