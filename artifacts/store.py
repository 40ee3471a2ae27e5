"""Where the files of an artifact are: a folder, or one packed file (packed.py). A store lists paths and sizes and maps files, nothing else.

In: a path. Out: a Store. Refused: what is not there (InputError); A-01 links, devices and other non-files; A-02 paths that could leave
the folder or that differ between systems; A-04 too many files, and files above the size that their purpose can need.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from ..schemas.errors import ArtifactError, InputError

MAX_FILES = 1 << 16
MAX_PATH = 255  # bytes of UTF-8


class Store(Protocol):
    """Files by path; `sizes` holds all of them, in bytes."""

    @property
    def path(self) -> Path: ...
    @property
    def sizes(self) -> dict[str, int]: ...

    def view(self, path: str) -> np.ndarray:
        """The file mapped read-only: u8[sizes[path]]."""
        ...


@dataclass(frozen=True)
class FolderStore:
    """An artifact as a folder."""

    path: Path
    sizes: dict[str, int]
    _maps: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def view(self, path: str) -> np.ndarray:
        """The file mapped read-only, once; A-01 when it changed its size since it was listed."""
        if path not in self._maps:
            self._maps[path] = _map_file(self.path / path, self.sizes[path])
        return self._maps[path]


def open_folder(path: Path) -> FolderStore:
    """List a folder; no file is opened."""
    sizes: dict[str, int] = {}
    for name, size in _walk(path, ""):
        check_path(name)
        sizes[name] = size
        if len(sizes) > MAX_FILES:
            raise ArtifactError("A-04", f"{path}: more than {MAX_FILES} files")
    return FolderStore(path, dict(sorted(sizes.items())))


def read_file(store: Store, path: str, limit: int) -> bytes:
    """A whole small file; A-08 when it is missing, A-04 when it is larger than `limit`."""
    size = store.sizes.get(path)
    if size is None:
        raise ArtifactError("A-08", f"{store.path}: {path} is missing")
    if size > limit:
        raise ArtifactError("A-04", f"{store.path}: {path} has {size} bytes, at most {limit} are read")
    return store.view(path).tobytes()


def check_path(path: str) -> None:
    """A-02: relative, of plain parts, the same file on every system."""
    parts = path.split("/")
    plain = path.isprintable() and "\\" not in path and ":" not in path
    if not plain or any(part in ("", ".", "..") or part != part.strip() for part in parts) or len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise ArtifactError("A-02", f"{path!r} is not a plain relative path of at most {MAX_PATH} bytes")


def require_path(path: Path) -> None:
    """InputError when nothing is at `path`."""
    if not os.path.lexists(path):
        raise InputError(f"{path}: no such file or folder")


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if stat.S_ISDIR(info.st_mode):
                yield from _walk(Path(entry.path), name + "/")
            elif stat.S_ISREG(info.st_mode):
                yield name, info.st_size
            else:
                raise ArtifactError("A-01", f"{entry.path}: neither a regular file nor a folder (links are refused)")


def _map_file(path: Path, size: int) -> np.ndarray:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size != size:
            raise ArtifactError("A-01", f"{path}: changed its size while it was read")
        return map_bytes(fd, size)
    finally:
        os.close(fd)


def map_bytes(fd: int, size: int) -> np.ndarray:
    """An open file as a read-only u8[size]."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
