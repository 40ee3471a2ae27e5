"""Attacks on the other files that a command reads: recipes, texts, statistics, scores. Each makes a path out of a folder."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attacks_hf.folder import deep

Made = Callable[[Path], Path]
HUGE = 100 << 30


def _file(name: str, content: bytes | str = b"", size: int | None = None) -> Made:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if size is not None:
            os.truncate(path, size)
        return path

    return make


def _special(name: str, make: Callable[[Path], object]) -> Made:
    def made(folder: Path) -> Path:
        make(folder / name)
        return folder / name

    return made


def _link(name: str, target: str) -> Made:
    return _special(name, lambda path: path.symlink_to(target))


def _inside(made: Made) -> Made:
    """The thing in a folder, beside a text in order; the folder is given."""

    def make(folder: Path) -> Path:
        (folder / "good.txt").write_text("text " * 99)
        made(folder)
        return folder

    return make


def _npy(shape: str, data: bytes = b"", dtype: str = "<f8") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(10 + len(head) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data


def _archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _pickled() -> bytes:
    file = io.BytesIO()
    np.savez(file, header=np.array([{"a": 1}], object))  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _overlapping() -> bytes:
    """Members that lie inside each other: 150 arrays of 4 MiB in a file of 4 MiB, every header and CRC in order."""
    data, entries, count = bytes(4 << 20), [], 150
    for n in range(count):
        array = _npy(f"({len(data)},)", data, "|u1")
        name = f"{n}.npy".encode()
        same = struct.pack("<5H3I2H", 20, 0, 0, 0, 33, zlib.crc32(array), len(array), len(array), len(name), 0)
        entries.append((name, same, len(array)))
        data = b"PK\3\4" + same + name + array
    table = b""
    for name, same, size in reversed(entries):
        at = len(data) - size - len(name) - 30
        table += b"PK\1\2" + struct.pack("<H", 20) + same + struct.pack("<3H2I", 0, 0, 0, 0, at) + name
    return data + table + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, count, count, len(table), len(data), 0)


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
RECIPES: dict[str, Made] = {
    "a billion laughs": _file("r.yaml", LAUGHS + "candidates: *j"),
    "a list that holds itself": _file("r.yaml", "candidates: &a [*a]"),
    "merged keys": _file("r.yaml", "a: &a {k: 1}\nb: {<<: [*a, *a, *a]}"),
    "code": _file("r.yaml", '!!python/object/apply:os.system ["true"]'),
    "a name of code": _file("r.yaml", "budget: !!python/name:os.system"),
    "two documents": _file("r.yaml", "context: 16\n---\ncontext: 17"),
    "deep flow": _file("r.yaml", "gate: " + deep(30_000)),
    "deep blocks": _file("r.yaml", "".join(" " * n + "a:\n" for n in range(350))),
    "deep objects": _file("r.json", '{"a":' * 10_000 + "1" + "}" * 10_000),
    "100 GB": _file("r.yaml", b"a", HUGE),
    "100 KB": _file("r.json", b" " * 100_000),
    "a pipe": _special("r.yaml", os.mkfifo),
    "a folder": _special("r.json", Path.mkdir),
    "endless zeros": _link("r.yaml", "/dev/zero"),
    "a terminal": _link("r.json", "/dev/tty"),
    "UTF-16": _file("r.json", "{}".encode("utf-16")),
    "a byte order mark": _file("r.json", b"\xef\xbb\xbf{}"),
    "a number of 9,000 digits": _file("r.yaml", "context: " + "9" * 9000),
    "a base-60 number": _file("r.yaml", "context: 1" + ":59" * 9000),
    "binary": _file("r.yaml", bytes(range(256))),
}
TEXTS: dict[str, Made] = {
    "a pipe": _special("t.txt", os.mkfifo),
    "endless zeros": _link("t.txt", "/dev/zero"),
    "a folder with a pipe": _inside(_special("t.txt", os.mkfifo)),
    "a folder with a link that leaves": _inside(_link("t.txt", "/etc/passwd")),
    "a folder with a link to a device": _inside(_link("t.txt", "/dev/zero")),
    "a folder with a linked folder": _inside(_link("more.txt", "/etc")),
    "a folder with a link to nothing": _inside(_link("t.txt", "nowhere")),
    "a folder of folders": _special("d", lambda path: (path / "a" / "b" / "c").mkdir(parents=True)),
    "100 GB": _file("t.txt", b"a", HUGE),
    "a folder with 100 GB": _inside(_file("t.jsonl", b"a", HUGE)),
    "not UTF-8": _file("t.txt", b"abc\xc3\x28"),
    "no text": _file("t.txt", b" \n\t"),
    "16 million lines": _file("t.jsonl", b"1\n" * 8_000_000),
    "a million documents": _file("t.jsonl", b'{"text":"a"}\n' * 1_000_000),
    "deep JSON": _file("t.jsonl", b'{"text":' + deep(100_000).encode() + b"}"),
    "deep JSON under a key of no interest": _file("t.jsonl", b'{"more":' + deep(100_000).encode() + b',"text":"a"}'),
    "a lone surrogate": _file("t.jsonl", b'{"text":"\\ud800"}'),
}
STATS: dict[str, Made] = {
    "a pipe": _special("s.npz", os.mkfifo),
    "endless zeros": _link("s.npz", "/dev/zero"),
    "a folder": _special("s.npz", Path.mkdir),
    "nothing": _file("s.npz"),
    "100 GB of holes": _file("s.npz", b"PK\3\4", HUGE),
    "one array": _file("s.npz", _npy("(1,)", bytes(8))),
    "a pickle": _file("s.npz", _pickled()),
    "a pickle alone": _file("s.npz", b"\x80\x04K\x01."),
    "packed": _file("s.npz", _archive({"header": bytes(1 << 20)}, zipfile.ZIP_DEFLATED)),
    "overlapping members": _file("s.npz", _overlapping()),
    "a shape of 2^60": _file("s.npz", _archive({"header": _npy("(1152921504606846976,)")})),
    "a shape of 16 GB": _file("s.npz", _archive({"header": _npy("(2147483648,)")})),
    "a shape that overflows": _file("s.npz", _archive({"header": _npy("(4294967296, 4294967296)")})),
    "a negative shape": _file("s.npz", _archive({"header": _npy("(-1,)")})),
    "a shape that is code": _file("s.npz", _archive({"header": _npy("__import__('os')")})),
    "a shape nested deep": _file("s.npz", _archive({"header": _npy("(" * 3000 + ")" * 3000)})),
    "no bytes each": _file("s.npz", _archive({"header": _npy("(1152921504606846976,)", dtype="|S0")})),
    "a header that is no JSON": _file("s.npz", _archive({"header": _npy("(2,)", b"[[", "|u1")})),
    "a header that is nested deep": _file("s.npz", _archive({"header": _npy("(100000,)", b"[" * 100_000, "|u1")})),
    "a directory of 100 MB": _file("s.npz", _archive({"header": b""}) + b"PK\5\6" + bytes(8) + (100 << 20).to_bytes(4, "little") + bytes(6)),
}
SCORES: dict[str, Made] = {
    "a pipe": _special("s.json", os.mkfifo),
    "endless zeros": _link("s.json", "/dev/zero"),
    "100 GB of holes": _file("s.json", b"{", HUGE),
    "not JSON": _file("s.json", b"\xff"),
    "nested deep": _file("s.json", b'{"groups":' + deep(100_000).encode()),
    "nested deep in a list": _file("s.json", b'{"groups":[{"params":[' + deep(100_000).encode()),
    "other fields": _file("s.json", b'{"scored":true}'),
    "endless numbers": _file("s.json", json.dumps({"scored": True, "stats": "", "logical_parameters": 10**30, "groups": []})),
    "of nothing": _file("s.json", json.dumps({"scored": True, "stats": "", "logical_parameters": 1, "groups": []})),
}
