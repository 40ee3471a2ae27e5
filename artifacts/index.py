"""pages.idx: where every page of the weight files lies, and its SHA-256; and the safetensors headers that go with it.

Layout, little-endian: "THINCIDX", u32 version = 1, u32 files, u64 pages; per file u64 bytes, u16 length of its path, the path in UTF-8;
zeros up to a multiple of 8; then files + pages records of u64 file, u64 offset, u64 length, 32 bytes SHA-256. The first `files` records
are the headers of the weight files (everything before their data), then one per page. Page p is record files + p.

In: bytes, or a table. Out: the other. Refused with ValueError: anything that is not exactly that layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..schemas.canonical import canonical_bytes
from ..schemas.manifest import PageKind, WeightFile

MAGIC, VERSION = b"THINCIDX", 1
RECORD = np.dtype([("file", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("sha256", "u1", (32,))])
DATA_ALIGN = 16 << 10  # the data of a weight file starts at a multiple of this, for direct reads into device memory

_HEAD = struct.Struct("<8sIIQ")
_FILE = struct.Struct("<QH")


@dataclass(frozen=True, slots=True)
class PageTable:
    """The index in memory: `records` is a RECORD array [files + pages]."""

    files: tuple[WeightFile, ...]
    records: np.ndarray

    @property
    def headers(self) -> np.ndarray:
        """One record per weight file."""
        return self.records[: len(self.files)]

    @property
    def pages(self) -> np.ndarray:
        """One record per page."""
        return self.records[len(self.files) :]

    def pieces(self) -> dict[str, list[bytes]]:
        """Path -> digests of its header and pages, in order: what payload_root covers."""
        digests: dict[str, list[bytes]] = {file.path: [] for file in self.files}
        for record in self.records:
            digests[self.files[record["file"]].path].append(record["sha256"].tobytes())
        return digests

    def to_bytes(self) -> bytes:
        """pages.idx."""
        table = _HEAD.pack(MAGIC, VERSION, len(self.files), len(self.records) - len(self.files))
        for file in self.files:
            path = file.path.encode("utf-8")
            table += _FILE.pack(file.bytes, len(path)) + path
        return table + bytes(-len(table) % 8) + self.records.tobytes()


def parse_index(data: bytes) -> PageTable:
    """The table behind pages.idx. Record contents are not judged here (SPEC rules A-12 and later)."""
    try:
        magic, version, nfiles, npages = _HEAD.unpack_from(data)
        at, files = _HEAD.size, []
        for _ in range(nfiles):
            size, length = _FILE.unpack_from(data, at)
            at += _FILE.size
            files.append(WeightFile(path=data[at : at + length].decode("utf-8"), bytes=size))
            at += length
    except (struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"its head is malformed: {e}") from e
    at += -at % 8
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"it starts with {magic!r} version {version}, expected {MAGIC!r} version {VERSION}")
    if len(data) != at + (nfiles + npages) * RECORD.itemsize:
        raise ValueError(f"{len(data)} bytes for {nfiles} files and {npages} pages")
    table = PageTable(tuple(files), np.frombuffer(data, RECORD, offset=at))
    if table.to_bytes() != data:
        raise ValueError("padding that is not zero")
    return table


def weight_header(kinds: Sequence[PageKind], sizes: Sequence[int]) -> bytes:
    """Head of a safetensors file of one U8 tensor per page kind, of `sizes` bytes; spaces pad it so that data is aligned to DATA_ALIGN."""
    entries, at = {}, 0
    for kind, size in zip(kinds, sizes, strict=True):
        entries[kind.name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = canonical_bytes(entries)
    text += b" " * (-(8 + len(text)) % DATA_ALIGN)
    return len(text).to_bytes(8, "little") + text
