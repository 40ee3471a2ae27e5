"""Writing so that a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_durable(path: Path, data: bytes) -> None:
    """Write a file through a temporary sibling and one rename, on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def publish_folder(built: Path, target: Path) -> None:
    """Rename `built` to `target`. What was at `target` is moved aside first and removed last, so that a crash never loses both."""
    old = target.with_name(f".{target.name}.old")
    remove(old)
    if os.path.lexists(target):
        target.rename(old)
    built.rename(target)
    sync_folder(target.parent)
    remove(old)


def remove(path: Path) -> None:
    """Remove a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make renames inside `path` durable."""
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Put a file's bytes on the disk."""
    _sync(path, 0)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
