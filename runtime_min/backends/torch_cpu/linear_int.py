"""Integer formats: tables of codes (pack_codes.py), scales as stored, blocks of rows (targets.py has layout and sizes).

Few tokens multiply through the codes, where a scale applies once per group instead of once per weight. Many tokens decode a span of
groups into float32 and use one matrix product, whose bits don't depend on threads at whole tiles and aligned addresses (tested: MKL).
Refused: InputError for a slab that cuts a group.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ....artifacts.formats import Format
from ....schemas.encoding import Slab
from ....schemas.errors import InputError
from ...targets import BLOCK_ROWS, FEW_TOKENS, TOKEN_TILE, IntCodes, block_widths
from .memory import Zeros, ordinary
from .pack_codes import CodeSpan, CodeTable

_ALIGN = 64  # bytes


class IntMatrix:
    """Weights [rows, cols] as integer codes."""

    def __init__(self, fmt: Format, codes: IntCodes, rows: int, cols: int, zeros: Zeros = ordinary) -> None:
        self._format, self._codes = fmt, codes
        self._rows, self._cols = rows, cols
        self._blocks = [_Block(codes, codes.groups(cols), width, zeros) for width in block_widths(rows)]
        self._width = sum(block.width for block in self._blocks)
        self._padding = codes.groups(cols) * codes.group - cols

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def fill(self, slab: Slab, first_row: int) -> None:
        """Place a slab whose rows count from `first_row`."""
        group = self._codes.group
        if slab.col0 % group or (slab.col1 % group and slab.col1 != self._cols):
            raise InputError(f"{self._format.name}: a slab of columns {slab.col0}..{slab.col1} cuts a group of {group}")
        parts = self._format.unpack(slab.raw, slab.col1 - slab.col0)
        done, rows = 0, slab.row1 - slab.row0
        while done < rows:
            number, row = divmod(first_row + slab.row0 + done, BLOCK_ROWS)
            stop = min(rows, done + BLOCK_ROWS - row)
            self._blocks[number].fill(row, slab.col0, {name: part[done:stop] for name, part in parts.items()})
            done = stop

    def multiply(self, x: Tensor) -> Tensor:
        """f32[M, cols] -> f32[M, rows]."""
        tokens = x.shape[0]
        if tokens <= FEW_TOKENS:
            y = self._few(torch.nn.functional.pad(x, (0, self._padding)) if self._padding else x)
        else:
            y = self._many(x)
        return y if y.shape[0] == tokens and self._width == self._rows else y[:tokens, : self._rows]

    def rows(self, ids: Tensor) -> Tensor:
        """i64[n] -> f32[n, cols]."""
        numbers = ids // BLOCK_ROWS
        used = set(numbers.tolist())
        if len(used) == 1:
            return self._rows_of(used.pop(), ids)
        out = torch.empty(len(ids), self._cols)
        for number in used:
            where = numbers == number
            out[where] = self._rows_of(number, ids[where])
        return out

    def _rows_of(self, number: int, ids: Tensor) -> Tensor:
        return self._blocks[number].rows(ids - number * BLOCK_ROWS)[:, : self._cols].contiguous()

    def _few(self, x: Tensor) -> Tensor:
        parts = [block.dot(x) for block in self._blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _many(self, x: Tensor) -> Tensor:
        extra = -len(x) % TOKEN_TILE
        if extra or self._padding:
            x = torch.nn.functional.pad(x, (0, self._padding, 0, extra))
        elif x.data_ptr() % _ALIGN:
            x = x.clone()
        y = x.new_zeros(len(x), self._width)
        for n, block in enumerate(self._blocks):
            block.add_product(x, y[:, n * BLOCK_ROWS : n * BLOCK_ROWS + block.width])
        return y


class _Block:
    """`width` outputs: a table of codes, scale and min f16[groups, width]."""

    def __init__(self, codes: IntCodes, groups: int, width: int, zeros: Zeros) -> None:
        self.width = width
        self._codes = codes
        self._table = CodeTable(codes.held_bits, width, groups * codes.group, codes.centre, zeros)
        self._scale = zeros((groups, width), torch.float16)
        self._min = zeros((groups, width), torch.float16) if codes.affine else None
        step = codes.groups_per_span(width)
        self._spans = [self._span(g, min(g + step, groups)) for g in range(0, groups, step)]

    @property
    def nbytes(self) -> int:
        return self._table.table.nbytes + self._scale.nbytes + (0 if self._min is None else self._min.nbytes)

    def fill(self, row: int, col: int, parts: dict[str, np.ndarray]) -> None:
        """Place codes [rows, cols], scale and min [rows, groups] at (row, col)."""
        self._table.fill(row, col, parts["codes"])
        group = col // self._codes.group
        for name, held in (("scale", self._scale), ("min", self._min)):
            if held is not None:
                rows, groups = parts[name].shape
                held.numpy()[group : group + groups, row : row + rows] = parts[name].T

    def dot(self, x: Tensor) -> Tensor:
        """x f32[T, depth] -> f32[T, width], through the codes."""
        if len(self._spans) == 1:
            return self._spans[0].dot(x)
        return functools.reduce(Tensor.add_, (span.dot(x[:, span.start : span.stop]) for span in self._spans))

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """y f32[M, width] += x f32[M, depth] times the decoded weights."""
        for span in self._spans:
            y.addmm_(x[:, span.start : span.stop], span.decode())

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the block as the format decodes them: i64[n] -> f32[n, depth]."""
        values = self._table.codes(ids).float().view(-1, self._codes.group, len(ids))
        if self._min is None:
            values.sub_(self._codes.centre)
        values.mul_(self._scale[:, ids].float()[:, None])
        if self._min is not None:
            values.add_(self._min[:, ids].float()[:, None])
        return values.view(-1, len(ids)).t()

    def _span(self, g0: int, g1: int) -> _Span:
        group = self._codes.group
        span = CodeSpan(self._table, g0 * group, g1 * group, group)
        return _Span(self._codes, span, self._scale[g0:g1], None if self._min is None else self._min[g0:g1], g0 * group)


class _Span:
    """Inputs [start, stop) of a block: whole groups, few enough to be decoded at a time."""

    def __init__(self, codes: IntCodes, span: CodeSpan, scale: Tensor, low: Tensor | None, start: int) -> None:
        self.start, self.stop = start, start + len(scale) * codes.group
        self._codes, self._span, self._scale, self._min = codes, span, scale, low
        self._groups, self._width = scale.shape
        self._scale_of_sums = scale.view(self._groups, span.positions, -1).transpose(0, 1)  # [positions, groups, bytes]

    def dot(self, x: Tensor) -> Tensor:
        """x f32[T, stop - start] -> f32[T, width]."""
        scale = self._scale_of_sums
        total = self._span.sums(x).view(-1, *scale.shape).mul_(scale).sum(2).view(-1, self._width)
        if self._min is not None:
            inputs = x.reshape(-1, self._groups, self._codes.group).sum(2)
            total.add_((inputs[:, :, None] * self._centre_value(self._min, self._scale.float())).sum(1))
        return total

    def decode(self) -> Tensor:
        """Weights, transposed: f32[stop - start, width]."""
        values = self._span.values().view(self._groups, -1, self._width)
        scale = self._scale.float()
        values.mul_(scale[:, None])
        if self._min is not None:
            values.add_(self._centre_value(self._min, scale)[:, None])
        return values.view(-1, self._width)

    def _centre_value(self, low: Tensor, scale: Tensor) -> Tensor:
        """What code `centre` decodes to, f32[groups, width]: sums of codes around the centre are small, so little cancels."""
        return low.float().add_(scale, alpha=self._codes.centre)
