"""Matrices as they stay in memory on a CPU, and the linear layer and row look-up on them.

In: slabs of one or more matrices [rows, cols] that read the same input and share a number format; float32 activations [..., cols].
Out: float32 [..., rows], equal to the product with the format's decoded weights up to float32 rounding, and bit-equal under any number
of threads. Decoded weights exist only in a bounded scratch (targets.SCRATCH).
Refused: InputError when the slabs don't cover the matrices or cut a group; BackendError for a format that this backend can't execute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor

from ....artifacts.formats import Format, get_format
from ....schemas.encoding import Slab
from ....schemas.errors import InputError
from ...targets import int_codes, stored_type
from .linear_int import IntMatrix
from .linear_mapped import MAPPED, MappedMatrix
from .linear_stored import StoredMatrix
from .memory import Spill, Zeros, ordinary


class _Matrix(Protocol):
    """All the rows of one load."""

    @property
    def nbytes(self) -> int: ...

    def fill(self, slab: Slab, first_row: int) -> None: ...

    def multiply(self, x: Tensor) -> Tensor: ...

    def rows(self, ids: Tensor) -> Tensor: ...


class PackedLinear:
    """One or more matrices of one format, held packed."""

    def __init__(self, matrix: _Matrix, splits: tuple[int, ...], cols: int) -> None:
        self.splits = splits
        self._rows = sum(splits)
        self.cols = cols
        self._matrix = matrix

    @classmethod
    def from_slabs(
        cls, format_name: str, shapes: Sequence[tuple[int, int]], slabs: Sequence[Iterable[Slab]], zeros: Zeros = ordinary
    ) -> PackedLinear:
        """Load matrices of `shapes`, `slabs` of each in any order, one slab at a time, into what `zeros` gives."""
        fmt = get_format(format_name)
        rows, cols = sum(shape[0] for shape in shapes), shapes[0][1]
        if any(shape[1] != cols for shape in shapes):
            raise InputError(f"matrices {list(shapes)} read one input, so they must have the same number of columns")
        codes = int_codes(fmt)
        matrix = IntMatrix(fmt, codes, rows, cols, zeros) if codes is not None else _stored(fmt, rows, cols, zeros)
        first = 0
        for shape, parts in zip(shapes, slabs, strict=True):
            covered = 0
            for slab in parts:
                _check_place(slab, shape)
                matrix.fill(slab, first)
                covered += (slab.row1 - slab.row0) * (slab.col1 - slab.col0)
            if covered != shape[0] * shape[1]:
                raise InputError(f"slabs hold {covered} weights of a matrix {list(shape)}, expected {shape[0] * shape[1]}")
            first += shape[0]
        return cls(matrix, tuple(shape[0] for shape in shapes), cols)

    @property
    def nbytes(self) -> int:
        """Resident bytes; equals targets.resident_bytes(format, sum of rows, cols, slabs side by side)."""
        return self._matrix.nbytes

    def __call__(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """x f32[..., cols] -> f32[..., rows]; a tuple, one per matrix, when several were loaded."""
        y = self._matrix.multiply(x.reshape(-1, self.cols)).view(*x.shape[:-1], self._rows)
        return y if len(self.splits) == 1 else y.split(self.splits, -1)

    def rows(self, ids: Tensor) -> Tensor:
        """Decoded rows, bit-equal to the format's decoding: ids i64[n] -> f32[n, cols]."""
        return self._matrix.rows(ids)


def _stored(fmt: Format, rows: int, cols: int, zeros: Zeros) -> StoredMatrix:
    """What is spilled needs no copy where the slabs lie in a file already."""
    return MappedMatrix(fmt, rows, cols) if isinstance(zeros, Spill) and stored_type(fmt) in MAPPED else StoredMatrix(fmt, rows, cols, zeros)


def _check_place(slab: Slab, shape: tuple[int, int]) -> None:
    if not (0 <= slab.row0 < slab.row1 <= shape[0] and 0 <= slab.col0 < slab.col1 <= shape[1] and len(slab.raw) == slab.row1 - slab.row0):
        place = f"rows {slab.row0}..{slab.row1}, columns {slab.col0}..{slab.col1}"
        raise InputError(f"a slab at {place} with {len(slab.raw)} rows is not part of a matrix {list(shape)}")
