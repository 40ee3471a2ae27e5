"""torch on the CPU (`--device cpu`): packed matrices as `PackedLinear` holds them, float32 activations.

A source checkpoint's matrices are held as dense float32 (it is the reference); an artifact's stay packed. With a `spill` folder nothing that
grows with the model is held in anonymous memory: packed matrices and KV lie in unnamed files there (memory.py; the same bits), a source's
matrices stay in the mapped checkpoint (linear_streamed.py). Raises BackendError when torch is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....schemas.errors import BackendError
from ....schemas.graph import Param
from ...weights import Weights

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as e:
    raise BackendError("device cpu: torch is not installed; install thinlm[torch], or use --device interp") from e

from . import ops
from .linear import PackedLinear
from .linear_stored import product
from .linear_streamed import StreamedMatrix
from .memory import Spill, Zeros, ordinary

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_VECTOR_ROLES = ("norm", "bias")


class _Store:
    """KV storage [positions, heads, dim] of any float dtype."""

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def write(self, index: slice | np.ndarray, x: Tensor) -> None:
        """Store x [1, T, heads, dim], rounding to nearest."""
        self._data[index if isinstance(index, slice) else torch.from_numpy(index)] = x[0].to(self._data.dtype)

    def read(self, index: slice | np.ndarray) -> Tensor:
        """[1, S, heads, dim] float32."""
        return self._data[index if isinstance(index, slice) else torch.from_numpy(index)][None].float()


class _Step(threading.local):
    """What one thread's current step shares between layers."""

    positions: object = None  # shape and bytes
    angles: dict[tuple[bytes, float, bool, bool], tuple[Tensor, Tensor]]

    def __init__(self) -> None:
        self.angles = {}


class TorchBackend:
    """See module docstring."""

    def __init__(self, spill: Path | None = None) -> None:
        self.name = "torch_cpu"
        self._zeros: Zeros = ordinary if spill is None else Spill(spill)
        self._streams = spill is not None
        self._step = _Step()

    def load(self, params: Sequence[Param], weights: Weights) -> Any:
        """A float32 vector, or one matrix object for all of `params`."""
        first = params[0]
        if first.role in _VECTOR_ROLES:
            return torch.from_numpy(np.ascontiguousarray(weights.f32(first.name)))
        if weights.kind == "source" and self._streams:
            return StreamedMatrix(weights, [p.name for p in params])
        if weights.kind == "source":
            return _Dense([torch.from_numpy(np.ascontiguousarray(weights.f32(p.name))) for p in params])
        shapes = [(p.shape[0], p.shape[1]) for p in params]
        return PackedLinear.from_slabs(weights.encoding(first.name), shapes, [weights.slabs(p.name) for p in params], self._zeros)

    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        """The op's torch function."""
        if op == "linear":
            return _linear
        if op == "embedding":
            return _embedding
        if op == "rope":
            return partial(self._rotate, attrs["scale"], attrs["interleaved"])
        if op == "attention":
            return partial(_attention, attrs)
        fn = ops.OPS[op]
        return lambda *args: fn(args, attrs)

    def _rotate(self, scale: float, interleaved: bool, x: Tensor, positions: Tensor, freqs: Tensor) -> Tensor:
        """Every layer rotates by the same angles: the tables for a step's positions are kept, by the numbers that they follow from."""
        whole = not interleaved and 2 * len(freqs) == x.shape[-1]
        step, key = self._step, (freqs.numpy().tobytes(), scale, interleaved, whole)
        if step.positions != (where := (positions.shape, positions.numpy().tobytes())):
            step.positions, step.angles = where, {}
        if key not in step.angles:
            cos, sin = ops.rope_tables(positions, freqs, scale)
            step.angles[key] = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)) if whole else (cos, sin)
        cos, sin = step.angles[key]
        if not whole:
            return ops.rotate(x, cos, sin, interleaved)
        return (x * cos).addcmul_(x.roll(len(freqs), -1), sin)  # halves swapped, one with its sign changed: the same products in 3 operations

    def alloc(self, shape: tuple[int, ...], dtype: str) -> _Store:
        """KV storage."""
        return _Store(self._zeros(shape, _DTYPES[dtype]))

    def put(self, array: np.ndarray) -> Tensor:
        """A tensor of the same numbers."""
        return torch.tensor(array)

    def read(self, x: Tensor) -> np.ndarray:
        """Float32 numpy."""
        return x.detach().numpy()

    def close(self) -> None:
        """Drop what is remembered between steps."""
        self._step = _Step()


class _Dense:
    """Float32 matrices [out, in] that read one input; their product has the same bits under any number of threads."""

    def __init__(self, matrices: list[Tensor]) -> None:
        self._splits = [m.shape[0] for m in matrices]
        self._matrix = matrices[0] if len(matrices) == 1 else torch.cat(matrices)

    def __call__(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        y = product(x.reshape(-1, x.shape[-1]), self._matrix).view(*x.shape[:-1], -1)
        return y if len(self._splits) == 1 else y.split(self._splits, -1)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the only matrix."""
        return torch.nn.functional.embedding(ids, self._matrix)


def _linear(x: Tensor, weight: Any, *biases: Tensor | None) -> Any:
    if isinstance(weight, Tensor):  # a computed value
        return torch.nn.functional.linear(x, weight, *biases)
    y = weight(x)
    if all(b is None for b in biases):
        return y
    if isinstance(y, tuple):
        return tuple(p if b is None else p + b for p, b in zip(y, biases, strict=True))
    return y + biases[0]


def _embedding(ids: Tensor, table: Any) -> Tensor:
    return table.rows(ids.reshape(-1)).view(*ids.shape, -1)


def _attention(
    attrs: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *rest: Tensor | None, key_positions: Tensor | None = None
) -> Tensor:
    if key_positions is None and not rest and q.shape[1] == 1:
        return ops.attend_all(q, k, v, attrs)
    return ops.attention((q, k, v, positions, *rest), attrs, key_positions)
