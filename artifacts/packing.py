"""NAME.thin <-> NAME.thin.zip. The two hold the same files, attest/ included; unpack(pack(x)) is x byte for byte.

In: the path of an artifact, and where the other form goes (beside it by default). Out: that path.
Refused: UsageError for a target that may not be written (target.py), or a source of the wrong form; ArtifactError for an
artifact that breaks a rule, before and after copying - what is published was read back and compared with its digests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..schemas.errors import UsageError
from .disk import publish_folder, remove, sync_folder
from .packed import PackedStore, write_packed
from .reader import open_artifact
from .store import FolderStore, Store
from .target import PARTIAL, hidden, hold, put_back, require_file, require_free
from .verify import verify_artifact

SUFFIX = ".zip"
_CHUNK = 1 << 20


def pack(path: Path, target: Path | None = None, *, force: bool = False) -> Path:
    """Write a folder artifact as one store-only ZIP file."""
    store = open_artifact(path).store
    if not isinstance(store, FolderStore):
        raise UsageError(f"{path} is packed already")
    target = target or _beside(path, lambda name: name + SUFFIX)
    require_free(target, force=force)
    require_file(target)
    with _partial(target, force) as partial:
        write_packed(store, partial)
        _require_intact(partial)
        partial.replace(target)
        sync_folder(target.parent)
    return target


def unpack(path: Path, target: Path | None = None, *, force: bool = False) -> Path:
    """Write a packed artifact as a folder."""
    store = open_artifact(path).store
    if not isinstance(store, PackedStore):
        raise UsageError(f"{path} is not packed")
    target = target or _beside(path, lambda name: name.removesuffix(SUFFIX))
    require_free(target, force=force)
    with _partial(target, force) as partial:
        for name in store.sizes:
            _copy(store, name, partial / name)
        _require_intact(partial)
        publish_folder(partial, target)
    return target


def _beside(path: Path, rename: Callable[[str], str]) -> Path:
    """The default target: another name in the same folder, "." and ".." spelled out."""
    real = path if path.name not in ("", "..") else path.resolve()
    return real.with_name(rename(real.name))


@contextmanager
def _partial(target: Path, force: bool) -> Iterator[Path]:
    """Where `target` is put together, by one process at a time; gone afterwards, whatever happens."""
    partial = hidden(target, PARTIAL)
    with hold(target):
        put_back(target)
        require_free(target, force=force)
        remove(partial)
        try:
            yield partial
        finally:
            remove(partial)


def _copy(store: Store, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = store.view(name)
    with open(path, "xb") as out:
        for start in range(0, len(data), _CHUNK):
            out.write(data[start : start + _CHUNK].tobytes())
        out.flush()
        os.fsync(out.fileno())


def _require_intact(path: Path) -> None:
    if errors := verify_artifact(path):
        raise errors[0]
