"""Where a model's weights come from: what an artifact and a source checkpoint have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ..schemas.encoding import Slab


class Weights(Protocol):
    """Weights by canonical name. `kind` is "artifact" or "source"; `identity` tells two sets of weights apart (payload_root or a source digest)."""

    @property
    def kind(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def encoding(self, name: str) -> str:
        """The number format's name."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape, `[out, in]` for matrices."""
        ...

    def slabs(self, name: str) -> Iterator[Slab]:
        """The stored bytes, slab by slab, tiling the tensor (a vector is a matrix of one row)."""
        ...

    def f32(self, name: str) -> np.ndarray:
        """Decoded, float32, in the logical shape."""
        ...

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """Some rows (a range or indices) and a range of columns of the tensor as a matrix, decoded: a float32 array of its own."""
        ...
