"""What a backend must offer: six methods. `Array` is the backend's own array type (numpy, torch); the engine never looks inside one.

A backend receives ops of the table; the engine does the rest (order, liveness, KV blocks, sampling).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..schemas.graph import Param
from .weights import Weights

Array = Any


class Backend(Protocol):
    """One way to execute graphs. Constructing it may raise BackendError when a device, driver or extra is missing."""

    name: str

    def load(self, params: Sequence[Param], weights: Weights) -> Array:
        """Make weights resident. One matrix or vector; or several matrices that read the same input, whose `linear` then returns a tuple."""
        ...

    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        """A function of the op's inputs. `attention` takes one more keyword, `key_positions` i32[B, S]."""
        ...

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Array:
        """A zeroed array for KV storage, dtype "f32", "bf16" or "f16"."""
        ...

    def put(self, array: np.ndarray) -> Array:
        """An input array (ids, positions, constants) on the device."""
        ...

    def read(self, x: Array) -> np.ndarray:
        """A value back as numpy, float32 for reals."""
        ...

    def close(self) -> None:
        """Release what `load` and `alloc` made."""
        ...
