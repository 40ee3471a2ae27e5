"""NAME.thin.zip: an artifact in one file that any unzip opens and that the runtime maps without extraction.

Form: a ZIP file of stored members sorted by UTF-8 path; the data of each starts at a multiple of 16 KiB (zeros in an extra field of its
local header); sizes and offsets in ZIP64 fields always; times fixed at 1980-01-01 00:00; no folders, no comments. Everything but names,
sizes, CRCs and data is fixed, so a reader rebuilds every header from those and compares: same files, same bytes.

In: a store, or a packed file. Out: the other. Refused: A-03 anything that `write_packed` would not have written, before a member is
mapped (compression, encryption, other alignment, overlaps, gaps, repeated or unsorted names); A-02 paths; A-04 too many members.
CRCs are compared with the data by `verify` alone: to read, every byte has a SHA-256.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..schemas.errors import ArtifactError
from .crc import crc32
from .index import DATA_ALIGN
from .store import MAX_FILES, MAX_PATH, Store, a02_plain_paths, a04_limit, map_bytes

_CHUNK = 1 << 20
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_TAIL = _END64.size + _LOCATOR.size + _END.size
_VERSION = 45  # of the ZIP specification: ZIP64
_MADE_BY = 3 << 8 | _VERSION  # Unix
_FLAGS = 0x0800  # names are UTF-8
_DATE = 0x0021  # 1980-01-01
_MODE = 0o100644 << 16
_WIDE, _WIDE16 = 0xFFFFFFFF, 0xFFFF  # "see the ZIP64 field"
_ZIP64_ID, _PADDING_ID = 0x0001, 0xD935


@dataclass(frozen=True, slots=True)
class Member:
    """One file: its local header starts at byte `at`."""

    name: str
    size: int
    crc: int
    at: int

    @property
    def data_at(self) -> int:
        return self.at + len(self.local_header())

    @property
    def end(self) -> int:
        return self.data_at + self.size

    def local_header(self) -> bytes:
        """What precedes the data, padding included."""
        name = self.name.encode("utf-8")
        wide = struct.pack("<HHQQ", _ZIP64_ID, 16, self.size, self.size)
        padding = -(self.at + _LOCAL.size + len(name) + len(wide) + 4) % DATA_ALIGN
        extra = wide + struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
        return _LOCAL.pack(b"PK\3\4", _VERSION, _FLAGS, 0, 0, _DATE, self.crc, _WIDE, _WIDE, len(name), len(extra)) + name + extra

    def central_header(self) -> bytes:
        """Its entry in the directory."""
        name = self.name.encode("utf-8")
        extra = struct.pack("<HHQQQ", _ZIP64_ID, 24, self.size, self.size, self.at)
        head = (b"PK\1\2", _MADE_BY, _VERSION, _FLAGS, 0, 0, _DATE, self.crc, _WIDE, _WIDE, len(name), len(extra), 0, 0, 0, _MODE, _WIDE)
        return _CENTRAL.pack(*head) + name + extra


@dataclass(frozen=True)
class PackedStore:
    """An artifact as one file, mapped whole."""

    path: Path
    sizes: dict[str, int]
    offsets: dict[str, int]
    crcs: dict[str, int]
    data: np.ndarray

    def view(self, path: str) -> np.ndarray:
        """A member, mapped read-only."""
        return self.data[self.offsets[path] : self.offsets[path] + self.sizes[path]]


def write_packed(store: Store, target: Path) -> None:
    """Write every file of `store` to the new file `target`, and to the disk."""
    members: list[Member] = []
    with open(target, "xb") as out:
        for path in sorted(store.sizes, key=_order):
            data = store.view(path)
            member = Member(path, len(data), crc32(data), out.tell())
            out.write(member.local_header())
            for start in range(0, len(data), _CHUNK):
                out.write(data[start : start + _CHUNK].tobytes())
            members.append(member)
        out.write(_directory(members))
        out.flush()
        os.fsync(out.fileno())


def open_packed(path: Path) -> PackedStore:
    """Map a packed artifact after comparing all of its headers with what write_packed writes."""
    with open(path, "rb") as file:
        data = map_bytes(file.fileno(), os.fstat(file.fileno()).st_size)
    start, directory = _read_directory(path, data)
    members, at = list(_members(path, directory)), 0
    names = [member.name for member in members]
    a02_plain_paths(path, dict.fromkeys(names))
    if names != sorted(set(names), key=_order):
        raise _refused(path, "its members are repeated or not sorted")
    for member in members:
        if member.at != at or member.end > start:
            raise _refused(path, f"{member.name!r} does not follow the member before it inside the file")
        if data[member.at : member.data_at].tobytes() != member.local_header():
            raise _refused(path, f"the local header of {member.name!r} is not the one that belongs to its entry in the directory")
        at = member.end
    if at != start or _directory(members) != directory:
        raise _refused(path, "its directory is not that of its members")
    return PackedStore(path, {m.name: m.size for m in members}, {m.name: m.data_at for m in members}, {m.name: m.crc for m in members}, data)


def a03_member_crc(store: PackedStore, name: str, crc: int | None = None) -> None:
    """A-03: the CRC-32 of a member is that of its data, made here unless given."""
    if (got := crc32(store.view(name)) if crc is None else crc) != store.crcs[name]:
        raise _refused(store.path, f"the data of {name!r} have CRC-32 {got:08x}, its headers say {store.crcs[name]:08x}")


def _directory(members: list[Member]) -> bytes:
    """Everything after the last member."""
    start = members[-1].end if members else 0
    entries = b"".join(member.central_header() for member in members)
    count, end = len(members), start + len(entries)
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _MADE_BY, _VERSION, 0, 0, count, count, len(entries), start)
    locator = _LOCATOR.pack(b"PK\6\7", 0, end, 1)
    return entries + end64 + locator + _END.pack(b"PK\5\6", 0, 0, _WIDE16, _WIDE16, _WIDE, _WIDE, 0)


def _read_directory(path: Path, data: np.ndarray) -> tuple[int, bytes]:
    """(its first byte, its bytes up to the end of the file)."""
    if len(data) < _TAIL:
        raise _refused(path, "it is too short")
    magic, _, _, _, _, _, count, _, size, start = _END64.unpack(data[-_TAIL:][: _END64.size].tobytes())
    if magic != b"PK\6\6" or start + size + _TAIL != len(data):
        raise _refused(path, "it does not end like a packed artifact")
    a04_limit(path, "files", count, MAX_FILES)
    if size > count * (_CENTRAL.size + 28 + MAX_PATH):
        raise _refused(path, "its directory is larger than its entries can be")
    return start, data[start:].tobytes()


def _members(path: Path, directory: bytes) -> Iterator[Member]:
    """Entries of the directory; only names, CRCs, sizes and offsets are read."""
    at = 0
    while directory[at : at + 4] == b"PK\1\2":
        try:
            *_, crc, _, _, n_name, n_extra, _, _, _, _, _ = _CENTRAL.unpack_from(directory, at)
            name = directory[at + _CENTRAL.size : at + _CENTRAL.size + n_name].decode("utf-8")
            _, _, size, _, offset = struct.unpack_from("<HHQQQ", directory, at + _CENTRAL.size + n_name)
        except (struct.error, UnicodeDecodeError) as e:
            raise _refused(path, f"its directory is malformed: {e}") from e
        yield Member(name, size, crc, offset)
        at += _CENTRAL.size + n_name + n_extra


def _order(name: str) -> bytes:
    return name.encode("utf-8")


def _refused(path: Path, what: str) -> ArtifactError:
    return ArtifactError("A-03", f"{path}: {what}; pack it again with `thinc pack`")
