"""The weights of a source checkpoint, as the runtime and the passes read them: exact, mapped, nothing quantised.

`SourceCheckpoint` is a `Weights` (runtime_min/weights.py) of kind "source". A `Binding` says as data where a slot lies in the checkpoint: a
tensor, optionally a range of its rows and columns (a fused q/k/v matrix binds three slots to one tensor).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...artifacts.foreign import sha256_of_file
from ...artifacts.formats import get_format
from ...artifacts.layouts import matrix_shape
from ...schemas.canonical import canonical_bytes
from ...schemas.encoding import Slab
from ...schemas.errors import InputError
from .hf_dir import Folder

SLAB_BYTES = 4 << 20

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a slot is stored: rows [start, stop) and columns [start, stop) of `tensor`; None is all."""

    tensor: str
    rows: Range | None = None
    cols: Range | None = None


@dataclass(frozen=True)
class SourceCheckpoint:
    """Weights by slot, straight from the mapped files; `dropped` names the tensors that no slot reads."""

    folder: Folder
    bindings: Mapping[str, Binding]
    dropped: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Always "source"."""
        return "source"

    @property
    def identity(self) -> str:
        """See `_identity`."""
        return self._identity

    @cached_property
    def _identity(self) -> str:
        """SHA-256 over config, file sizes and headers: cheap, and equal for two trainings of one architecture. See `digest`."""
        files = {name: [file.size, file.header_sha256] for name, file in self.folder.files.items()}
        return hashlib.sha256(canonical_bytes({"config": hashlib.sha256(self.folder.config_bytes).hexdigest(), "files": files})).hexdigest()

    @cached_property
    def file_digests(self) -> dict[str, str]:
        """SHA-256 of config.json and every weight file, read in full on first use."""
        weights = {name: sha256_of_file(file.path) for name, file in sorted(self.folder.files.items())}
        return {"config.json": hashlib.sha256(self.folder.config_bytes).hexdigest(), **weights}

    def digest(self) -> str:
        """SHA-256 of all content, as one name for it."""
        return hashlib.sha256(canonical_bytes(self.file_digests)).hexdigest()

    def encoding(self, name: str) -> str:
        """`bf16/1`, `f16/1` or `f32/1`, as stored."""
        return f"{self.folder.tensors[self.bindings[name].tensor].dtype}/1"

    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape."""
        return self._view(name).shape

    def slabs(self, name: str) -> Iterator[Slab]:
        """Runs of whole rows of at most SLAB_BYTES (at least one row); a vector is one row. `raw` may view the mapped file."""
        matrix = self._matrix(name)
        rows, cols = matrix.shape
        step = max(1, SLAB_BYTES // (cols * matrix.itemsize))
        for row in range(0, rows, step):
            block = np.ascontiguousarray(matrix[row : row + step])
            yield Slab(row, row + len(block), 0, cols, block.view(np.uint8))

    def f32(self, name: str) -> np.ndarray:
        """float32 in the logical shape, exact; a copy of its own. InputError when a weight is not finite."""
        shape = self.shape(name)
        fmt, out = get_format(self.encoding(name)), np.empty(shape, np.float32)
        matrix = out.reshape(1, -1) if out.ndim == 1 else out
        for slab in self.slabs(name):
            matrix[slab.row0 : slab.row1] = fmt.decode(slab.raw, slab.col1)
        self._require_finite(name, matrix, slice(None), slice(None))
        return out

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """See `Weights.block`; reads no more than it returns. InputError when a weight is not finite."""
        stored = np.ascontiguousarray(self._matrix(name)[rows, cols])
        out = get_format(self.encoding(name)).decode(stored.view(np.uint8), stored.shape[1])
        self._require_finite(name, out, rows, cols)
        return out

    def _require_finite(self, name: str, values: np.ndarray, rows: slice | np.ndarray, cols: slice) -> None:
        """InputError naming the tensor in the checkpoint and the place: nothing that follows has a meaning for NaN or infinity."""
        if np.isfinite(values.sum(dtype=np.float64)):  # of float32 values this overflows only when one of them is not finite
            return
        row, col = np.argwhere(~np.isfinite(values))[0]
        height, width = self._matrix(name).shape
        place = f"row {np.arange(height)[rows][row]}, column {np.arange(width)[cols][col]}"
        where = f"{self.folder.path}: {self.bindings[name].tensor}"
        raise InputError(f"{where}: {place} is {values[row, col]}; the checkpoint is damaged, download it again")

    def tokenizer_files(self) -> dict[str, bytes]:
        """Tokenizer, chat template and generation config as they lie in the folder."""
        return self.folder.tokenizer_files()

    def _matrix(self, name: str) -> np.ndarray:
        """The mapped view as a matrix; a vector is one row."""
        view = self._view(name)
        return view.reshape(matrix_shape(view.shape))

    def _view(self, name: str) -> np.ndarray:
        if name not in self.bindings:
            raise InputError(f"{self.folder.path}: no weight {name!r}")
        b = self.bindings[name]
        view = self.folder.array(b.tensor)
        view = view if b.rows is None else view[b.rows[0] : b.rows[1]]
        return view if b.cols is None else view[:, b.cols[0] : b.cols[1]]
