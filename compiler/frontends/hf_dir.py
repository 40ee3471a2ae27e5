"""A Hugging Face model folder: config.json and safetensors, single or sharded; only headers are read.

In: a path. Out: `Folder`: the parsed config, every tensor's place, the tokenizer files on demand. Weights come from `model.safetensors`, or
from the shards that `model.safetensors.index.json` names. Links are followed (a hub cache is a folder of links); names in the index must
be plain file names.
Refused with InputError: a path that does not exist (with the download command if it looks like a hub id), a file, a folder without
safetensors (pickled weights are never opened), an index that disagrees with its shards, a tensor in two shards, oversized or lenient JSON, a
slow tokenizer without tokenizer.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...artifacts.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors, read_small, strict_json
from ...schemas.errors import InputError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_JSON, MAX_TOKENIZER = 32 << 20, 256 << 20
CHUNK = 4 << 20
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json")
SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "vocab.txt", "tekken.json")
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*\.safetensors")


@dataclass(frozen=True, slots=True)
class Folder:
    """`tensors` by name; `files` by file name; `owner` says which file holds a tensor."""

    path: Path
    config: Mapping[str, Any]
    config_bytes: bytes
    files: Mapping[str, SafetensorsFile]
    tensors: Mapping[str, TensorInfo]
    owner: Mapping[str, str]

    def array(self, name: str) -> np.ndarray:
        """A tensor as a read-only mapped view; bf16 as uint16."""
        return self.files[self.owner[name]].array(name)

    def same_bytes(self, a: str, b: str) -> bool:
        """True when two tensors agree in dtype, shape and every byte; stops at the first difference."""
        first, second = self.tensors[a], self.tensors[b]
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return False
        x, y = self.files[self.owner[a]].raw(a), self.files[self.owner[b]].raw(b)
        return all(np.array_equal(x[i : i + CHUNK], y[i : i + CHUNK]) for i in range(0, len(x), CHUNK))

    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json, empty when there is none."""
        path = self.path / "generation_config.json"
        return _object(path, read_small(path, MAX_JSON)) if path.exists() else {}

    def tokenizer_files(self) -> dict[str, bytes]:
        """Contents of those of TOKENIZER_FILES that exist, unchanged; empty for a model without tokenizer."""
        found = {name: read_small(self.path / name, MAX_TOKENIZER) for name in TOKENIZER_FILES if (self.path / name).exists()}
        slow = [name for name in SLOW_TOKENIZERS if (self.path / name).exists()]
        if slow and "tokenizer.json" not in found:
            raise InputError(
                f"{self.path}: the tokenizer is only there as {', '.join(slow)}; write a tokenizer.json with "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers"
            )
        return found


def read_folder(path: Path) -> Folder:
    """Read config and headers; InputError as the module says."""
    _check_folder(path)
    config_bytes = read_small(path / "config.json", MAX_JSON)
    config = _object(path / "config.json", config_bytes)
    names, index = _shards(path)
    files = {name: open_safetensors(path / name) for name in names}
    tensors: dict[str, TensorInfo] = {}
    owner: dict[str, str] = {}
    for file_name, file in files.items():
        for name, info in file.tensors.items():
            if name in tensors:
                raise InputError(f"{path}: tensor {name[:120]!r} is in {owner[name]} and in {file_name}")
            tensors[name], owner[name] = info, file_name
    if index is not None and index != owner:
        odd = next(iter(index.items() ^ owner.items()))[0]
        raise InputError(f"{path / INDEX}: tensor {odd[:120]!r}: the index says {index.get(odd)}, the shards say {owner.get(odd)}")
    return Folder(path, config, config_bytes, files, tensors, owner)


def _check_folder(path: Path) -> None:
    text = str(path)
    if not path.exists():
        if _HUB_ID.fullmatch(text):
            name = text.split("/")[1]
            raise InputError(f"{text}: no such folder. If it is a model on the hub, download it first: hf download {text} --local-dir {name}")
        raise InputError(f"{text}: no such folder")
    if not path.is_dir():
        raise InputError(f"{text}: not a folder; give a Hugging Face model folder with config.json and safetensors files")
    if not (path / "config.json").exists():
        raise InputError(f"{text}: no config.json; give a Hugging Face model folder")


def _shards(path: Path) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    """File names, and tensor -> file name where an index says so."""
    single, index = (path / SINGLE).exists(), (path / INDEX).exists()
    if index:
        weight_map = _object(path / INDEX, read_small(path / INDEX, MAX_JSON)).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(f"{path / INDEX}: weight_map must map tensor names to file names")
        for name in weight_map.values():
            if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
                raise InputError(f"{path / INDEX}: {str(name)[:120]!r} is not the plain name of a safetensors file")
        names = set(weight_map.values())
        if single and SINGLE not in names:
            raise InputError(f"{path}: both {SINGLE} and {INDEX}, which does not name it; remove the stale one")
        return tuple(sorted(names)), weight_map
    if single:
        return (SINGLE,), None
    pickled = sorted(f.name for f in path.iterdir() if f.suffix in PICKLED)
    if pickled:
        raise InputError(f"{path}: weights only as {pickled[0]}, a pickle, which can run code; convert them to safetensors first")
    raise InputError(f"{path}: no {SINGLE} and no {INDEX}")


def _object(path: Path, data: bytes) -> dict[str, Any]:
    value = strict_json(data, str(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object")
    return value
