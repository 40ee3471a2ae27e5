"""Where something will be written: free, or an artifact that --force may replace; and held by one process at a time.

In: the target's path. Out: nothing, or `hold`, a lock for as long as the work takes (the kernel drops it when a process is killed).
Refused with UsageError, before any work: a name that is no name or too long, a folder that is missing or not writable, a target that exists
without force, a target that is no artifact (with force, too: it is somebody's folder), a target that another process is writing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..schemas.errors import UsageError
from .disk import remove

PARTIAL, JOURNAL, WORK, OLD = "partial", "journal", "work", "old"
CERTIFYING = "certifying"  # what a stopped `certify` measured
LEFT = (PARTIAL, JOURNAL, WORK, OLD, CERTIFYING)  # what a stopped job may leave beside its target

_SIGNS = ("manifest.json", "pages.idx")  # of an artifact's folder; one alone could be anybody's


def hidden(target: Path, kind: str) -> Path:
    """The hidden sibling of `target` that holds a job's unfinished work of that kind."""
    return target.with_name(f".{target.name}.{kind}")


def rejected_name(target: Path) -> Path:
    """Where an artifact goes that fell below its gate."""
    return target.with_name(f"{target.name}.rejected")


def put_back(target: Path) -> None:
    """Undo the first half of a replacement that was killed between its two renames (disk.publish_folder). For who holds `target`."""
    old = hidden(target, OLD)
    if os.path.lexists(old) and not os.path.lexists(target):
        old.rename(target)


def clean(target: Path) -> None:
    """Remove what jobs that were stopped left beside `target`."""
    for kind in LEFT:
        remove(hidden(target, kind))


def require_free(target: Path, *, force: bool) -> None:
    """UsageError as the module says."""
    if target.name in ("", "..") or "\0" in str(target):
        raise UsageError(f"{target}: is not the name of a file or folder; give one with -o")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {target.parent.absolute()} does not exist")
    if _is_artifact(target.parent):
        raise UsageError(f"{target}: lies inside the artifact {target.parent}, which would be damaged; choose another folder")
    if not os.path.lexists(target):
        return
    if not force:
        raise UsageError(f"{target} exists; choose another name or pass --force")
    if not _replaceable(target):
        raise UsageError(f"{target} exists and is not an artifact; --force replaces nothing else, so move it away or choose another name")


def require_file(target: Path) -> None:
    """UsageError when a file would have to replace a folder."""
    if target.is_dir():
        raise UsageError(f"{target} is a folder; give the name of a file")


def require_writable(file: Path) -> None:
    """UsageError when a file of this name, new or not, can't be written."""
    require_file(file)
    if not (file.parent.is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)):
        raise UsageError(f"{file}: can't be written there; choose a file in an existing folder of yours")


@contextmanager
def hold(target: Path) -> Iterator[None]:
    """Keep other processes from writing `target` meanwhile; UsageError when one does, or when nothing can be written there."""
    path = target.with_name(f".{target.name}.lock")
    try:
        fd = _lock(path)
    except BlockingIOError as e:
        raise UsageError(f"{target} is being written by another thinc; wait for it or choose another name") from e
    except OSError as e:
        raise UsageError(f"{target}: can't be written there ({e.strerror}); choose another name or folder with -o") from e
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: whoever waits for this file finds that it is gone
        os.close(fd)


def _lock(path: Path) -> int:
    """A locked descriptor of the file that is at `path` now."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        current = False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = path.exists() and os.fstat(fd).st_ino == path.stat().st_ino
        finally:
            if not current:
                os.close(fd)
        if current:
            return fd


def _replaceable(target: Path) -> bool:
    """An artifact, packed or not, or an empty folder."""
    if target.is_dir():
        return _is_artifact(target) or not any(target.iterdir())
    return target.is_file() and target.suffix == ".zip"


def _is_artifact(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _SIGNS)
