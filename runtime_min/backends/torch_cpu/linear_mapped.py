"""Matrices of bf16 or f16 that stay in the mapped pages of an artifact: as StoredMatrix, without a copy.

In: slabs whose bytes are mapped (or held by somebody else); they are kept and never written to. The same rows are decoded at a time, so results
have the same bits, and the pages' storages have the same bytes.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from ....artifacts.formats import Format
from ....schemas.encoding import Slab
from ...targets import stored_type
from .linear_stored import TYPES, StoredMatrix

MAPPED = ("bf16", "f16")  # element types; float32 is multiplied as it is stored, which pages cut apart are not


class MappedMatrix(StoredMatrix):
    """Weights [rows, cols] as the slabs hold them."""

    def __init__(self, fmt: Format, rows: int, cols: int) -> None:
        self._format, self._shape = fmt, (rows, cols)
        self._parts: list[tuple[int, slice, Tensor]] = []  # first row, columns, values
        self._held: list[np.ndarray] = []

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for _, _, values in self._parts)

    def fill(self, slab: Slab, first_row: int) -> None:
        """Take a slab whose rows count from `first_row`."""
        raw = np.ascontiguousarray(slab.raw)
        self._held.append(raw)
        values = _as_tensor(raw).view(TYPES[stored_type(self._format)]).view(len(raw), -1)
        self._parts.append((first_row + slab.row0, slice(slab.col0, slab.col1), values))

    def rows(self, ids: Tensor) -> Tensor:
        """i64[n] -> f32[n, cols]."""
        out = torch.empty(len(ids), self._shape[1])
        for first, cols, values in self._parts:
            here = ((ids >= first) & (ids < first + len(values))).nonzero()[:, 0]
            if len(here):
                out[here, cols] = values[ids[here] - first].float()
        return out

    def _decode(self, index: slice | Tensor) -> Tensor:
        assert isinstance(index, slice)
        start, stop = index.start, min(index.stop, self._shape[0])
        out = torch.empty(stop - start, self._shape[1])
        for first, cols, values in self._parts:
            a, b = max(start, first), min(stop, first + len(values))
            if a < b:
                out[a - start : b - start, cols].copy_(values[a - first : b - first])
        return out


def _as_tensor(raw: np.ndarray) -> Tensor:
    """u8 bytes as a tensor over the same memory; torch warns of read-only arrays, so it is shown the address. The caller keeps `raw`."""
    return torch.frombuffer((ctypes.c_uint8 * raw.size).from_address(raw.ctypes.data), dtype=torch.uint8)
