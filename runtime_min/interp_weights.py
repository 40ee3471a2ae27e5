"""Weights as the interpreter reads them: vectors whole, matrices a few rows at a time, so that no tensor is ever held decoded.

In: `Weights`, or plain arrays by name. Out: arrays of the dtype asked for, at most BLOCK bytes of a matrix at a time (one row at least).
Refused (InputError): ids outside an embedding's table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .interp_ops import require_ids
from .weights import Weights

BLOCK = 16 << 20

Given = Weights | Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Streamed:
    """`given` as arrays of `dtype`."""

    given: Given
    dtype: Any

    def whole(self, name: str) -> np.ndarray:
        """The tensor in its shape."""
        return np.asarray(self.given[name] if isinstance(self.given, Mapping) else self.given.f32(name), self.dtype)

    def rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows `ids` [...] of a matrix, [..., cols]."""
        require_ids(ids, self._shape(name)[0])
        return self._block(name, ids.reshape(-1)).reshape(*ids.shape, -1)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """x [..., cols] times the matrix [rows, cols] transposed."""
        y = np.empty((*x.shape[:-1], self._shape(name)[0]), self.dtype)
        for rows in self._steps(name):
            y[..., rows] = x @ self._block(name, rows).T
        return y

    def _steps(self, name: str) -> Iterator[slice]:
        rows, cols = self._shape(name)
        step = max(1, BLOCK // (cols * np.dtype(self.dtype).itemsize))
        return (slice(r, min(r + step, rows)) for r in range(0, rows, step))

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.given[name].shape if isinstance(self.given, Mapping) else self.given.shape(name)

    def _block(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        block = self.given[name][rows] if isinstance(self.given, Mapping) else self.given.block(name, rows)
        return np.asarray(block, self.dtype)
