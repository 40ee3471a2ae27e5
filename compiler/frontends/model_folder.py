"""The files of a model folder that a stranger packed: which there are, and where they really lie.

In: a path. Out: `ModelFolder`: names, and for each a path without links. A link is followed inside the folder, and in a hub cache
(.../snapshots/REVISION/, where every file is a link) into the `blobs` folder beside `snapshots`.
Refused with InputError, naming the file: every other link, as what it leads to might end up in an artifact; what is no regular file; a name
beside which another differs only in case, since on another file system they would be one; more than MAX_ENTRIES names.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...artifacts.foreign import read_small, resolve_inside
from ...schemas.errors import InputError

MAX_ENTRIES = 100_000
SNAPSHOTS, BLOBS = "snapshots", "blobs"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`names` of everything in the folder, by what a file system without case would call them; `roots` are where links may lead."""

    path: Path
    names: Mapping[str, tuple[str, ...]]
    roots: tuple[Path, ...]

    def has(self, name: str) -> bool:
        """Whether something of that very name is there, a broken link included."""
        return name in self.names.get(_folded(name), ())

    def file(self, name: str) -> Path:
        """Where the file is; InputError as the module says. A name that is not there is refused when it is read."""
        path = self.path / name
        others = [other for other in self.names.get(_folded(name), ()) if other != name]
        if others:
            raise InputError(f"{path}: there is also {others[0]!a}, which is the same name where case does not count; remove one")
        return resolve_inside(path, self.roots)

    def read(self, name: str, limit: int) -> bytes:
        """The whole file, of at most `limit` bytes."""
        return read_small(self.file(name), limit)

    def ending_in(self, suffixes: tuple[str, ...]) -> list[str]:
        """Names with one of these ends, sorted."""
        return sorted(name for group in self.names.values() for name in group if name.endswith(suffixes))


def list_folder(path: Path) -> ModelFolder:
    """List a folder that exists; nothing in it is opened."""
    names: dict[str, list[str]] = defaultdict(list)
    try:
        real = Path(os.path.realpath(path, strict=True))
        with os.scandir(real) as entries:
            for n, entry in enumerate(entries):
                if n >= MAX_ENTRIES:
                    raise InputError(f"{path}: more than {MAX_ENTRIES} files; give a folder that holds one model")
                names[_folded(entry.name)].append(entry.name)
    except OSError as e:
        raise InputError(f"{path}: can't be read: {e.strerror}") from e
    return ModelFolder(path, {key: tuple(group) for key, group in names.items()}, (real, *_blobs(real)))


def _blobs(real: Path) -> tuple[Path, ...]:
    """The blobs of the hub cache that a folder is a snapshot of. A `blobs` that is itself a link is no way out: a root is where files really lie."""
    above = next((parent for parent in real.parents if parent.name == SNAPSHOTS), None)
    blobs = above.with_name(BLOBS) if above else None
    return (blobs,) if blobs and blobs.is_dir() else ()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
