"""Where the files of an artifact are: a folder, or one packed file (packed.py). A store lists paths and sizes and maps files, nothing else.

In: a path. Out: a Store. Refused: what is not there (InputError), and rules A-01 (links, devices), A-02 (paths), A-04 (limits).
"""

from __future__ import annotations

import mmap
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
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
        """The file mapped read-only, once."""
        if path not in self._maps:
            self._maps[path] = _map_file(self.path / path, self.sizes[path])
        return self._maps[path]


def open_folder(path: Path) -> FolderStore:
    """List a folder; no file is opened."""
    sizes: dict[str, int] = {}
    for name, size in _walk(path, ""):
        sizes[name] = size
        a04_limit(path, "files", len(sizes), MAX_FILES)
    a02_plain_paths(path, sizes)
    return FolderStore(path, dict(sorted(sizes.items())))


def read_file(store: Store, path: str, limit: int) -> bytes:
    """A whole small file that is there; A-04 when it is larger than `limit`."""
    a04_limit(store.path, f"bytes in {path}", store.sizes[path], limit)
    return store.view(path).tobytes()


def a01_regular(path: Path, info: os.stat_result, size: int) -> None:
    """A-01: what is not a folder is a regular file, and keeps the size that it had when it was listed."""
    if not stat.S_ISREG(info.st_mode) or info.st_size != size:
        raise ArtifactError("A-01", f"{path}: not a regular file (links are refused), or it changed while it was read")


def a02_plain_paths(where: Path, paths: Iterable[str]) -> None:
    """A-02: relative paths of plain parts that mean the same files on every system: no two that differ by case or by how an accent is written."""
    spelled: dict[str, tuple[str, bool]] = {}
    for path in paths:
        odd = not path.isprintable() or "\\" in path or ":" in path or len(path.encode("utf-8", "replace")) > MAX_PATH
        parts = path.split("/")
        if odd or any(part in ("", ".", "..") or part != part.strip() for part in parts):
            raise ArtifactError("A-02", f"{where}: {path!r} is not a plain relative path of at most {MAX_PATH} bytes")
        for n in range(1, len(parts) + 1):
            here = ("/".join(parts[:n]), n < len(parts))  # and whether it is a folder
            other = spelled.setdefault(_folded(here[0]), here)
            if other != here:
                raise ArtifactError("A-02", f"{where}: {path!r} and {other[0]!r} are one name on some systems, or a file and a folder of one name")


def _folded(path: str) -> str:
    """What systems that ignore case and the form of accents compare."""
    return path if path.isascii() and path.islower() else unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def a04_limit(where: Path, what: str, got: int, limit: int) -> None:
    """A-04: no more files, and no larger small file, than an artifact can need."""
    if got > limit:
        raise ArtifactError("A-04", f"{where}: {got} {what}, at most {limit} are read")


def require_path(path: Path) -> None:
    """InputError when nothing is at `path`."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if stat.S_ISDIR(info.st_mode):
                yield from _walk(Path(entry.path), name + "/")
            else:
                a01_regular(Path(entry.path), info, info.st_size)
                yield name, info.st_size


def _map_file(path: Path, size: int) -> np.ndarray:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        a01_regular(path, os.fstat(fd), size)
        return map_bytes(fd, size)
    finally:
        os.close(fd)


def map_bytes(fd: int, size: int) -> np.ndarray:
    """An open file as a read-only u8[size]."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
