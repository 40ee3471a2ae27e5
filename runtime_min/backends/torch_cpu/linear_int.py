"""Integer formats of any width, multiplied through torch's kernel for byte-coded embedding bags (FBGEMM): float32 in and out, exact codes.

A bag sums table rows under weights. With the matrix transposed (a table row = one input, a column = one output) and the activations as
weights, a bag over a quantisation group is the group's dot product with all outputs at once; its scale then applies once per group
instead of once per weight. The kernel reads `byte * scale + bias` with the two floats at the end of each table row, here 1 and -centre.

Codes narrower than a byte share one: of a plane of w bits, byte j holds output j in its low w bits, output j + width w / 8 in the
next, and so on. One AND with a mask row per position p leaves 2^(w p) * code, and turns the 1 in the row's tail into 2^(-w p): the
exponent bits of such powers are subsets of those of 1.0. So spread codes are exact and need no shift. Layout and sizes: targets.py.

Many tokens decode a few groups at a time into float32 and use one matrix product. Refused: InputError for a slab that cuts a group.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ....artifacts.formats import Format
from ....schemas.encoding import Slab
from ....schemas.errors import InputError
from ...targets import BLOCK_ROWS, FEW_TOKENS, SCRATCH, TAIL, TOKEN_TILE, IntCodes, block_widths, plane_bytes

_RUN = 8  # table rows that one inner loop of the AND covers; divides every group
_ALIGN = 64  # bytes; the matrix product's rounding may depend on alignment


class IntMatrix:
    """Weights [rows, cols] as integer codes, in blocks of rows."""

    def __init__(self, fmt: Format, codes: IntCodes, rows: int, cols: int) -> None:
        self._format, self._codes, self._shape = fmt, codes, (rows, cols)
        self._groups = codes.groups(cols)
        self._blocks = [_Block(codes, self._groups, width) for width in block_widths(rows)]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def fill(self, slab: Slab, first_row: int) -> None:
        """Place a slab whose rows count from `first_row`."""
        group = self._codes.group
        if slab.col0 % group or (slab.col1 % group and slab.col1 != self._shape[1]):
            raise InputError(f"{self._format.name}: a slab of columns {slab.col0}..{slab.col1} cuts a group of {group}")
        parts = self._format.unpack(slab.raw, slab.col1 - slab.col0)
        row, stop = first_row + slab.row0, first_row + slab.row1
        while row < stop:
            number, at = divmod(row, BLOCK_ROWS)
            count = min(BLOCK_ROWS - at, stop - row)
            start = row - first_row - slab.row0
            self._blocks[number].fill(at, slab.col0, {name: part[start : start + count] for name, part in parts.items()})
            row += count

    def multiply(self, x: Tensor) -> Tensor:
        """f32[M, cols] -> f32[M, rows]."""
        tokens, cols = x.shape
        few = tokens <= FEW_TOKENS
        extra = 0 if few else -tokens % TOKEN_TILE
        if extra or cols % self._codes.group:
            x = torch.nn.functional.pad(x, (0, -cols % self._codes.group, 0, extra))
        elif not few and x.data_ptr() % _ALIGN:
            x = x.clone()
        y = self._few(x) if few else self._many(x)
        return y[:tokens, : self._shape[0]]

    def rows(self, ids: Tensor) -> Tensor:
        """i64[n] -> f32[n, cols]."""
        out = torch.empty(len(ids), self._shape[1])
        numbers = ids // BLOCK_ROWS
        for number in set(numbers.tolist()):
            where = numbers == number
            out[where] = self._blocks[number].rows(ids[where] - number * BLOCK_ROWS, self._shape[1])
        return out

    def _few(self, x: Tensor) -> Tensor:
        outputs = []
        for block in self._blocks:
            parts = (block.dot(x, g0, g1) for g0, g1 in self._spans(block.width))
            outputs.append(functools.reduce(Tensor.add_, parts))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def _many(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), sum(block.width for block in self._blocks))
        for n, block in enumerate(self._blocks):
            y = out[:, n * BLOCK_ROWS : n * BLOCK_ROWS + block.width]
            for g0, g1 in self._spans(4 * block.width):
                y.addmm_(x[:, g0 * self._codes.group : g1 * self._codes.group], block.decode(g0, g1))
        return out

    def _spans(self, row_bytes: int) -> Iterator[tuple[int, int]]:
        step = self._codes.groups_within(SCRATCH, row_bytes)
        return ((g, min(g + step, self._groups)) for g in range(0, self._groups, step))


class _Block:
    """`width` outputs: planes of codes (high bits first), scale and min f16[groups, width]."""

    def __init__(self, codes: IntCodes, groups: int, width: int) -> None:
        self.width = width
        self._codes = codes
        self._shifts = [sum(codes.planes[i + 1 :]) for i in range(len(codes.planes))]
        self._planes = [
            _Plane(w, width, groups * codes.group, codes.centre / 2**shift if i == 0 else 0.0)
            for i, (w, shift) in enumerate(zip(codes.planes, self._shifts, strict=True))
        ]
        self._scale = torch.zeros(groups, width, dtype=torch.float16)
        self._min = torch.zeros(groups, width, dtype=torch.float16) if codes.affine else None

    @property
    def nbytes(self) -> int:
        return sum(p.table.nbytes for p in self._planes) + self._scale.nbytes * (2 if self._codes.affine else 1)

    def fill(self, row: int, col: int, parts: dict[str, np.ndarray]) -> None:
        """Place codes [rows, cols], scale and min [rows, groups] at (row, col)."""
        for plane, shift in zip(self._planes, self._shifts, strict=True):
            plane.fill(row, col, (parts["codes"] >> shift) & (2**plane.bits - 1))
        group = col // self._codes.group
        for name, held in (("scale", self._scale), ("min", self._min)):
            if held is not None:
                rows, groups = parts[name].shape
                held.numpy()[group : group + groups, row : row + rows] = parts[name].T

    def dot(self, x: Tensor, g0: int, g1: int) -> Tensor:
        """Product of x [T, depth] with groups [g0, g1), through the codes: f32[T, width]."""
        group, tokens = self._codes.group, len(x)
        x = x[:, g0 * group : g1 * group]
        sums = self._combine(plane.sums(x, g0 * group, group).view(tokens, -1, self.width) for plane in self._planes)
        scale, offset = self._scales(g0, g1)
        sums.mul_(scale)
        if offset is not None:
            sums.addcmul_(x.reshape(tokens, g1 - g0, group).sum(2, keepdim=True), offset)
        return sums.sum(1)

    def decode(self, g0: int, g1: int) -> Tensor:
        """Weights of groups [g0, g1), transposed: f32[(g1 - g0) group, width]."""
        group = self._codes.group
        values = self._combine(plane.values(g0 * group, g1 * group).view(-1, group, self.width) for plane in self._planes)
        scale, offset = self._scales(g0, g1)
        values.mul_(scale[:, None])
        if offset is not None:
            values.add_(offset[:, None])
        return values.view(-1, self.width)

    def rows(self, ids: Tensor, cols: int) -> Tensor:
        """Rows of the block as the format decodes them: i64[n] -> f32[n, cols]."""
        codes = functools.reduce(torch.bitwise_or, (p.codes(ids) << s for p, s in zip(self._planes, self._shifts, strict=True)))
        values = codes.float().view(-1, self._codes.group, len(ids))
        if self._min is None:
            values.sub_(self._codes.centre)
        values.mul_(self._scale[:, ids].float()[:, None])
        if self._min is not None:
            values.add_(self._min[:, ids].float()[:, None])
        return values.view(-1, len(ids))[:cols].t().contiguous()

    def _combine(self, parts: Iterator[Tensor]) -> Tensor:
        total = next(parts)
        shifts = iter(self._shifts[:-1])
        for part, shift, lower in zip(parts, shifts, self._shifts[1:], strict=True):
            total.mul_(2.0 ** (shift - lower)).add_(part)
        return total

    def _scales(self, g0: int, g1: int) -> tuple[Tensor, Tensor | None]:
        """Scale, and for affine formats the value of the centre code, f32[groups, width]."""
        scale = self._scale[g0:g1].float()
        return scale, None if self._min is None else self._min[g0:g1].float().add_(scale, alpha=self._codes.centre)


class _Plane:
    """`bits` bits of the codes: u8[depth, width bits / 8 + TAIL]."""

    def __init__(self, bits: int, width: int, depth: int, centre: float) -> None:
        self.bits = bits
        self._width = width
        self.table = torch.zeros(depth, plane_bytes(width, bits), dtype=torch.uint8)
        self.table[:, -TAIL:] = torch.tensor(list(struct.pack("<ff", 1.0, -centre)), dtype=torch.uint8)

    def fill(self, row: int, col: int, codes: np.ndarray) -> None:
        """Place codes [rows, cols] of this plane at (row, col)."""
        per_position = self._width * self.bits // 8
        table, stop = self.table.numpy()[col : col + codes.shape[1]], row + len(codes)
        for position in range(row // per_position, -(-stop // per_position)):
            a, b = max(row, position * per_position), min(stop, (position + 1) * per_position)
            table[:, a - position * per_position : b - position * per_position] |= (codes[a - row : b - row] << (position * self.bits)).T

    def sums(self, x: Tensor, k0: int, group: int) -> Tensor:
        """Dot products per group of x [T, k] with inputs [k0, k0 + k): f32[T * groups * positions, bytes] = [T, groups, width]."""
        tokens, depth = x.shape
        inputs, rows, starts = _dot_route(self.bits, depth, group, tokens)
        weights = x.reshape(-1) if self.bits == 8 else x.index_select(1, inputs).view(-1)
        return _bag(self._spread(k0, k0 + depth), rows, starts, weights)

    def values(self, k0: int, k1: int) -> Tensor:
        """Codes of inputs [k0, k1) as float32 minus the centre: f32[k * positions, bytes] = [k, width]."""
        rows, starts = _decode_route(self.bits, k1 - k0)
        return _bag(self._spread(k0, k1), rows, starts, None)

    def codes(self, ids: Tensor) -> Tensor:
        """Codes of outputs `ids`: u8[depth, n]."""
        per_position = self._width * self.bits // 8
        shifts = (ids // per_position * self.bits).to(torch.uint8)
        return (self.table.index_select(1, ids % per_position) >> shifts) & (2**self.bits - 1)

    def _spread(self, k0: int, k1: int) -> Tensor:
        """A table whose rows hold one code per byte; its order is that of _row_numbers."""
        table = self.table[k0:k1]
        if self.bits == 8:
            return table
        width = table.shape[1]
        runs = table.view(-1, 1, _RUN * width)
        return torch.bitwise_and(runs, _mask(self.bits, width - TAIL)).view(-1, width)


def _bag(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    return torch.ops.quantized.embedding_bag_byte_rowwise_offsets(table, rows, starts, False, 0, False, weights, None, False)


@functools.lru_cache(maxsize=64)
def _mask(bits: int, codes: int) -> Tensor:
    """u8[1, positions, _RUN (codes + TAIL)]: position p keeps its bits of each byte and 2^(-bits p) of the tail's 1.0."""
    masks = []
    for position in range(8 // bits):
        keep = bytes([(2**bits - 1) << (bits * position)])
        masks.append((keep * codes + struct.pack("<f", 2.0 ** (-bits * position)) + b"\xff" * 4) * _RUN)
    return torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8).view(1, len(masks), -1)


def _row_numbers(bits: int, depth: int) -> Tensor:
    """i64[depth, positions]: where _spread puts input k at position p. Runs of inputs are outermost, so that threads share no cache lines."""
    positions = 8 // bits
    k = torch.arange(depth)[:, None]
    return k if bits == 8 else k // _RUN * _RUN * positions + torch.arange(positions) * _RUN + k % _RUN


@functools.lru_cache(maxsize=64)
def _dot_route(bits: int, depth: int, group: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bags in the order (token, group, position): input of each weight of one token, table rows, bag starts; i32."""
    numbers = _row_numbers(bits, depth)
    rows = numbers.view(-1, group, numbers.shape[1]).transpose(1, 2).reshape(-1)
    inputs = torch.arange(depth).view(-1, 1, group).expand(-1, numbers.shape[1], -1).reshape(-1)
    return inputs.int(), rows.repeat(tokens).int(), torch.arange(0, tokens * len(rows), group, dtype=torch.int32)


@functools.lru_cache(maxsize=64)
def _decode_route(bits: int, depth: int) -> tuple[Tensor, Tensor]:
    """One bag per (input, position): table rows and bag starts; i32."""
    rows = _row_numbers(bits, depth).reshape(-1).int()
    return rows, torch.arange(len(rows), dtype=torch.int32)
