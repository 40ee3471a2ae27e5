"""What calibration learned, and its file: one .npz of plain arrays with a JSON header, checked when read.

Arrays: `header` u8 (JSON); per linear input `input/KEY/mean` f64[c] and `input/KEY/second` f64[c] or f32[c, c] (mean of x x'); per linear
weight `output/PARAM` f64[out]; per embedding table `table/PARAM/counts` i64[V] and `table/PARAM/gradient` f64[H].
Refused with InputError: no such archive, pickles, packed members or such that claim more bytes than the file has, another schema, arrays that
are missing, extra, of another dtype or shape, negative or not finite, or whose digest is not the header's.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from ...artifacts.foreign import open_regular
from ...schemas.canonical import canonical_bytes
from ...schemas.errors import InputError

# What zipfile and numpy raise for files that are none of theirs, are encrypted, packed in an unknown way, or damaged anywhere.
_END = 98  # bytes of the three records that end a ZIP file, the ZIP64 ones included
MAX_DIRECTORY = 8 << 20
_FORMAT = (ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError, OverflowError, SyntaxError, MemoryError)
_UNREADABLE = (*_FORMAT, OSError, zipfile.BadZipFile, zlib.error, struct.error, msgspec.DecodeError)


class StatsHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the statistics come from. `inputs` maps each linear weight to the key of its input's moments; shared inputs share a key."""

    schema: Literal["thinc.stats/1"] = "thinc.stats/1"
    source: str
    text: str  # digest of the windows' token ids
    tokens: int
    gradient_tokens: int
    seed: int
    inputs: dict[str, str]
    arrays: str = ""  # digest of all arrays, filled in when saved


@dataclass(frozen=True, slots=True)
class InputMoments:
    """Moments of one linear input over all calibration tokens: mean f64[c], second f32[c, c] (mean of x x') or f64[c] (its diagonal)."""

    mean: np.ndarray
    second: np.ndarray

    @property
    def diagonal(self) -> np.ndarray:
        """Mean square of each column, f64[c]."""
        return self.second if self.second.ndim == 1 else self.second.diagonal().astype(np.float64)


@dataclass(frozen=True, slots=True)
class TableMoments:
    """An embedding table: how often each row was read, and the mean squared loss gradient of each column of what it returns."""

    counts: np.ndarray
    gradient: np.ndarray


@dataclass(frozen=True, slots=True)
class Stats:
    """All statistics. `outputs[param]` is the mean squared loss gradient f64[out] at that linear's output; a token's loss is in nats."""

    header: StatsHeader
    moments: Mapping[str, InputMoments]
    outputs: Mapping[str, np.ndarray]
    tables: Mapping[str, TableMoments]

    def input_of(self, param: str) -> InputMoments:
        """Moments of the input of that linear weight; KeyError."""
        return self.moments[self.header.inputs[param]]

    def digest(self) -> str:
        """SHA-256 of everything: header and arrays."""
        return hashlib.sha256(canonical_bytes(self._sealed())).hexdigest()

    def _sealed(self) -> StatsHeader:
        return msgspec.structs.replace(self.header, arrays=_digest(self._arrays()))

    def _arrays(self) -> dict[str, np.ndarray]:
        out = {f"output/{name}": array for name, array in self.outputs.items()}
        for key, m in self.moments.items():
            out |= {f"input/{key}/mean": m.mean, f"input/{key}/second": m.second}
        for name, t in self.tables.items():
            out |= {f"table/{name}/counts": t.counts, f"table/{name}/gradient": t.gradient}
        return out


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def save_stats(stats: Stats, path: Path) -> None:
    """Write the file, whole or not at all; an existing one is replaced."""
    header = np.frombuffer(canonical_bytes(stats._sealed()), np.uint8)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, header=header, **stats._arrays())
    temporary.replace(path)


def load_stats(path: Path) -> Stats:
    """Read and check the file; InputError."""
    try:
        with open_regular(path) as file, np.load(_sober(file), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = msgspec.json.decode(arrays.pop("header").tobytes(), type=StatsHeader)
    except _UNREADABLE as e:
        raise InputError(f"{path}: not calibration statistics ({str(e)[:200]})") from e
    if _digest(arrays) != header.arrays:
        raise InputError(f"{path}: calibration statistics are damaged: their digest is not the one stated")
    return _stats(path, msgspec.structs.replace(header, arrays=""), arrays)


def _sober(file: FileIO) -> FileIO:
    """The archive, if reading it takes no more memory than it has bytes, as those that `save_stats` writes; ValueError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END))
    tail = file.read(_END)
    listed = int.from_bytes(tail[-10:-6], "little")  # bytes of the directory, which zipfile reads whole
    listed = int.from_bytes(tail[40:48], "little") if listed == 0xFFFFFFFF else listed
    if tail[-22:-18] != b"PK\5\6" or listed > MAX_DIRECTORY:
        raise ValueError("it does not end like an archive of arrays, or lists too many")
    with zipfile.ZipFile(file) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.filelist) or sum(i.file_size for i in archive.filelist) > size:
            raise ValueError("its members are packed or overlap; save_stats writes them as they are")
        for info in archive.filelist:
            with archive.open(info) as member:
                _require_whole(member, info.file_size)
    file.seek(0)
    return file


def _require_whole(member: IO[bytes], size: int) -> None:
    """ValueError for an array that claims other bytes than follow: numpy would make room for them first."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read[np.lib.format.read_magic(member)](member)
    if dtype.hasobject or prod(shape) * dtype.itemsize != size - member.tell():
        raise ValueError(f"an array of shape {list(shape)[:8]} is not what follows")


def _stats(path: Path, header: StatsHeader, arrays: dict[str, np.ndarray]) -> Stats:
    """The arrays sorted by kind."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fi" or not np.isfinite(array).all() or (not name.startswith("input/") and (array < 0).any()):
            raise InputError(f"{path}: {name}: expected finite numbers, not negative ones where they count or square")
    try:
        keys = sorted(set(header.inputs.values()))
        moments = {key: InputMoments(arrays.pop(f"input/{key}/mean"), arrays.pop(f"input/{key}/second")) for key in keys}
        outputs = {param: arrays.pop(f"output/{param}") for param in header.inputs}
        names = [name.removeprefix("table/").removesuffix("/counts") for name in arrays if name.endswith("/counts")]
        tables = {name: TableMoments(arrays.pop(f"table/{name}/counts"), arrays.pop(f"table/{name}/gradient")) for name in names}
    except KeyError as e:
        raise InputError(f"{path}: calibration statistics lack {e}") from e
    if arrays:
        raise InputError(f"{path}: unexpected array {sorted(arrays)[0]!r} in calibration statistics")
    for key, m in moments.items():
        if m.mean.ndim != 1 or m.second.shape not in (m.mean.shape, m.mean.shape * 2):
            raise InputError(f"{path}: moments of {key}: mean {list(m.mean.shape)} and second {list(m.second.shape)} do not fit")
    return Stats(header, moments, outputs, tables)
