"""Finished steps of one job, kept in a hidden folder beside its target until it is published: a killed job goes on where it was.

A step is named `STAGE.WHAT` and is one safetensors file of plain arrays, written by one rename. Its metadata hold the step's key - a digest of
everything that the result follows from - and a digest of all that the file says. A step is used again only when both are right: another
job's step, a torn or a damaged file count as none, and the step is done again. Arrays that come back are read-only views of the mapped
file, so that results larger than memory may be kept. Without a folder nothing is kept and arrays come back as they are.
Nothing is synced: after a power cut a step may be damaged, which costs work, never truth.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..schemas.canonical import canonical_bytes, parse_canonical
from ..schemas.errors import InputError
from .disk import remove
from .safetensors_file import DTYPES, SafetensorsFile, open_safetensors

Arrays = Mapping[str, np.ndarray]

ALIGN = 64  # bytes; the data section starts at a multiple of this
_NAMES = {storage: header for header, (_, storage) in DTYPES.items() if header not in ("BF16", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0")}
_JSON = "json"


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of one job in `folder` (None keeps nothing). `base`: what every step's result follows from (a JSON value; the code's version)."""

    folder: Path | None = None
    base: Any = None

    def stage(self, name: str, *ingredients: Any) -> Steps:
        """The steps of one stage whose results follow from `ingredients` (JSON values)."""
        return Steps(self.folder, name, hashlib.sha256(canonical_bytes([self.base, name, *ingredients])).hexdigest())

    def discard(self) -> None:
        """Forget everything."""
        if self.folder is not None:
            remove(self.folder)


NOTHING_KEPT = Work()


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one stage: results by name, under the stage's key."""

    folder: Path | None
    stage: str
    key: str

    def get(self, name: str) -> Arrays | None:
        """The arrays of a finished step; None when there is none, or not a whole one of this key."""
        path = self._path(name)
        if path is None or not path.is_file():
            return None
        try:
            file = open_safetensors(path)
            arrays = {key: file.array(key) for key in file.tensors}
        except (InputError, OSError):
            return None
        return arrays if self._is_mine(name, file, arrays) else None

    def put(self, name: str, arrays: Arrays) -> Arrays:
        """Keep a finished step; returns its arrays as `get` would. OSError when the disk is full."""
        path = self._path(name)
        if path is None:
            return arrays
        ordered = {key: np.asarray(a, order="C") for key, a in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))}
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(self._header(name, ordered))
                for array in ordered.values():
                    file.write(_bytes(array))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        file = open_safetensors(path)
        return {key: file.array(key) for key in file.tensors}

    def get_json(self, name: str) -> Any:
        """A JSON value that `put_json` kept, or None."""
        arrays = self.get(name)
        return None if arrays is None else parse_canonical(arrays[_JSON].tobytes(), where=name)

    def put_json(self, name: str, value: Any) -> None:
        """Keep a JSON value or struct."""
        self.put(name, {_JSON: np.frombuffer(canonical_bytes(value), np.uint8)})

    def drop(self, name: str) -> None:
        """Forget a step that nothing needs any more."""
        if (path := self._path(name)) is not None:
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.stage}.{name}"

    def _header(self, name: str, arrays: Arrays) -> bytes:
        entries: dict[str, Any] = {"__metadata__": {"key": self.key, "sha256": self._digest(name, arrays)}}
        at = 0
        for key, array in arrays.items():
            entries[key] = {"dtype": _NAMES[array.dtype.str.replace("|", "")], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
            at += array.nbytes
        text = canonical_bytes(entries)
        text += b" " * (-(8 + len(text)) % ALIGN)
        return len(text).to_bytes(8, "little") + text

    def _is_mine(self, name: str, file: SafetensorsFile, arrays: Arrays) -> bool:
        return file.metadata.get("key") == self.key and file.metadata.get("sha256") == self._digest(name, arrays)

    def _digest(self, name: str, arrays: Arrays) -> str:
        """Covers the key, and every array's name, type, shape and bytes."""
        shapes = [[key, array.dtype.str, list(array.shape)] for key, array in sorted(arrays.items())]
        digest = hashlib.sha256(canonical_bytes([self.key, name, shapes]))
        for _, array in sorted(arrays.items()):
            digest.update(_bytes(array))
        return digest.hexdigest()


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
