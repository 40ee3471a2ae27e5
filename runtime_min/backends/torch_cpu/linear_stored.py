"""Matrices held as stored (bf16, f16, f32, fp8 with a scale per row of each slab): decoded a few rows at a time, then multiplied.

oneDNN multiplies them because its float32 product has the same bits under any number of threads, which MKL's has not at every shape.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ....artifacts.formats import Format
from ....schemas.encoding import Slab
from ...targets import SCRATCH, stored_type
from .memory import Zeros, ordinary

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn}


class StoredMatrix:
    """Weights [rows, cols] of a format without integer codes."""

    def __init__(self, fmt: Format, rows: int, cols: int, zeros: Zeros = ordinary) -> None:
        self._format, self._zeros, self._shape = fmt, zeros, (rows, cols)
        self._values = zeros((rows, cols), TYPES[stored_type(fmt)])
        self._scales: dict[tuple[int, int], Tensor] = {}  # per range of columns f32[rows, 1]

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + sum(scale.nbytes for scale in self._scales.values())

    def fill(self, slab: Slab, first_row: int) -> None:
        """Place a slab whose rows count from `first_row`."""
        parts = self._format.unpack(slab.raw, slab.col1 - slab.col0)
        place = slice(first_row + slab.row0, first_row + slab.row1)
        wide, *scale = (parts[part.name] for part in self._format.spec.parts)
        _bits(self._values)[place, slab.col0 : slab.col1] = wide.view(f"u{wide.itemsize}")
        if scale:
            cols = (slab.col0, slab.col1)
            if cols not in self._scales:
                self._scales[cols] = self._zeros((len(self._values), 1), torch.float32)
            self._scales[cols].numpy()[place] = scale[0]

    def multiply(self, x: Tensor) -> Tensor:
        """f32[M, cols] -> f32[M, rows]."""
        rows, cols = self._shape
        step = rows if stored_type(self._format) == "f32" else max(1, SCRATCH // (4 * cols))
        parts = [product(x, self._decode(slice(r, r + step))) for r in range(0, rows, step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def rows(self, ids: Tensor) -> Tensor:
        """i64[n] -> f32[n, cols]."""
        return self._decode(ids)

    def _decode(self, index: slice | Tensor) -> Tensor:
        values = self._values.view(torch.uint8)[index].view(self._values.dtype) if self._values.itemsize == 1 else self._values[index]
        values = values.float()
        for (start, stop), scale in self._scales.items():
            values[:, start:stop] *= scale[index]
        return values


def _bits(values: Tensor) -> np.ndarray:
    kinds = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
    return values.view(kinds[values.itemsize]).numpy()


def product(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] times w [N, K] transposed."""
    if len(x) == 1:
        return torch.mv(w, x[0])[None]
    if not torch.backends.mkldnn.is_available():
        return torch.nn.functional.linear(x, w)
    return torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
