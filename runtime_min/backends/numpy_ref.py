"""The interpreter as a backend (`--device interp`): slow, torch-free, and the meaning that other backends are compared with.

Weights stay as stored; matrices are decoded a few rows at a time, at each use (interp_weights.py). Values are `dtype`, float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...artifacts.formats.floats import bf16_to_f32, f32_to_bf16
from ...schemas.graph import Param
from ..interp import REFERENCE
from ..interp_weights import Streamed
from ..weights import Weights


@dataclass(frozen=True, slots=True)
class _Stored:
    """Params that are decoded when used."""

    names: tuple[str, ...]
    streamed: Streamed

    def whole(self) -> np.ndarray:
        """The only param."""
        (name,) = self.names
        return self.streamed.whole(name)

    def linear(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """x times each matrix transposed."""
        return tuple(self.streamed.linear(x, name) for name in self.names)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows of the only matrix."""
        (name,) = self.names
        return self.streamed.rows(name, ids)


class _Store:
    """KV storage [positions, heads, dim]; bf16 is held as bit patterns, float16 and float32 as themselves."""

    def __init__(self, shape: tuple[int, ...], kind: str, dtype: Any) -> None:
        self._kind, self._dtype = kind, dtype
        self._data = np.zeros(shape, {"f32": np.float32, "bf16": np.uint16, "f16": np.float16}[kind])

    def write(self, index: slice | np.ndarray, x: np.ndarray) -> None:
        """Store x [1, T, heads, dim] at flat positions."""
        x32 = x[0].astype(np.float32)
        self._data[index] = f32_to_bf16(x32) if self._kind == "bf16" else x32

    def read(self, index: slice | np.ndarray) -> np.ndarray:
        """[1, S, heads, dim] in the backend's dtype."""
        data = self._data[index]
        return (bf16_to_f32(data) if self._kind == "bf16" else data)[None].astype(self._dtype)


class NumpyBackend:
    """See module docstring; `dtype` np.float32 or np.float64."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.name = "interp"
        self._dtype = dtype

    def load(self, params: Sequence[Param], weights: Weights) -> _Stored:
        """Only remembers where the weights are."""
        return _Stored(tuple(p.name for p in params), Streamed(weights, self._dtype))

    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        """The reference function, results rounded to the backend's dtype."""
        return partial(_KERNELS.get(op, _run), REFERENCE[op], attrs, self._dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> _Store:
        """KV storage."""
        return _Store(shape, dtype, self._dtype)

    def put(self, array: np.ndarray) -> np.ndarray:
        """Arrays are used as they are."""
        return array

    def read(self, x: np.ndarray) -> np.ndarray:
        """As float32."""
        return x.astype(np.float32)

    def close(self) -> None:
        """Nothing is held."""


def _plain(x: Any) -> Any:
    return x.whole() if isinstance(x, _Stored) else x


def _run(fn: Callable[..., np.ndarray], attrs: dict[str, Any], dtype: Any, *args: Any, **extra: Any) -> np.ndarray:
    return fn([_plain(a) for a in args], attrs, **extra).astype(dtype)


def _embedding(fn: Callable[..., np.ndarray], attrs: dict[str, Any], dtype: Any, ids: np.ndarray, table: Any) -> np.ndarray:
    return table.rows(ids) if isinstance(table, _Stored) else _run(fn, attrs, dtype, ids, table)


def _linear(fn: Callable[..., np.ndarray], attrs: dict[str, Any], dtype: Any, x: np.ndarray, w: Any, *biases: Any) -> Any:
    """A tuple for several weights, an array for one, which may also be a computed value."""
    if not isinstance(w, _Stored):
        return _run(fn, attrs, dtype, x, w, *biases)
    given = [_plain(b) for b in biases] or [None] * len(w.names)
    outs = [y if b is None else (y + b).astype(dtype) for y, b in zip(w.linear(x), given, strict=True)]
    return tuple(outs) if len(outs) > 1 else outs[0]


_KERNELS = {"linear": _linear, "embedding": _embedding}
