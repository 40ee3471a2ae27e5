"""Arithmetic shared by all layouts: a tensor as a matrix, cut along one axis into slabs; pages that hold one slab of each of their tensors.

In: tensors (name, shape, number format). Out: PageGroups, whose slots say where every slab lies (schemas/manifest.py has the rule).
`cut` and `gather` are exact inverses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from ...schemas.manifest import TensorLayout
from ..formats import Format

PAGE_ALIGN = 128  # pages, and slabs inside a page, start at multiples of this
PAGE_MAX = 1 << 20  # bytes, unless one row or superblock is larger


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that an artifact holds: source shape and dtype, and the format of its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None
    format: Format


@dataclass(frozen=True, slots=True)
class Region:
    """Rows [row0, row1) x columns [col0, col1) of a tensor seen as a matrix."""

    row0: int
    row1: int
    col0: int
    col1: int

    @property
    def rows(self) -> int:
        return self.row1 - self.row0

    @property
    def cols(self) -> int:
        return self.col1 - self.col0

    def nbytes(self, fmt: Format) -> int:
        """Bytes of the slab that covers this region."""
        return self.rows * fmt.row_bytes(self.cols)


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a page group: slab k of `tensor` lies in page `layout.first_page + k`."""

    tensor: StoredTensor
    layout: TensorLayout

    def region(self, k: int) -> Region:
        return region(self.tensor.shape, self.layout, k)

    def offset(self, k: int) -> int:
        """Byte of the page at which slab k starts."""
        return self.layout.tail_offset if k == slab_count(self.tensor.shape, self.layout) - 1 else self.layout.offset


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Consecutive pages of one kind: all of `page_bytes` but the last, which has `tail_bytes`. Each holds one slab of every slot."""

    name: str
    layer: int | None
    slots: tuple[Slot, ...]
    count: int
    page_bytes: int
    tail_bytes: int

    @property
    def first_page(self) -> int:
        return self.slots[0].layout.first_page

    @property
    def total_bytes(self) -> int:
        return (self.count - 1) * self.page_bytes + self.tail_bytes

    def length(self, k: int) -> int:
        """Bytes of page k."""
        return self.tail_bytes if k == self.count - 1 else self.page_bytes

    def starting_at(self, first_page: int) -> PageGroup:
        """The same pages, numbered from `first_page`."""
        slots = (Slot(s.tensor, msgspec.structs.replace(s.layout, first_page=first_page)) for s in self.slots)
        return PageGroup(self.name, self.layer, tuple(slots), self.count, self.page_bytes, self.tail_bytes)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """(rows, cols) of a tensor stored as a matrix: [n] is [1, n], [a, b, c] is [a b, c]."""
    return prod(shape[:-1]), shape[-1]


def slab_count(shape: Sequence[int], layout: TensorLayout) -> int:
    """Number of slabs that `layout` cuts a tensor into."""
    return -(-matrix_shape(shape)[layout.axis] // layout.step)


def region(shape: Sequence[int], layout: TensorLayout, k: int) -> Region:
    """What slab k covers."""
    rows, cols = matrix_shape(shape)
    start = k * layout.step
    if layout.axis == 0:
        return Region(start, min(start + layout.step, rows), 0, cols)
    return Region(0, rows, start, min(start + layout.step, cols))


def cut(matrix: np.ndarray, axis: int, step: int) -> list[np.ndarray]:
    """Views of `matrix` [rows, cols], `step` rows (axis 0) or columns (axis 1) each; the last may be short."""
    return [matrix[k : k + step] if axis == 0 else matrix[:, k : k + step] for k in range(0, matrix.shape[axis], step)]


def gather(pieces: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The matrix that `cut` cut."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=axis)


def align(nbytes: int) -> int:
    """The next multiple of PAGE_ALIGN."""
    return -(-nbytes // PAGE_ALIGN) * PAGE_ALIGN


def page_group(name: str, kind: str, tensors: Iterable[tuple[StoredTensor, int, int]]) -> PageGroup:
    """Pages that hold slab k of each (tensor, axis, step), one after another; all must be cut into the same number of slabs."""
    slots, at, tail_at, counts = [], 0, 0, set()
    for tensor, axis, step in tensors:
        probe = TensorLayout(kind=kind, axis=axis, step=step, first_page=0, offset=0, tail_offset=0)  # pyright: ignore[reportArgumentType]
        count = slab_count(tensor.shape, probe)
        counts.add(count)
        # a single page is the last one; its offset equals tail_offset so that there is one spelling
        slots.append(Slot(tensor, msgspec.structs.replace(probe, offset=tail_at if count == 1 else at, tail_offset=tail_at)))
        at += align(region(tensor.shape, probe, 0).nbytes(tensor.format))
        tail_at += align(region(tensor.shape, probe, count - 1).nbytes(tensor.format))
    assert len(counts) == 1, f"{name}: tensors are cut into {counts} slabs"
    return PageGroup(name, slots[0].tensor.layer, tuple(slots), counts.pop(), at, tail_at)


def pieces(group: PageGroup, k: int) -> Iterator[tuple[int, Slot, Region]]:
    """(offset, slot, region) of every slab in page k, in order of offset."""
    return ((slot.offset(k), slot, slot.region(k)) for slot in group.slots)
