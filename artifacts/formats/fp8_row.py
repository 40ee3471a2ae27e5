"""fp8-row/1: OCP FP8 E4M3 codes under one float32 scale per row.

Parts:  codes f8e4m3 [cols]; scale f32 [1]
Value:  w[r, c] = codes[r, c] * scale[r]
"""

from __future__ import annotations

from ...schemas.encoding import FormatSpec, PartSpec
from .base import Format

FP8_ROW = Format(
    FormatSpec(
        name="fp8-row/1",
        group=0,
        parts=(PartSpec(name="codes", type="f8e4m3", count="in"), PartSpec(name="scale", type="f32", count="one")),
        value=("mul", "codes", "scale"),
    ),
    family="fp8",
    bits=8,
)
FORMATS = (FP8_ROW,)
