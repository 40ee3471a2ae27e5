"""What a matrix costs on the `cpu` target: resident and scratch bytes, as pure arithmetic that `plan` can do without torch.

The torch CPU backend holds integer formats transposed and cut, so that one byte-wide kernel serves every bit width:

  block   up to BLOCK_ROWS rows (outputs) of the matrix, padded with zero rows to a multiple of ROW_TILE: its `width`
  depth   inputs, padded with zeros to whole groups
  codes   u8[depth, width w / 8 + TAIL], a code in w bits: the next power of two of its own (splitting 6 bits into 4 and 2 takes twice the time)
  TAIL    two float32 that the kernel reads at the end of each byte row
  scales  f16[groups, width], and as many minima where the format is affine

All other formats are held as stored. Sizes are per load: matrices that are loaded together (one input, one format) count as one of all their rows.
Refused: InputError for an unknown format, BackendError for one that this target can't execute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..artifacts.formats import Format, get_format
from ..schemas.errors import BackendError

BLOCK_ROWS = 4096
ROW_TILE = 64  # with TOKEN_TILE: at whole tiles a matrix product has the same bits under any number of threads
TOKEN_TILE = 16
TAIL = 8
SCRATCH = 8 << 20  # bytes of decoded weights that exist at a time (one group of a block at least)
FEW_TOKENS = 8  # up to here a token is cheaper through the codes than decoding the weights


@dataclass(frozen=True, slots=True)
class IntCodes:
    """An integer format in the terms of this target: value = (code - centre) scale, or code scale + min when affine."""

    bits: int
    group: int
    centre: float
    affine: bool

    @property
    def held_bits(self) -> int:
        """Bits that a code occupies."""
        return next(w for w in (1, 2, 4, 8) if w >= self.bits)

    def groups(self, cols: int) -> int:
        """Scales per row."""
        return -(-cols // self.group)

    def groups_per_span(self, width: int) -> int:
        """How many groups of `width` decoded outputs fit into SCRATCH; at least one."""
        return max(1, SCRATCH // (4 * width * self.group))


def int_codes(fmt: Format) -> IntCodes | None:
    """`fmt` as integer codes, None when it is a format held as stored."""
    types = {(part.name, part.count): part.type for part in fmt.spec.parts}
    code, scale = types.get(("codes", "in"), ""), types.get(("scale", "groups"))
    if not code.startswith("u") or scale != "f16":
        return None
    bits = int(code[1:])
    match fmt.spec.value:
        case ("mul", ("sub", "codes", int() | float() as centre), "scale"):
            return IntCodes(bits, fmt.group, centre, affine=False)
        case ("add", ("mul", "codes", "scale"), "min") if types.get(("min", "groups")) == "f16":
            return IntCodes(bits, fmt.group, 2 ** (bits - 1), affine=True)
    return None


def stored_type(fmt: Format) -> str:
    """Element type of a format held as stored: "f32", "f16", "bf16" or "f8e4m3" (under one f32 scale per row)."""
    parts = fmt.spec.parts
    if fmt.spec.value == "value" and len(parts) == 1 and parts[0].type in ("f32", "f16", "bf16"):
        return parts[0].type
    if fmt.spec.value == ("mul", "codes", "scale") and [(p.type, p.count) for p in parts] == [("f8e4m3", "in"), ("f32", "one")]:
        return "f8e4m3"
    raise BackendError(f"number format {fmt.name}: device cpu has no way to execute it")


def block_widths(rows: int) -> list[int]:
    """Padded rows of each block of a matrix."""
    return [-(-min(BLOCK_ROWS, rows - r) // ROW_TILE) * ROW_TILE for r in range(0, rows, BLOCK_ROWS)]


def table_row_bytes(width: int, bits: int) -> int:
    """Bytes of one input's codes of `bits` bits, tail included."""
    return width * bits // 8 + TAIL


def resident_bytes(format_name: str, rows: int, cols: int, column_slabs: int = 1) -> int:
    """Bytes that a matrix [rows, cols] occupies for as long as the model is loaded.

    `column_slabs`: how many slabs side by side it is stored as; a format with a scale per row has one per row of each.
    """
    fmt = get_format(format_name)
    codes = int_codes(fmt)
    if codes is None:
        again = 4 * (column_slabs - 1) if stored_type(fmt) == "f8e4m3" else 0
        return rows * (fmt.row_bytes(cols) + again)
    widths, groups = block_widths(rows), codes.groups(cols)
    table_row = sum(table_row_bytes(width, codes.held_bits) for width in widths)
    return groups * codes.group * table_row + groups * sum(widths) * 2 * (2 if codes.affine else 1)


def scratch_bytes(format_name: str, rows: int, cols: int, tokens: int) -> int:
    """Bytes that multiplying `tokens` inputs by a matrix [rows, cols] allocates at its worst, its result included; never less.

    The inputs are taken to start where an allocation does (otherwise they are copied once more).
    """
    fmt = get_format(format_name)
    codes = int_codes(fmt)
    if codes is None:
        part = rows if stored_type(fmt) == "f32" else min(rows, max(1, SCRATCH // (4 * cols)))
        decoded, result = 0 if stored_type(fmt) == "f32" else 4 * cols * part, 4 * tokens * rows
        return decoded + result if part == rows else max(decoded + result, 2 * result)
    few = tokens <= FEW_TOKENS
    tiled = tokens if few else math.ceil(tokens / TOKEN_TILE) * TOKEN_TILE
    depth, widths = codes.groups(cols) * codes.group, block_widths(rows)
    padded = 4 * tiled * depth if (tiled, depth) != (tokens, cols) else 0
    result = 4 * tiled * sum(widths)
    inside = max(_dot_bytes(codes, w, depth, tokens) if few else _decode_bytes(codes, w, depth) for w in widths)
    return padded + max(result + inside, 2 * result if few and len(widths) > 1 else 0)


def _spread_bytes(bits: int, width: int, inputs: int) -> int:
    """A table with one code per byte."""
    return inputs * (8 // bits) * table_row_bytes(width, bits) if bits < 8 else 0


def _decode_bytes(codes: IntCodes, width: int, depth: int) -> int:
    """Decoding one span: its values beside the spread codes, or beside the scales."""
    inputs = min(depth, codes.groups_per_span(width) * codes.group)
    values, scales = 4 * inputs * width, 4 * inputs // codes.group * width
    return values + max(_spread_bytes(codes.held_bits, width, inputs), scales * (2 if codes.affine else 1))


def _dot_bytes(codes: IntCodes, width: int, depth: int, tokens: int) -> int:
    """Multiplying through the codes of one span: as above with sums per group, and inputs repeated per code of a byte."""
    inputs = min(depth, codes.groups_per_span(width) * codes.group)
    groups = inputs // codes.group
    sums, scales = 4 * tokens * groups * width, 4 * groups * width
    spread = _spread_bytes(codes.held_bits, width, inputs) + 4 * tokens * inputs * (8 // codes.held_bits)
    sum_of_inputs = 4 * tokens * groups
    spans = -(-depth // inputs)
    partial = 4 * tokens * width * min(2, spans - 1)  # the sum so far is the result; the last addend lives on in functools.reduce
    return partial + sums + max(spread, scales * (2 if codes.affine else 1) + sum_of_inputs)
