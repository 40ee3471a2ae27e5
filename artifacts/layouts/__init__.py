"""Page layouts: which bytes of which tensors share a page. `plan_pages` lays out a whole model before any weight is read.

A new layout is one new file with NAME and take(), and one line in LAYOUTS; the order is the order in which they take tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ...schemas.errors import InputError
from . import rows, shared, superblock
from .base import PAGE_ALIGN, PAGE_MAX, PageGroup, Region, Slot, StoredTensor, cut, gather, matrix_shape, pieces

__all__ = [
    "LAYOUTS",
    "PAGE_ALIGN",
    "PAGE_MAX",
    "SUPERBLOCK",
    "PageGroup",
    "PagePlan",
    "Region",
    "Slot",
    "StoredTensor",
    "cut",
    "fill_page",
    "fill_pages",
    "gather",
    "matrix_shape",
    "plan_pages",
]

LAYOUTS = (superblock, shared, rows)
SUPERBLOCK = superblock.CHANNELS

Encode = Callable[[StoredTensor, Region], np.ndarray]  # -> u8[region.rows, row_bytes(region.cols)]


@dataclass(frozen=True, slots=True)
class PagePlan:
    """All pages of an artifact in file order; sizes are known before any weight is."""

    groups: tuple[PageGroup, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of all pages, with padding."""
        return sum(group.total_bytes for group in self.groups)

    def slots(self) -> Iterator[Slot]:
        """Every tensor with its layout, in file order."""
        return (slot for group in self.groups for slot in group.slots)

    def shards(self, limit: int) -> list[tuple[PageGroup, ...]]:
        """Groups per weight file: whole layers, at most `limit` bytes of pages unless one layer is larger."""
        files: list[list[PageGroup]] = [[]]
        used = 0
        for _, run in groupby(self.groups, key=lambda group: group.layer):
            layer = list(run)
            size = sum(group.total_bytes for group in layer)
            if files[-1] and used + size > limit:
                files.append([])
                used = 0
            files[-1] += layer
            used += size
        return [tuple(groups) for groups in files]


def plan_pages(tensors: Sequence[StoredTensor]) -> PagePlan:
    """Lay out `tensors` (in the order of the graph, layer by layer). InputError on an empty or doubly named tensor, or none at all."""
    names = [tensor.name for tensor in tensors]
    if not names or len(set(names)) != len(names):
        raise InputError(f"an artifact needs tensors, each named once; got {len(names)} with {len(set(names))} names")
    for tensor in tensors:
        if not tensor.shape or min(tensor.shape) < 1:
            raise InputError(f"{tensor.name}: a tensor of shape {list(tensor.shape)} can't be stored")
    groups: list[PageGroup] = []
    rest: Sequence[StoredTensor] = tensors
    for layout in LAYOUTS:
        taken, rest = layout.take(rest)
        groups += taken
    place = {name: n for n, name in enumerate(names)}
    groups.sort(key=lambda group: place[group.slots[0].tensor.name])
    return PagePlan(tuple(_numbered(groups)))


def fill_pages(group: PageGroup, encode: Encode) -> Iterator[bytes]:
    """The bytes of the group's pages, one at a time."""
    return (fill_page(group, k, encode) for k in range(group.count))


def fill_page(group: PageGroup, k: int, encode: Encode) -> bytes:
    """The bytes of page k; `encode(tensor, region)` gives a slab. Padding is zero."""
    page = bytearray(group.length(k))
    for offset, slot, region in pieces(group, k):
        raw = np.ascontiguousarray(encode(slot.tensor, region))
        want = (region.rows, slot.tensor.format.row_bytes(region.cols))
        if raw.dtype != np.uint8 or raw.shape != want:
            raise InputError(f"{slot.tensor.name}: encoded slab is {raw.dtype}{list(raw.shape)}, expected uint8{list(want)}")
        page[offset : offset + raw.size] = raw.tobytes()
    return bytes(page)


def _numbered(groups: Sequence[PageGroup]) -> Iterator[PageGroup]:
    first_page = 0
    for group in groups:
        yield group.starting_at(first_page)
        first_page += group.count
