"""Writing so that a crash leaves the old file or the new one, never half of one; and room on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..schemas.errors import DiskError


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


def used_bytes(path: Path) -> int:
    """Bytes that a file, or all files below a folder, occupy on the disk; 0 when there is nothing."""
    if path.is_dir() and not path.is_symlink():
        return sum(used_bytes(entry) for entry in path.iterdir())
    return path.lstat().st_blocks * 512 if os.path.lexists(path) else 0


def require_space(folder: Path, needed: int, what: str) -> None:
    """DiskError when `folder` has no room for `needed` more bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskError(f"{folder.absolute()}: {what} needs about {needed} bytes there, {free} are free; make room or choose another folder with -o")


@contextmanager
def full_disk_said(folder: Path) -> Iterator[None]:
    """Turns "no space left" of whatever happens inside into a DiskError that names the folder of the output."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(folder).free
        message = f"{folder.absolute()}: the disk is full ({free} bytes are free); nothing was published and what is done is kept, so make room"
        raise DiskError(message) from e


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
