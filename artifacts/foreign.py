"""Files that strangers made: how they are opened, read and parsed, so that none of them costs much or leads elsewhere.

In: a path, or bytes. Out: an open file, bytes, a path without links, or a JSON value.
Refused with InputError, naming the file:
  1. what is not a regular file: pipes, sockets, devices, folders; a link to nothing
  2. a link that leaves the folders it may lead to
  3. more bytes than the caller's limit
  4. JSON that is not strict: UTF-8, no repeated keys, no NaN, no trailing text, bounded nesting; more than MAX_VALUES values, which would
     take more memory than any published file
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from ..schemas.errors import InputError

MAX_VALUES = 2 << 20  # commas and brackets; the largest published index and header have a million


def open_regular(path: Path) -> FileIO:
    """Open for reading, unbuffered; a pipe or device, which might never answer, is not opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            _refuse(path, "not a regular file")
        return FileIO(path, "r")
    except (OSError, ValueError) as e:
        raise InputError(f"{_shown(path)}: can't be read: {getattr(e, 'strerror', None) or e}") from e


def read_small(path: Path, limit: int) -> bytes:
    """A whole regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            _refuse(path, f"{size} bytes; at most {limit} are read")
        return file.read(limit)


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a regular file, streamed; lower-case hex."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve_inside(path: Path, roots: Iterable[Path]) -> Path:
    """`path` with its links followed; InputError unless it ends below one of `roots`, which hold no links."""
    try:
        real = Path(os.path.realpath(path, strict=True))
    except (OSError, ValueError) as e:
        raise InputError(f"{_shown(path)}: can't be read: {getattr(e, 'strerror', None) or e}") from e
    if not any(real.is_relative_to(root) for root in roots):
        _refuse(path, f"a link to {_shown(real)}, out of the folder; links of others are not followed, put a copy there")
    return real


def strict_json(data: bytes, where: str) -> Any:
    """A JSON value from UTF-8 bytes; InputError on anything lenient parsers accept, and for more than MAX_VALUES values."""
    if (values := sum(map(data.count, (b",", b"[", b"{")))) > MAX_VALUES:
        raise InputError(f"{where}: up to {values} JSON values; at most {MAX_VALUES} are read")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: not strict JSON: {e}") from e


def short(value: Any) -> str:
    """For messages: a hostile file may hold a name of megabytes."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {short(key)} occurs twice")
            seen.add(key)
    return table


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _shown(path: Path) -> str:
    """A path for messages; names that hold control characters are escaped."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _refuse(path: Path, why: str) -> NoReturn:
    raise InputError(f"{_shown(path)}: {why}")
