"""The rules of SPEC.md about pages: index, weight files, page kinds, tensor layouts, and the bytes themselves; one function per rule.

In: a store, the manifest and the page index. Out: nothing. Each function raises ArtifactError with its own code only; numbers that a
manifest claims are compared with the index, and the index with the files, before anything is allocated or mapped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..schemas.errors import ArtifactError
from ..schemas.manifest import Manifest, PageKind, TensorEntry
from .formats import Format
from .index import DATA_ALIGN, PageTable, parse_index, weight_header
from .layouts.base import PAGE_ALIGN, align, region, slab_count
from .store import Store


@dataclass(frozen=True, slots=True)
class Slabs:
    """The slabs of one tensor within pages of one kind: their number, and (start, end) bytes in a full page and in the last one."""

    tensor: TensorEntry
    count: int
    full: tuple[int, int]
    tail: tuple[int, int]


def a11_index(store: Store, manifest: Manifest, data: bytes) -> PageTable:
    """A-11: pages.idx has its layout, and names the weight files and the number of pages as the manifest does."""
    try:
        table = parse_index(data)
    except ValueError as e:
        raise ArtifactError("A-11", f"{store.path}: pages.idx: {e}") from e
    if table.files != manifest.weights or len(table.pages) != manifest.page_index.pages:
        raise ArtifactError("A-11", f"{store.path}: pages.idx and the manifest list other weight files or numbers of pages")
    return table


def a12_tiling(store: Store, table: PageTable) -> None:
    """A-12: in each weight file, header and pages follow one another in order and cover every byte; data starts at a multiple of 16 KiB."""
    headers, pages = table.headers, table.pages
    lengths, offsets = table.records["length"].astype(np.int64), table.records["offset"].astype(np.int64)
    if (lengths <= 0).any() or (offsets < 0).any() or (headers["file"] != np.arange(len(headers))).any():
        raise ArtifactError("A-12", f"{store.path}: pages.idx has an empty record, or headers out of order")
    if (pages["length"] % PAGE_ALIGN).any() or (headers["length"] % DATA_ALIGN).any():
        raise ArtifactError("A-12", f"{store.path}: a page is not a multiple of {PAGE_ALIGN} bytes, or a header not of {DATA_ALIGN}")
    if (np.diff(pages["file"].astype(np.int64)) < 0).any() or (pages["file"] >= len(headers)).any():
        raise ArtifactError("A-12", f"{store.path}: pages are not in the order of their files")
    for n, file in enumerate(table.files):
        mine = table.records["file"] == n
        ends = np.cumsum(np.minimum(lengths[mine], file.bytes))  # no length above the file's: sums can't wrap around
        if (offsets[mine] + lengths[mine] != ends).any() or offsets[mine][0] != 0 or ends[-1] != file.bytes:
            raise ArtifactError("A-12", f"{store.path}: {file.path}: header and pages leave a gap, overlap or miss the end")


def a13_page_kinds(store: Store, manifest: Manifest, table: PageTable) -> None:
    """A-13: page kinds are named once, follow one another, cover all pages, and each lies in one weight file."""
    at = 0
    for kind in manifest.page_kinds:
        files = table.pages["file"][kind.first_page : kind.first_page + kind.count]
        if kind.first_page != at or kind.count < 1 or len(files) != kind.count or (files != kind.file).any():
            raise ArtifactError("A-13", f"{store.path}: page kind {kind.name!r} does not follow the one before it within one file")
        at += kind.count
    names = {kind.name for kind in manifest.page_kinds}
    if at != len(table.pages) or len(names) != len(manifest.page_kinds):
        raise ArtifactError("A-13", f"{store.path}: page kinds cover {at} of {len(table.pages)} pages, or share a name")


def a14_headers(store: Store, manifest: Manifest, table: PageTable) -> None:
    """A-14: the head of each weight file is the safetensors header of its page kinds, and nothing else."""
    for n, file in enumerate(table.files):
        kinds = [kind for kind in manifest.page_kinds if kind.file == n]
        want = weight_header(kinds, [kind_bytes(table, kind) for kind in kinds])
        got = page_bytes(store, table, n)
        if len(got) != len(want) or got.tobytes() != want:
            raise ArtifactError("A-14", f"{store.path}: {file.path}: its header is not that of its pages")


def a16_layouts(store: Store, manifest: Manifest, table: PageTable) -> None:
    """A-16: every slab lies in its page without touching another, in pages of one kind, and pages end where their last slab does."""
    kinds = {(kind.first_page, kind.count): kind for kind in manifest.page_kinds}
    members: dict[str, list[Slabs]] = {kind.name: [] for kind in manifest.page_kinds}
    for tensor in manifest.tensors:
        slabs = slabs_of(tensor, Format(manifest.formats[tensor.encoding])) if _sane(tensor) else None
        kind = kinds.get((tensor.layout.first_page, slabs.count)) if slabs else None
        if slabs is None or kind is None:
            raise ArtifactError("A-16", f"{store.path}: {tensor.name}: its shape and layout don't fit the pages of one kind")
        members[kind.name].append(slabs)
    for kind in manifest.page_kinds:
        lengths = table.pages["length"][kind.first_page : kind.first_page + kind.count].tolist()
        full = [slabs.full for slabs in members[kind.name]]
        tail = [slabs.tail for slabs in members[kind.name]]
        if not _fills(tail, lengths[-1:]) or not _fills(full, lengths[:-1] or lengths[-1:]):
            raise ArtifactError("A-16", f"{store.path}: the slabs of page kind {kind.name!r} overlap, or don't end where its pages do")


def a19_page_digest(store: Store, manifest: Manifest, table: PageTable, number: int) -> None:
    """A-19: record `number` of the index (a header or a page) has the SHA-256 of its bytes in the file."""
    record = table.records[number]
    if hashlib.sha256(page_bytes(store, table, number).data).digest() != record["sha256"].tobytes():
        raise ArtifactError("A-19", f"{store.path}: {page_name(manifest, table, number)}: bytes are not those that pages.idx states")


def a20_padding(store: Store, manifest: Manifest, table: PageTable, number: int, spans: Sequence[tuple[int, int]]) -> None:
    """A-20: bytes of page record `number` outside `spans`, its slabs in order, are zero."""
    data = page_bytes(store, table, number)
    starts, ends = [start for start, _ in spans] + [len(data)], [0] + [end for _, end in spans]
    if any(data[end:start].any() for end, start in zip(ends, starts, strict=True)):
        raise ArtifactError("A-20", f"{store.path}: {page_name(manifest, table, number)}: its padding is not zero")


def slabs_of(tensor: TensorEntry, fmt: Format) -> Slabs:
    """Where the slabs of `tensor` lie in their pages. A single page counts as full and as last."""
    count = slab_count(tensor.shape, tensor.layout)
    full, tail = (region(tensor.shape, tensor.layout, k).nbytes(fmt) for k in (0, count - 1))
    layout = tensor.layout
    first = (layout.offset, layout.offset + full)
    last = (layout.tail_offset, layout.tail_offset + tail)
    return Slabs(tensor, count, first if count > 1 else last, last)


def kind_bytes(table: PageTable, kind: PageKind) -> int:
    """Bytes of all pages of a kind."""
    return int(table.pages["length"][kind.first_page : kind.first_page + kind.count].sum())


def page_bytes(store: Store, table: PageTable, number: int) -> np.ndarray:
    """Bytes of record `number` of the index, mapped: u8[length]."""
    record = table.records[number]
    start = int(record["offset"])
    return store.view(table.files[record["file"]].path)[start : start + int(record["length"])]


def page_name(manifest: Manifest, table: PageTable, number: int) -> str:
    """For messages: 'page 3 of blk.0.ffn (weights/00000.safetensors)'."""
    path = table.files[table.records[number]["file"]].path
    page = number - len(table.files)
    for kind in manifest.page_kinds:
        if 0 <= page - kind.first_page < kind.count:
            return f"page {page - kind.first_page} of {kind.name} ({path})"
    return f"header ({path})"


def _sane(tensor: TensorEntry) -> bool:
    """A shape and layout to compute with: no zeros, aligned offsets, one spelling when the only page is the last one."""
    layout = tensor.layout
    if not tensor.shape or min(*tensor.shape, layout.step) < 1 or (layout.offset | layout.tail_offset) % PAGE_ALIGN:
        return False
    return slab_count(tensor.shape, layout) > 1 or layout.offset == layout.tail_offset


def _fills(spans: list[tuple[int, int]], lengths: list[int]) -> bool:
    """Spans are disjoint and the last one ends in the last PAGE_ALIGN bytes of each page of `lengths`."""
    ordered = sorted(spans)
    disjoint = all(a[1] <= b[0] for a, b in pairwise(ordered))
    return bool(ordered) and disjoint and all(length == align(ordered[-1][1]) for length in lengths)
