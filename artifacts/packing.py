"""NAME.thin <-> NAME.thin.zip. The two hold the same files, attest/ included; unpack(pack(x)) is x byte for byte.

In: the path of an artifact, and where the other form goes (beside it by default). Out: that path.
Refused: UsageError for a target that exists (without force) or lies in no folder, or a source of the wrong form; ArtifactError for an
artifact that breaks a rule, before and after copying - what is published was read back and compared with its digests.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..schemas.errors import UsageError
from .disk import publish_folder, remove, sync_folder
from .packed import PackedStore, write_packed
from .reader import open_artifact
from .store import FolderStore, Store
from .verify import verify_artifact

SUFFIX = ".zip"
_CHUNK = 1 << 20


def pack(path: Path, target: Path | None = None, *, force: bool = False) -> Path:
    """Write a folder artifact as one store-only ZIP file."""
    store = open_artifact(path).store
    if not isinstance(store, FolderStore):
        raise UsageError(f"{path} is packed already")
    target = _target(target or path.with_name(path.name + SUFFIX), force)
    partial = target.with_name(f".{target.name}.partial")
    remove(partial)
    try:
        write_packed(store, partial)
        _require_intact(partial)
        partial.replace(target)
    finally:
        remove(partial)
    sync_folder(target.parent)
    return target


def unpack(path: Path, target: Path | None = None, *, force: bool = False) -> Path:
    """Write a packed artifact as a folder."""
    store = open_artifact(path).store
    if not isinstance(store, PackedStore):
        raise UsageError(f"{path} is not packed")
    target = _target(target or path.with_name(path.name.removesuffix(SUFFIX)), force)
    partial = target.with_name(f".{target.name}.partial")
    remove(partial)
    try:
        for name in store.sizes:
            _copy(store, name, partial / name)
        _require_intact(partial)
        publish_folder(partial, target)
    finally:
        remove(partial)
    return target


def _target(target: Path, force: bool) -> Path:
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} exists; choose another name or pass --force")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{target}: the folder {target.absolute().parent} does not exist")
    return target


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
