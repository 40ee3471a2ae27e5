"""What the compiler must know of a target, as data and pure functions; nothing here opens a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One device class. Byte counts are exact for what its runtime allocates."""

    name: str
    candidates: tuple[str, ...]  # formats that it executes fast, besides the weights as stored
    resident_bytes: Callable[[str, int, int], int]  # (format, rows, cols) of matrices that are loaded together
    scratch_bytes: Callable[[str, int, int, int], int]  # (format, rows, cols, tokens): bound for one product, its result included
    vector_item_bytes: int  # of a norm weight or bias once loaded
    overhead_bytes: int  # of the runtime itself, stated and not measured
