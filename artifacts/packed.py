"""NAME.thin.zip: an artifact in one file that any unzip opens and that the runtime maps without extraction.

Form: store-only ZIP, ZIP64 fields in every local header, members sorted by UTF-8 path, the data of each aligned to 16 KiB (padding in an
extra field of its local header), times fixed at 1980-01-01, no folders, no comments. Same files, same bytes.

In: a folder store, or a packed file. Out: the other. Refused: A-03 everything that `pack` would not have written as far as it decides
where bytes lie - compression, encryption, other alignment, overlaps, gaps, repeated or unsorted names, a member that its local header
names otherwise - before any member is mapped; A-02 paths.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..schemas.errors import ArtifactError
from .index import DATA_ALIGN
from .store import MAX_FILES, Store, check_path, map_bytes

EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20
_PADDING = struct.Struct("<HH")  # extra field: id 0xD935 (alignment), size
_PADDING_ID = 0xD935
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64_BYTES = 56 + 20  # zip64 end record and its locator, present above 4 GiB
_LOCAL_ZIP64_BYTES = 20
_WIDE = 0xFFFFFFFF


@dataclass(frozen=True)
class PackedStore:
    """An artifact as one file, mapped whole."""

    path: Path
    sizes: dict[str, int]
    offsets: dict[str, int]
    data: np.ndarray

    def view(self, path: str) -> np.ndarray:
        """A member, mapped read-only."""
        return self.data[self.offsets[path] : self.offsets[path] + self.sizes[path]]


def write_packed(store: Store, target: Path) -> None:
    """Write every file of `store` to `target`, and to the disk."""
    with open(target, "xb") as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for path in sorted(store.sizes, key=lambda p: p.encode("utf-8")):
                _write_member(archive, out.tell(), path, store.view(path))
        out.flush()
        os.fsync(out.fileno())


def open_packed(path: Path) -> PackedStore:
    """Map a packed artifact after checking its directory."""
    with open(path, "rb") as file:
        data = map_bytes(file.fileno(), os.fstat(file.fileno()).st_size)
    sizes, offsets, end = {}, {}, 0
    start, count = _directory(path, data)
    for name, size, local in _members(path, data[start:], count):
        check_path(name)
        if local != end or (sizes and name.encode("utf-8") <= next(reversed(sizes)).encode("utf-8")):
            raise _refused(path, f"{name!r} is out of order, repeated, or does not follow the member before it")
        offsets[name], sizes[name] = _check_local(path, data[local:start], local, name, size), size
        end = offsets[name] + size
        if offsets[name] % DATA_ALIGN or end > start:
            raise _refused(path, f"the data of {name!r} is not aligned to {DATA_ALIGN} or not inside the file")
    if end != start:
        raise _refused(path, f"{start - end} bytes belong to no member")
    return PackedStore(path, sizes, offsets, data)


def _write_member(archive: zipfile.ZipFile, at: int, path: str, data: np.ndarray) -> None:
    info = zipfile.ZipInfo(path, EPOCH)
    info.create_system, info.external_attr = 3, 0o100644 << 16
    head = at + _LOCAL.size + len(path.encode("utf-8")) + _LOCAL_ZIP64_BYTES + _PADDING.size
    padding = -head % DATA_ALIGN
    info.extra = _PADDING.pack(_PADDING_ID, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=True) as member:
        for start in range(0, len(data), _CHUNK):
            member.write(data[start : start + _CHUNK].tobytes())
    info.extra = b""  # the central directory needs no padding


def _directory(path: Path, data: np.ndarray) -> tuple[int, int]:
    """(byte at which the central directory starts, number of members), from the end of the file."""
    if len(data) < _END.size:
        raise _refused(path, "it is too short for a ZIP file")
    magic, disk, disk2, _, count, size, _, comment = _END.unpack(data[-_END.size :].tobytes())
    if magic != b"PK\5\6" or disk or disk2 or comment or count >= MAX_FILES:
        raise _refused(path, "it does not end like a packed artifact")
    tail = _END.size
    if data[-tail - 20 : -tail][:4].tobytes() == b"PK\6\7":
        tail += _END64_BYTES
    start = len(data) - tail - size
    if start < 0:
        raise _refused(path, "its directory is larger than the file")
    return start, count


def _members(path: Path, directory: np.ndarray, count: int) -> Iterator[tuple[str, int, int]]:
    """(name, bytes, offset of the local header) of each entry of the central directory."""
    at = 0
    for _ in range(count):
        head = directory[at : at + _CENTRAL.size].tobytes()
        if len(head) < _CENTRAL.size or head[:4] != b"PK\1\2":
            raise _refused(path, "its directory is cut off")
        _, _, _, flags, method, _, _, _, packed, size, n_name, n_extra, n_comment, _, _, _, local = _CENTRAL.unpack(head)
        at += _CENTRAL.size
        name = _decode(path, directory[at : at + n_name].tobytes())
        extra = directory[at + n_name : at + n_name + n_extra].tobytes()
        at += n_name + n_extra
        if method or flags & ~0x0800 or n_comment:
            raise _refused(path, f"{name!r} is compressed, encrypted or streamed; members are stored")
        wide = _wide_fields(path, name, extra, [size, packed, local])
        if wide[0] != wide[1]:
            raise _refused(path, f"{name!r} has two sizes")
        yield name, wide[0], wide[2]


def _wide_fields(path: Path, name: str, extra: bytes, fields: list[int]) -> list[int]:
    """Sizes and offset, taken from the ZIP64 extra field where the 32-bit ones say so."""
    want = [n for n, value in enumerate(fields) if value == _WIDE]
    if extra[:4] != (struct.pack("<HH", 1, 8 * len(want)) if want else b"") or len(extra) != (4 + 8 * len(want) if want else 0):
        raise _refused(path, f"{name!r} has unexpected extra fields")
    for n, value in zip(want, struct.unpack(f"<{len(want)}Q", extra[4:]), strict=True):
        fields[n] = value
    return fields


def _check_local(path: Path, data: np.ndarray, at: int, name: str, size: int) -> int:
    """Offset of the member's data, after comparing its local header with the directory."""
    head = data[: _LOCAL.size].tobytes()
    if len(head) < _LOCAL.size:
        raise _refused(path, f"{name!r} lies outside the file")
    magic, _, flags, method, _, _, _, _, _, n_name, n_extra = _LOCAL.unpack(head)
    own_name = data[_LOCAL.size : _LOCAL.size + n_name].tobytes()
    extra = data[_LOCAL.size + n_name : _LOCAL.size + n_name + n_extra].tobytes()
    wide = struct.pack("<HHQQ", 1, 16, size, size)
    if magic != b"PK\3\4" or method or flags & ~0x0800 or own_name != name.encode("utf-8") or not extra.startswith(wide):
        raise _refused(path, f"the local header of {name!r} differs from the directory")
    padding = extra[len(wide) :]
    if padding[4:].strip(b"\0") or padding[:4] != _PADDING.pack(_PADDING_ID, len(padding) - 4):
        raise _refused(path, f"the local header of {name!r} hides bytes in an extra field")
    return at + _LOCAL.size + n_name + n_extra


def _decode(path: Path, name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as e:
        raise _refused(path, f"the name {name!r} is not UTF-8") from e


def _refused(path: Path, what: str) -> ArtifactError:
    return ArtifactError("A-03", f"{path}: {what}; pack it again with `thinc pack`")
