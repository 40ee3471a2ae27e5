"""Codes of 1, 2, 4 or 8 bits packed so that torch's kernel for byte-coded embedding bags (FBGEMM) multiplies by them.

A bag sums table rows under weights. With the matrix transposed (a table row = one input, a column = one output) and the activations as
weights, a bag over a quantisation group is the group's dot product with all outputs at once. The kernel is float32 inside and out, has the
same bits under any number of threads, and reads `byte * scale + bias` with the two floats at the end of each table row: here 1 and -centre.

Codes narrower than a byte share one: with n = width bits / 8 bytes in a row, byte j holds output j in its lowest `bits` bits, output n + j
in the next, and so on by position. One AND with a mask row per position p leaves 2^(bits p) code of each byte, and turns the tail's 1.0 into
2^(-bits p) - the exponent bits of such powers are a subset of those of 1.0 - so spreading the codes over bytes needs no shift and is exact.
"""

from __future__ import annotations

import functools
import struct

import numpy as np
import torch
from torch import Tensor

from ...targets import TAIL, table_row_bytes
from .memory import Zeros, ordinary

_KERNEL = torch.ops.quantized.embedding_bag_byte_rowwise_offsets.default
_RUN = 8  # inputs that one inner loop of the AND covers; divides every group


class CodeTable:
    """Codes of `bits` bits of `width` outputs and `depth` inputs: u8[depth, width bits / 8 + TAIL]."""

    def __init__(self, bits: int, width: int, depth: int, centre: float, zeros: Zeros = ordinary) -> None:
        self.bits = bits
        self.per_position = width * bits // 8
        self.table = zeros((depth, table_row_bytes(width, bits)), torch.uint8)
        self.table[:, -TAIL:] = torch.tensor(list(struct.pack("<ff", 1.0, -centre)), dtype=torch.uint8)

    def fill(self, row: int, col: int, codes: np.ndarray) -> None:
        """Place codes u8[rows, cols] at (row, col)."""
        n, stop = self.per_position, row + len(codes)
        table = self.table.numpy()[col : col + codes.shape[1]]
        for p in range(row // n, -(-stop // n)):
            a, b = max(row, p * n), min(stop, (p + 1) * n)
            table[:, a - p * n : b - p * n] |= (codes[a - row : b - row] << (p * self.bits)).T

    def codes(self, ids: Tensor) -> Tensor:
        """Codes of outputs `ids` i64[n]: u8[depth, n]."""
        shifts = (ids // self.per_position * self.bits).to(torch.uint8)
        return (self.table.gather(1, (ids % self.per_position).expand(len(self.table), -1)) >> shifts) & (2**self.bits - 1)


class CodeSpan:
    """The part of a table for inputs [start, stop), as views that the kernel takes."""

    def __init__(self, codes: CodeTable, start: int, stop: int, group: int) -> None:
        self.positions = 8 // codes.bits
        self._bits, self._group, self._depth = codes.bits, group, stop - start
        self._table = codes.table[start:stop]
        self._row_bytes = self._table.shape[1]
        self._runs = self._table.view(1, -1, _RUN * self._row_bytes)
        self._mask = _mask(codes.bits, codes.per_position) if codes.bits < 8 else None

    def sums(self, x: Tensor) -> Tensor:
        """Dot products per group with x f32[T, depth]: f32[T positions groups, bytes]."""
        rows, starts = _dot_route(self._bits, self._depth, self._group, x.shape[0])
        weights = torch.cat([x] * self.positions, 1) if self.positions > 1 else x
        return _bag(self._spread(), rows, starts, weights.reshape(-1))

    def values(self) -> Tensor:
        """Codes minus the centre: [depth, width] as f32[depth positions, bytes]."""
        rows, starts = _decode_route(self._bits, self._depth)
        return _bag(self._spread(), rows, starts, None)

    def _spread(self) -> Tensor:
        """The table with one code per byte, rows in the order (position, input); a thread then reads what it wrote."""
        if self._mask is None:
            return self._table
        return torch.bitwise_and(self._runs, self._mask).view(-1, self._row_bytes)


def _bag(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    return _KERNEL(table, rows, starts, False, 0, False, weights, None, False)


@functools.lru_cache(maxsize=64)
def _mask(bits: int, codes: int) -> Tensor:
    """u8[positions, 1, _RUN (codes + TAIL)]: position p keeps its bits of each byte and 2^(-bits p) of the tail's 1.0."""
    masks = []
    for position in range(8 // bits):
        keep = bytes([(2**bits - 1) << (bits * position)])
        masks.append((keep * codes + struct.pack("<f", 2.0 ** (-bits * position)) + b"\xff" * 4) * _RUN)
    return torch.frombuffer(bytearray(b"".join(masks)), dtype=torch.uint8).view(len(masks), 1, -1)


@functools.lru_cache(maxsize=64)
def _dot_route(bits: int, depth: int, group: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Bags in the order (token, position, group): table rows and bag starts; i32."""
    rows = torch.arange(8 // bits * depth, dtype=torch.int32).repeat(tokens)
    return rows, torch.arange(0, len(rows), group, dtype=torch.int32)


@functools.lru_cache(maxsize=64)
def _decode_route(bits: int, depth: int) -> tuple[Tensor, Tensor]:
    """One bag per (input, position): table rows and bag starts; i32."""
    starts = torch.arange(8 // bits * depth, dtype=torch.int32)
    return starts.view(-1, depth).t().reshape(-1), starts
