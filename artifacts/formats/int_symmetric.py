"""int8|int6|int4|int3|int2-sym-gG/1: unsigned codes around a fixed centre, one f16 scale per G inputs (G = 32, 64, 128).

Parts:  codes uN [cols], bit stream, least significant bit first; scale f16 [ceil(cols / G)], the last group may be short
Value:  w[r, c] = (codes[r, c] - centre) * scale[r, c // G]      centre = 2^(N-1), but 1.5 for int2 (levels -1.5 -0.5 0.5 1.5)
"""

from __future__ import annotations

from typing import Literal

from ...schemas.encoding import ElementType, FormatSpec, PartSpec
from .base import Format

_TYPES: dict[int, ElementType] = {8: "u8", 6: "u6", 4: "u4", 3: "u3", 2: "u2"}


def int_symmetric(bits: Literal[8, 6, 4, 3, 2], group: int) -> Format:
    """The format of `bits`-bit codes in groups of `group` inputs."""
    parts = (PartSpec(name="codes", type=_TYPES[bits], count="in"), PartSpec(name="scale", type="f16", count="groups"))
    centre = 1.5 if bits == 2 else 2 ** (bits - 1)
    value = ("mul", ("sub", "codes", centre), "scale")
    return Format(FormatSpec(name=f"int{bits}-sym-g{group}/1", group=group, parts=parts, value=value), family="int", bits=bits)


FORMATS = tuple(int_symmetric(bits, group) for bits in (8, 6, 4, 3, 2) for group in (32, 64, 128))
