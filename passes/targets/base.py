"""What the compiler must know of a target, as data and pure functions; nothing here opens a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One step of a run, all sizes known. `shapes` of its inputs, `outs` of its results; `format` of a matrix that it reads, else ""."""

    op: str
    attrs: Mapping[str, object]
    shapes: tuple[Shape, ...]
    outs: tuple[Shape, ...]
    format: str = ""
    biased: tuple[bool, ...] = ()  # per result of a linear
    keys: int = 0  # attention: positions read back from the cache
    kv_dtype: str = "f32"
    gathered: bool = False  # attention: the cache's blocks do not lie in order


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a step allocates: `peak` while it runs, `out` of each result kept afterwards.

    No `out`: the result is a view of the first input. One `out` for several results: they are views of one storage.
    """

    peak: int
    out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One device class. Byte counts are those of its runtime's allocations; workspace figures are never below them."""

    name: str
    candidates: tuple[str, ...]  # formats that it executes fast, besides the weights as stored
    resident_bytes: Callable[[str, int, int, int], int]  # (format, rows, cols, slabs side by side) of matrices that are loaded together
    vector_item_bytes: int  # of a norm weight or bias once loaded
    footprint: Callable[[Call], Footprint]
    table_bytes: Callable[[frozenset[tuple[str, int, int]], int], int]  # look-up tables kept for (format, rows, cols) loads and a number of tokens
    overhead_bytes: int  # of the runtime itself, stated and not measured
