"""Matrices that stay in the mapped files of a checkpoint: decoded a few rows at a time, at every use.

In: weights of a source, the names of the matrices [rows, cols] that read one input. Out: as of dense float32 matrices, up to float32 rounding.
What is decoded at a time is bounded (targets.SCRATCH) and reused: a thread has one scratch for all matrices.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ....artifacts.formats import Format, get_format
from ...targets import SCRATCH
from ...weights import Weights
from .linear_stored import TYPES, product


class StreamedMatrix:
    """Float matrices in a checkpoint."""

    def __init__(self, weights: Weights, names: Sequence[str]) -> None:
        self._weights, self._names = weights, tuple(names)
        self._splits = [weights.shape(name)[0] for name in names]

    def __call__(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """x f32[..., cols] -> f32[..., rows]; a tuple, one per matrix, when there are several."""
        flat = x.reshape(-1, x.shape[-1])
        y = flat.new_zeros(len(flat), sum(self._splits))
        first = 0
        for name, rows in zip(self._names, self._splits, strict=True):
            for row, cols, w in _pieces(self._weights, name):
                y[:, first + row : first + row + len(w)] += product(flat[:, cols], w)
            first += rows
        y = y.view(*x.shape[:-1], -1)
        return y if len(self._splits) == 1 else y.split(self._splits, -1)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the only matrix: i64[n] -> f32[n, cols]."""
        (name,) = self._names
        return torch.from_numpy(self._weights.block(name, ids.numpy()))


class _Scratch(threading.local):
    """One thread's bytes as stored and decoded."""

    stored = torch.empty(0, dtype=torch.uint8)
    values = torch.empty(0)

    def decode(self, fmt: Format, raw: np.ndarray, cols: int) -> Tensor:
        """u8[rows, row_bytes] -> f32[rows, cols], valid until the next call."""
        kind = TYPES.get(fmt.spec.parts[0].type) if fmt.family == "float" else None
        if kind is None:
            return torch.from_numpy(fmt.decode(raw, cols))
        if len(self.stored) < raw.size:
            self.stored = torch.empty(raw.size, dtype=torch.uint8)
        if len(self.values) < len(raw) * cols:
            self.values = torch.empty(len(raw) * cols)
        stored, values = self.stored[: raw.size], self.values[: len(raw) * cols]
        stored.numpy().reshape(raw.shape)[:] = raw  # torch takes neither read-only nor unaligned arrays
        return values.copy_(stored.view(kind)).view(-1, cols)


_SCRATCH = _Scratch()


def _pieces(weights: Weights, name: str) -> Iterator[tuple[int, slice, Tensor]]:
    """(first row, columns, f32[n, columns]) of pieces that tile the matrix."""
    fmt = get_format(weights.encoding(name))
    for slab in weights.slabs(name):
        width = slab.col1 - slab.col0
        step = max(1, SCRATCH // (4 * width))
        for r in range(0, len(slab.raw), step):
            yield slab.row0 + r, slice(slab.col0, slab.col1), _SCRATCH.decode(fmt, slab.raw[r : r + step], width)
