"""One engine that packs, unpacks and decodes every number format from its FormatSpec; numpy float32, bit-exact.

In: parts, a dict of arrays [rows, count] per part of the format (see schemas/encoding.py). Codes are uint8; f16 is float16, f32 float32;
bf16 and f8e4m3 are carried as their bit patterns, uint16 and uint8 (formats/floats.py converts them).
Out: u8[rows, row_bytes(cols)] and back, and float32[rows, cols].
Refused with InputError: parts of another name, shape or dtype; codes that don't fit their bits; raw bytes of another width; no columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...schemas.encoding import ELEMENT_BITS, FormatSpec, PartSpec
from ...schemas.errors import InputError
from . import bits as bitstream
from .floats import bf16_to_f32, e4m3_to_f32

Parts = dict[str, np.ndarray]

STORAGE: dict[str, np.dtype] = {
    **{f"u{n}": np.dtype("u1") for n in range(1, 9)},
    "f8e4m3": np.dtype("u1"),
    "bf16": np.dtype("<u2"),
    "f16": np.dtype("<f2"),
    "f32": np.dtype("<f4"),
}
_BLOCK = 1 << 16  # weights decoded at a time, so that temporaries stay in a core's cache
_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@dataclass(frozen=True)
class Format:
    """A number format: its layout as data (`spec`) and what the compiler may know about it beyond decoding."""

    spec: FormatSpec
    family: str = "custom"  # "int", "float", "fp8", or "custom" for a format known from a manifest only
    bits: int = 0  # of one code, without scales
    affine: bool = False
    lossless: frozenset[str] = frozenset()  # source dtypes that it holds exactly

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def group(self) -> int:
        return self.spec.group

    def is_lossless_for(self, dtype: str) -> bool:
        """True when every finite or infinite value of source dtype "bf16", "f16" or "f32" survives."""
        return dtype in self.lossless

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row of `cols` weights."""
        return sum(part.stop - part.start for part in self._places(cols))

    def pack(self, parts: Parts) -> np.ndarray:
        """parts -> u8[rows, row_bytes]. The number of columns is the width of the format's "in" part."""
        cols, rows = self._shape_of(parts)
        raw = np.zeros((rows, self.row_bytes(cols)), np.uint8)
        for place in self._places(cols):
            raw[:, place.start : place.stop] = _to_bytes(place.part, parts[place.part.name])
        return raw

    def unpack(self, raw: np.ndarray, cols: int) -> Parts:
        """u8[rows, row_bytes(cols)] -> parts; arrays are copies or views of `raw`."""
        if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] != self.row_bytes(cols):
            raise InputError(f"{self.name}: raw is {raw.dtype}{list(raw.shape)}, expected uint8[rows, {self.row_bytes(cols)}]")
        return {p.part.name: _from_bytes(p.part, raw[:, p.start : p.stop], p.count) for p in self._places(cols)}

    def dequantize(self, parts: Parts, cols: int) -> np.ndarray:
        """parts -> float32[rows, cols], by the spec's value expression."""
        got, rows = self._shape_of(parts)
        if got != cols:
            raise InputError(f"{self.name}: parts hold {got} columns, expected {cols}")
        out = np.empty((rows, cols), np.float32)
        for block in _row_blocks(rows, cols):
            out[block] = self._evaluate({name: part[block] for name, part in parts.items()}, cols)
        return out

    def decode(self, raw: np.ndarray, cols: int, out: np.ndarray | None = None) -> np.ndarray:
        """dequantize(unpack(raw, cols), cols), a block of rows at a time: float32[rows, cols], written to `out` when given."""
        out = np.empty((len(raw), cols), np.float32) if out is None else out
        for block in _row_blocks(len(raw), cols):
            out[block] = self._evaluate(self.unpack(raw[block], cols), cols)
        return out

    @cached_property
    def _wide(self) -> str:
        """Name of the part with one element per column."""
        return next(part.name for part in self.spec.parts if part.count == "in")

    def _groups(self, cols: int) -> int:
        return -(-cols // self.group) if self.group else 1

    def _places(self, cols: int) -> Iterator[_Place]:
        if cols < 1:
            raise InputError(f"{self.name}: a row of {cols} columns")
        counts = {"in": cols, "groups": self._groups(cols), "one": 1}
        start = 0
        for part in self.spec.parts:
            stop = start + -(-counts[part.count] * ELEMENT_BITS[part.type] // 8)
            yield _Place(part, counts[part.count], start, stop)
            start = stop

    def _shape_of(self, parts: Parts) -> tuple[int, int]:
        """(cols, rows) of `parts`, after checking names, dtypes and shapes."""
        if set(parts) != {part.name for part in self.spec.parts}:
            raise InputError(f"{self.name}: parts {sorted(parts)}, expected {[part.name for part in self.spec.parts]}")
        rows, cols = parts[self._wide].shape
        for place in self._places(cols):
            got, want = parts[place.part.name], STORAGE[place.part.type]
            if got.dtype != want or got.shape != (rows, place.count):
                got_text = f"{got.dtype}{list(got.shape)}, expected {want}[{rows}, {place.count}]"
                raise InputError(f"{self.name}: part {place.part.name} is {got_text}")
        return cols, rows

    def _evaluate(self, parts: Parts, cols: int) -> np.ndarray:
        """float32[rows, cols]. Inside, arrays are [rows, groups, columns of a group], so that every part broadcasts."""
        rows, groups = len(parts[self._wide]), self._groups(cols)
        width = self.group or cols
        shapes = {"in": (rows, groups, width), "groups": (rows, groups, 1), "one": (rows, 1, 1)}
        ready = {}
        for part in self.spec.parts:
            array = parts[part.name]
            if part.count == "in" and groups * width != cols:
                array = np.pad(array, ((0, 0), (0, groups * width - cols)))
            ready[part.name] = (part.type, array.reshape(shapes[part.count]))
        value = np.broadcast_to(_value(self.spec.value, ready), shapes["in"])
        return value.reshape(rows, groups * width)[:, :cols]


@dataclass(frozen=True, slots=True)
class _Place:
    part: PartSpec
    count: int  # elements
    start: int  # bytes [start, stop) of a row
    stop: int


def _row_blocks(rows: int, cols: int) -> Iterator[slice]:
    step = max(1, _BLOCK // cols)
    return (slice(r, min(r + step, rows)) for r in range(0, rows, step))


def _value(node: Any, parts: dict[str, tuple[str, np.ndarray]]) -> np.ndarray:
    """Evaluate an expression; each operation rounds to float32."""
    if isinstance(node, str):
        return _as_f32(*parts[node])
    if not isinstance(node, tuple):
        return np.asarray(node, np.float32)
    match node:
        case ("take", table, codes):
            return np.take(np.asarray(table, np.float32), parts[codes][1])
        case ("exp2", operand):
            return np.ldexp(np.float32(1), _value(operand, parts).astype(np.int32))
        case (operation, left, right):
            return _BINARY[operation](_value(left, parts), _value(right, parts))
    raise AssertionError(f"FormatSpec let {node!r} pass")


def _as_f32(kind: str, array: np.ndarray) -> np.ndarray:
    if kind == "bf16":
        return bf16_to_f32(array)
    return e4m3_to_f32(array) if kind == "f8e4m3" else array.astype(np.float32)


def _to_bytes(part: PartSpec, array: np.ndarray) -> np.ndarray:
    if not part.type.startswith("u"):
        return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)
    width = ELEMENT_BITS[part.type]
    if array.size and int(array.max()) >> width:
        raise InputError(f"part {part.name}: code {int(array.max())} does not fit {part.type}")
    return bitstream.pack(array, width)


def _from_bytes(part: PartSpec, raw: np.ndarray, count: int) -> np.ndarray:
    if part.type.startswith("u"):
        return bitstream.unpack(raw, ELEMENT_BITS[part.type], count)
    return np.ascontiguousarray(raw).view(STORAGE[part.type]).reshape(len(raw), count)
