"""The safetensors reader: equal to the official library on honest files; every dishonest one is refused, fast, with file and reason."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from thinlm.artifacts.foreign import read_small, sha256_of_file, strict_json
from thinlm.artifacts.safetensors_file import DTYPES, MAX_HEADER, open_safetensors
from thinlm.schemas.errors import InputError

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "b": {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]}}
A, B = GOOD["a"], GOOD["b"]


def raw_file(header: Any, data: int = 34, length: int | None = None) -> bytes:
    """A file around a header (bytes, text or JSON value) and `data` zero bytes; `length` overrides the stated header length."""
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def test_equals_the_official_library(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(0)
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn}
    kinds |= {"I64": torch.int64, "U8": torch.uint8, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}
    want = {name: torch.from_numpy(rng.normal(0, 9, (3, 5))).to(kind) for name, kind in kinds.items()}
    want |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4)}
    save_file(want, tmp_path / "x.safetensors", {"note": "text"})
    file = open_safetensors(tmp_path / "x.safetensors")
    assert file.metadata == {"note": "text"}
    assert set(file.tensors) == set(want)
    for name, tensor in want.items():
        got = file.array(name)
        assert (got.shape, got.tobytes()) == (
            tuple(tensor.shape),
            tensor.view(torch.uint8).numpy().tobytes() if tensor.ndim else tensor.numpy().tobytes(),
        )
        assert not got.flags.writeable
    assert {file.tensors[name].dtype for name in kinds} <= {ours for ours, _ in DTYPES.values()}
    assert file.array("F32").dtype == np.float32
    assert file.array("BF16").dtype == np.uint16


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["F32", "BF16", "U8"]), st.lists(st.integers(0, 4), max_size=3)), max_size=6), st.integers(0, 9))
def test_any_order_and_alignment(tmp_path_factory: pytest.TempPathFactory, tensors: list[tuple[str, list[int]]], padding: int) -> None:
    """Data need not be aligned; the header may list tensors in any order and be padded with spaces."""
    header, at, data = {}, 0, b""
    for i, (dtype, shape) in enumerate(tensors):
        size = int(np.prod(shape)) * np.dtype(DTYPES[dtype][1]).itemsize
        header[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at, data = at + size, data + bytes([i + 1]) * size
    path = tmp_path_factory.mktemp("s") / "x"
    path.write_bytes(raw_file(json.dumps(dict(reversed(header.items()))) + " " * padding, 0) + data)
    file = open_safetensors(path)
    for i, (_, shape) in enumerate(tensors):
        assert file.array(f"t{i}").tobytes() == bytes([i + 1]) * file.raw(f"t{i}").size
        assert file.tensors[f"t{i}"].shape == tuple(shape)


ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "too short"),
    "seven bytes": (b"\0" * 7, "too short"),
    "no header": (bytes(8), "not a JSON object"),
    "header beyond the file": (raw_file(GOOD, length=10_000), "header of 10000 bytes in a file of"),
    "header of exabytes": (raw_file(GOOD, length=2**63 - 1), "at most"),
    "header one byte above the limit": (raw_file(GOOD, length=MAX_HEADER + 1), "at most"),
    "truncated data": (raw_file(GOOD, data=33), "the file has"),
    "trailing data": (raw_file(GOOD, data=35), "the file has"),
    "not JSON": (raw_file("{'a': 1}"), "not strict JSON"),
    "text after the object": (raw_file("{}{}", 0), "not strict JSON"),
    "a list": (raw_file("[]", 0), "not a JSON object"),
    "leading space": (raw_file(" {}", 0), "not a JSON object"),
    "UTF-16": (raw_file("{}".encode("utf-16"), 0), "not a JSON object"),
    "not UTF-8": (raw_file(b'{"\xff": 1}', 0), "not strict JSON"),
    "nesting bomb": (raw_file('{"a":' + "[" * 200_000 + "]" * 200_000 + "}"), "not strict JSON"),
    "a number of a million digits": (raw_file('{"a":' + "9" * 1_000_000 + "}"), "not strict JSON"),
    "NaN": (raw_file('{"a": NaN}'), "not strict JSON"),
    "duplicate tensor": (raw_file('{"a": {"dtype":"U8","shape":[34],"data_offsets":[0,34]}, "a": {}}'), "'a' occurs twice"),
    "duplicate field": (raw_file('{"a": {"dtype":"U8","dtype":"U8","shape":[34],"data_offsets":[0,34]}}'), "'dtype' occurs twice"),
    "many keys, then a duplicate": (raw_file("{" + ",".join(f'"{i}":0' for i in range(100_000)) + ',"7":0}'), "'7' occurs twice"),
    "metadata is a list": (raw_file({**GOOD, "__metadata__": ["x"]}), "__metadata__"),
    "metadata with a number": (raw_file({**GOOD, "__metadata__": {"x": 1}}), "__metadata__"),
    "missing field": (raw_file({"a": {"dtype": "F32", "shape": [2]}}), "exactly dtype, shape and data_offsets"),
    "unknown field": (raw_file({"a": {**A, "extra": 1}, "b": B}), "exactly dtype, shape and data_offsets"),
    "entry is a number": (raw_file({"a": 1}), "exactly dtype, shape and data_offsets"),
    "unknown dtype": (raw_file({"a": {**A, "dtype": "F4"}, "b": B}), "dtype 'F4'"),
    "dtype is a list": (raw_file({"a": {**A, "dtype": ["F32"]}, "b": B}), "dtype"),
    "negative size": (raw_file({"a": {**A, "shape": [-2, -3]}, "b": B}), "sizes"),
    "size true": (raw_file({"a": {**A, "shape": [True, 6]}, "b": B}), "sizes"),
    "size 2.0": (raw_file({"a": {**A, "shape": [2.0, 3]}, "b": B}), "sizes"),
    "product overflows 64 bits": (raw_file({"a": {**A, "shape": [2**32, 2**32, 2**32]}, "b": B}), "needs"),
    "a size above 63 bits": (raw_file({"a": {**A, "shape": [2**64 + 6]}, "b": B}), "sizes"),
    "a rank of thousands": (raw_file({"a": {**A, "shape": [1] * 5000}, "b": B}), "sizes"),
    "shape and offsets disagree": (raw_file({"a": {**A, "shape": [2, 4]}, "b": B}), "24 bytes"),
    "offsets backwards": (raw_file({"a": {**A, "data_offsets": [24, 0]}, "b": B}), "bytes"),
    "negative offset": (raw_file({"a": {**A, "data_offsets": [-24, 0]}, "b": B}), "not [begin, end]"),
    "three offsets": (raw_file({"a": {**A, "data_offsets": [0, 24, 24]}, "b": B}), "not [begin, end]"),
    "overlap": (raw_file({"a": A, "b": {**B, "data_offsets": [20, 30]}}, 30), "starts at byte"),
    "gap": (raw_file({"a": A, "b": {**B, "data_offsets": [26, 36]}}, 36), "starts at byte"),
    "two tensors share their data": (raw_file({"a": A, "c": A, "b": B}), "starts at byte"),
    "beyond the file": (raw_file({"a": A, "b": {**B, "shape": [10**15], "data_offsets": [24, 24 + 2 * 10**15]}}), "the file has"),
    "a name of a megabyte": (raw_file({"x" * 1_000_000: 1}), "exactly dtype"),
}


def refused(call: Callable[[], Any], path: Path, reason: str) -> None:
    """InputError that names the file and the reason, in one short line and under a second."""
    start = time.process_time()
    with pytest.raises(InputError) as error:
        call()
    assert time.process_time() - start < 1
    text = str(error.value)
    assert text.startswith(str(path))
    assert reason in text
    assert "\n" not in text
    assert len(text) < 800


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks(attack: str, tmp_path: Path) -> None:
    content, reason = ATTACKS[attack]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(lambda: open_safetensors(path), path, reason)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    pipe, folder, missing, loop = (tmp_path / name for name in ("pipe", "folder", "missing", "loop"))
    os.mkfifo(pipe)
    folder.mkdir()
    loop.symlink_to(loop)
    for path, reason in ((pipe, "not a regular file"), (folder, "not a regular file"), (missing, "can't be read"), (loop, "can't be read")):
        for read in (open_safetensors, sha256_of_file, lambda p: read_small(p, 10)):
            refused(lambda read=read, path=path: read(path), path, reason)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(raw_file(GOOD))
    (tmp_path / "x.safetensors").symlink_to("blob")
    assert open_safetensors(tmp_path / "x.safetensors").array("a").shape == (2, 3)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(raw_file(GOOD))
    file = open_safetensors(path)
    path.write_bytes(raw_file(GOOD)[:-10])
    refused(lambda: file.raw("a"), path, "changed")


def test_small_files_are_small(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"12345")
    assert read_small(path, 5) == b"12345"
    refused(lambda: read_small(path, 4), path, "at most 4")


def test_strict_json_takes_what_json_is() -> None:
    assert strict_json('{"ä": [1, -2.5e3, null, true, "\\u00e4"]}'.encode(), "x") == {"ä": [1, -2500.0, None, True, "ä"]}
    for text in ("Infinity", "[1,]", "{1: 2}", "'a'", '"\t"', "01", "", '{"a":{"b":1,"b":1}}', "\ufeff{}"):
        with pytest.raises(InputError, match="not strict JSON"):
            strict_json(text.encode(), "x")
