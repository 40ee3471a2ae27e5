"""int8|int4|int3|int2-aff-gG/1: unsigned codes with one f16 scale and one f16 minimum per G inputs (G = 32, 64, 128).

Parts:  codes uN [cols], bit stream, least significant bit first; scale f16 [ceil(cols / G)]; min f16 [ceil(cols / G)]
Value:  w[r, c] = codes[r, c] * scale[r, c // G] + min[r, c // G]      product and sum each rounded to float32
"""

from __future__ import annotations

from typing import Literal

from ...schemas.encoding import ElementType, FormatSpec, PartSpec
from .base import Format

_TYPES: dict[int, ElementType] = {8: "u8", 4: "u4", 3: "u3", 2: "u2"}


def int_affine(bits: Literal[8, 4, 3, 2], group: int) -> Format:
    """The format of `bits`-bit codes in groups of `group` inputs."""
    parts = (
        PartSpec(name="codes", type=_TYPES[bits], count="in"),
        PartSpec(name="scale", type="f16", count="groups"),
        PartSpec(name="min", type="f16", count="groups"),
    )
    value = ("add", ("mul", "codes", "scale"), "min")
    spec = FormatSpec(name=f"int{bits}-aff-g{group}/1", group=group, parts=parts, value=value)
    return Format(spec, family="int", bits=bits, affine=True)


FORMATS = tuple(int_affine(bits, group) for bits in (8, 4, 3, 2) for group in (32, 64, 128))
