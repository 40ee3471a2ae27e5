"""Reads a safetensors file: the header at once, the data mapped on first use. No dependency beyond numpy.

A file is a u64 (little-endian) header length, a JSON header `{name: {dtype, shape, data_offsets}, "__metadata__": {str: str}}`, and data.
In: a path, links followed. Out: `SafetensorsFile`, its tensors in data order, read-only views of their bytes.
Refused with InputError (file and reason), before any data is touched:
  1. not a regular file, or shorter than it says; a header above MAX_HEADER bytes or MAX_TENSORS tensors
  2. a header that is not strict JSON (foreign.py)
  3. an entry with missing or unknown keys, a dtype outside DTYPES, a shape or offsets that aren't sizes
  4. data_offsets that disagree with dtype x shape, or that don't tile the data section without gap or overlap
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..schemas.errors import InputError
from .foreign import open_regular, short, strict_json

MAX_HEADER = 32 << 20  # the largest published headers (90,000 tensors) are below 12 MB
MAX_TENSORS = 1 << 18
MAX_RANK = 8

# header dtype -> (our name, numpy dtype of one element; bf16 and fp8 stay bit patterns)
DTYPES: dict[str, tuple[str, str]] = {
    "BF16": ("bf16", "<u2"),
    "F16": ("f16", "<f2"),
    "F32": ("f32", "<f4"),
    "F64": ("f64", "<f8"),
    "F8_E4M3": ("f8e4m3", "u1"),
    "F8_E5M2": ("f8e5m2", "u1"),
    "F8_E8M0": ("f8e8m0", "u1"),
    "BOOL": ("bool", "u1"),
    "U8": ("u8", "u1"),
    "I8": ("i8", "i1"),
    "U16": ("u16", "<u2"),
    "I16": ("i16", "<i2"),
    "U32": ("u32", "<u4"),
    "I32": ("i32", "<i4"),
    "U64": ("u64", "<u8"),
    "I64": ("i64", "<i8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: its bytes are [start, stop) of the file; `storage` is the numpy dtype of one element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    storage: str


@dataclass(slots=True)
class SafetensorsFile:
    """An opened file; `tensors` in the order of their data. The file is mapped when the first tensor is read."""

    path: Path
    size: int
    header_sha256: str
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    _data: np.ndarray | None = field(default=None, repr=False)

    def raw(self, name: str) -> np.ndarray:
        """u8[nbytes], a read-only view of the mapped file."""
        info = self.tensors[name]
        return self._mapped()[info.start : info.stop]

    def array(self, name: str) -> np.ndarray:
        """The tensor in its shape, a read-only view; bf16 and fp8 are bit patterns (uint16, uint8)."""
        info = self.tensors[name]
        return self.raw(name).view(info.storage).reshape(info.shape)

    def _mapped(self) -> np.ndarray:
        if self._data is None:
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    raise InputError(f"{self.path}: the file's size changed since its header was read")
                self._data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        return self._data


def open_safetensors(path: Path) -> SafetensorsFile:
    """Read and check the header; InputError as the module says."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            _refuse(path, f"{size} bytes are too short for a safetensors file")
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            _refuse(path, f"a header of {length} bytes; at most {MAX_HEADER} are read")
        if 8 + length > size:
            _refuse(path, f"a header of {length} bytes in a file of {size}")
        header = file.read(length)
    if (most := header.count(b"{") - 1) > MAX_TENSORS:
        _refuse(path, f"a header of up to {most} tensors; at most {MAX_TENSORS} are read")
    entries = strict_json(header, str(path)) if header[:1] == b"{" else None
    if not isinstance(entries, dict):
        _refuse(path, "the header is not a JSON object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse(path, "__metadata__ must map strings to strings")
    tensors = sorted((_entry(path, name, entry, 8 + length) for name, entry in entries.items()), key=lambda t: (t.start, t.stop))
    _check_tiling(path, tensors, 8 + length, size)
    return SafetensorsFile(path, size, hashlib.sha256(header).hexdigest(), metadata, {t.name: t for t in tensors})


def _refuse(path: Path, why: str) -> NoReturn:
    raise InputError(f"{path}: {why}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"tensor {short(name)}: an entry has exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        _refuse(path, f"tensor {short(name)}: dtype {short(dtype)} is none of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        _refuse(path, f"tensor {short(name)}: shape {short(shape)} is not a list of at most {MAX_RANK} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        _refuse(path, f"tensor {short(name)}: data_offsets {short(offsets)} are not [begin, end]")
    ours, storage = DTYPES[dtype]
    begin, end = offsets
    if end - begin != prod(shape) * np.dtype(storage).itemsize:
        _refuse(path, f"tensor {short(name)}: {end - begin} bytes at data_offsets {offsets}, but {dtype}{shape} needs {prod(shape)} elements")
    return TensorInfo(name, ours, tuple(shape), data_start + begin, data_start + end, storage)


def _check_tiling(path: Path, tensors: list[TensorInfo], data_start: int, size: int) -> None:
    at = data_start
    for tensor in tensors:
        if tensor.start != at:
            _refuse(path, f"tensor {short(tensor.name)} starts at byte {tensor.start}, but the data before it ends at {at}")
        at = tensor.stop
    if at != size:
        _refuse(path, f"the header describes {at} bytes, the file has {size}")
