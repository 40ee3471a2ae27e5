"""Attacks on safetensors files and their index."""

from __future__ import annotations

import json
import os
import shutil
import stat
import struct
from pathlib import Path
from typing import Any

from attacks_hf.folder import INDEX, WEIGHTS, Attack, deep, entry, grown, header, instead, put, read_header

NORM = "model.norm.weight"


def _length(value: int) -> Attack:
    def attack(folder: Path) -> None:
        raw = bytearray((folder / WEIGHTS).read_bytes())
        struct.pack_into("<Q", raw, 0, value)
        (folder / WEIGHTS).write_bytes(raw)

    return attack


def _with(raw: bytes) -> Attack:
    """A file of this header and no data."""
    return put(WEIGHTS, struct.pack("<Q", len(raw)) + raw)


def _many(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(count)) + b"}"


def _named(name: str) -> Attack:
    return header(lambda t: t.update({name: t.pop(NORM)}))


def _sharded(change: Any) -> Attack:
    """Two shards and an index that names them; `change` works on (folder, weight_map)."""

    def attack(folder: Path) -> None:
        table, _ = read_header(folder / WEIGHTS)
        (folder / WEIGHTS).rename(folder / "model-1.safetensors")
        names = {name: "model-1.safetensors" for name in table if name != "__metadata__"}
        change(folder, names)
        (folder / INDEX).write_text(json.dumps({"weight_map": names}))

    return attack


def _point(name: str) -> Attack:
    return _sharded(lambda folder, names: names.update({NORM: name}))


def _copy(folder: Path, names: dict[str, str]) -> None:
    shutil.copy(folder / "model-1.safetensors", folder / "model-2.safetensors")
    names["more"] = "model-2.safetensors"


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "no bytes": (put(WEIGHTS, b""), "too short"),
    "header of no bytes": (_length(0), "not a JSON object"),
    "header beyond the file": (_length(1 << 24), "in a file of"),
    "header of 2^64 - 1": (_length((1 << 64) - 1), "at most"),
    "header of 40 MB": (_with(b"{" + b" " * 40_000_000 + b"}"), "at most"),
    "header is a number": (_with(b"123"), "not a JSON object"),
    "header after white space": (header(lambda t: b" " + json.dumps(t).encode()), "not a JSON object"),
    "header with bytes after it": (header(lambda t: json.dumps(t).encode() + b"{}"), "not strict JSON"),
    "header in UTF-16": (_with('{"a":1}'.encode("utf-16-le")), "not strict JSON"),
    "header nested deep": (_with(b'{"a":' + deep(1_000_000).encode() + b"}"), "not strict JSON"),
    "header of a million values": (_with(b'{"a":[' + b"[]," * 2_000_000 + b"1]}"), "JSON values"),
    "a million tensors": (_with(_many(400_000)), "tensors; at most"),
    "262,144 tensors": (_with(_many(1 << 18)), "no row of the name table"),
    "a tensor twice": (header(lambda t: json.dumps(t)[:-1].encode() + b',"model.norm.weight":1}'), "occurs twice"),
    "a key twice in a tensor": (header(lambda t: json.dumps(t).replace('"dtype"', '"dtype": "F16", "dtype"', 1).encode()), "occurs twice"),
    "NaN": (header(lambda t: json.dumps(t).replace('"shape": [64]', '"shape": [NaN]', 1).encode()), "NaN"),
    "an endless number": (entry(shape=[1e400]), "Infinity"),
    "a number of 5,000 digits": (header(lambda t: json.dumps(t).replace("[64]", f"[{'9' * 5000}]", 1).encode()), "not strict JSON"),
    "a tensor is a list": (header(lambda t: t.update({NORM: [1]})), "exactly dtype, shape"),
    "a field too many": (entry(more=1), "exactly dtype, shape"),
    "an unknown dtype": (entry(dtype="F4"), "is none of"),
    "a dtype of a megabyte": (entry(dtype="F" * 1_000_000), "is none of"),
    "a dtype that is a list": (entry(dtype=["F16"]), "is none of"),
    "overlapping tensors": (entry(data_offsets=[0, 128], shape=[64], dtype="F16"), "the data before it ends at"),
    "a gap": (header(lambda t: [e.update(data_offsets=[o + 2 for o in e["data_offsets"]]) for k, e in t.items() if k != "__metadata__"]), "ends at"),
    "bytes that no tensor has": (header(lambda t: t.pop(max(t, key=lambda k: t[k].get("data_offsets", [0]))) and None), "the file has"),
    "negative offsets": (entry(data_offsets=[-128, 0]), "not [begin, end]"),
    "offsets turned round": (entry(data_offsets=[128, 0], shape=[64]), "bytes at data_offsets"),
    "an offset of 2^63": (entry(data_offsets=[0, 1 << 63]), "not [begin, end]"),
    "an offset of 2^63 - 1": (entry(data_offsets=[0, (1 << 63) - 1]), "bytes at data_offsets"),
    "three offsets": (entry(data_offsets=[0, 1, 2]), "not [begin, end]"),
    "offsets as text": (entry(data_offsets=["0", "128"]), "not [begin, end]"),
    "offsets as fractions": (entry(data_offsets=[0.0, 128.0]), "not [begin, end]"),
    "a shape that overflows": (entry(shape=[1 << 32, 1 << 32]), "bytes at data_offsets"),
    "a shape that wraps round to the truth": (entry(shape=[(1 << 62) + 16, 4]), "bytes at data_offsets"),
    "rank 9": (entry(shape=[1] * 9), "at most 8 sizes"),
    "rank of a million": (entry(shape=[1] * 1_000_000), "at most 8 sizes"),
    "a dim of 0": (entry(shape=[0, 5]), "bytes at data_offsets"),
    "a scalar": (header(lambda t: t.update(x={"dtype": "U8", "shape": [], "data_offsets": [0, 0]})), "bytes at data_offsets"),
    "an empty tensor": (header(lambda t: t.update(x={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})), "no row of the name table: x"),
    "a negative dim": (entry(shape=[-64]), "not a list of at most"),
    "a dim that is true": (entry(shape=[True]), "not a list of at most"),
    "a name with NUL": (_named("model.norm\0.weight"), "\\x00"),
    "a name with a line end": (_named("a\nb\x1b[2J"), "a\\nb\\x1b"),
    "a name of two megabytes": (_named("n" * 2_000_000), "no row of the name table"),
    "an empty name": (_named(""), "no row of the name table"),
    "a lone surrogate as name": (_named("\ud800"), "no row of the name table"),
    "metadata of numbers": (header(lambda t: t.update(__metadata__={"a": 1})), "__metadata__"),
    "metadata is a list": (header(lambda t: t.update(__metadata__=[])), "__metadata__"),
    "data cut off": (lambda f: os.truncate(f / WEIGHTS, (f / WEIGHTS).stat().st_size - 1), "the file has"),
    "100 GB of holes after the data": (grown(WEIGHTS, 100 << 30), "the file has"),
    "a socket": (instead(WEIGHTS, _socket), "not a regular file"),
    "index: ..": (_point("../model-1.safetensors"), "not the plain name"),
    "index: absolute": (_point("/etc/passwd.safetensors"), "not the plain name"),
    "index: a device": (_point("/dev/zero"), "not the plain name"),
    "index: a folder inside": (_point("a/b.safetensors"), "not the plain name"),
    "index: a backslash": (_point("..\\model.safetensors"), "not the plain name"),
    "index: a NUL": (_point("model\0.safetensors"), "not the plain name"),
    "index: a name of 300 letters": (_point("m" * 300 + ".safetensors"), "can't be read"),
    "index: a shard that is missing": (_point("model-9.safetensors"), "can't be read"),
    "index: a list as name": (_sharded(lambda f, n: n.update({NORM: ["x"]})), "not the plain name"),
    "index: a tensor in two shards": (_sharded(_copy), "is in model-1"),
    "index: names nothing": (_sharded(lambda f, n: n.clear()), "weight_map must map"),
    "index: lacks a tensor": (_sharded(lambda f, n: n.pop(NORM) and None), "the index says None"),
    "index: 5,000 shards": (_sharded(lambda f, n: n.update({str(i): f"m{i}.safetensors" for i in range(5000)})), "at most 4096"),
    "index: a list": (put(INDEX, "[]"), "not a JSON object"),
    "index: nested deep": (put(INDEX, deep(200_000)), "not strict JSON"),
    "index: 3 million names": (put(INDEX, '{"weight_map":{' + ",".join(f'"{i:x}":"a"' for i in range(2_500_000)) + "}}"), "JSON values"),
    "index: 100 GB": (grown(INDEX, 100 << 30), "at most"),
}
