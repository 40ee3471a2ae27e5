"""A Hugging Face model folder: config.json and safetensors, single or sharded; only headers are read.

In: a path. Out: `Folder`: the parsed config, every tensor's place, the tokenizer files on demand. Weights come from `model.safetensors`, or
from the shards that `model.safetensors.index.json` names, by plain file names. model_folder.py says which links are followed.
Refused with InputError: a path that does not exist (with the download command if it looks like a hub id), a file, a folder without
safetensors (pickled weights are never opened), an index that disagrees with its shards, a tensor in two shards, oversized or lenient JSON, a
slow tokenizer without tokenizer.json, and what model_folder.py refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...artifacts.foreign import short, strict_json
from ...artifacts.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from ...runtime_min.tokenizer import MAX_BYTES
from ...runtime_min.tokenizer_check import MAX_BYTES as MAX_TOKENIZER
from ...schemas.errors import InputError
from .model_folder import ModelFolder, list_folder

GENERATION = "generation_config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_CONFIG, MAX_INDEX = 4 << 20, 32 << 20
MAX_SHARDS = 4096
CHUNK = 4 << 20
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", GENERATION)
SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "vocab.txt", "tekken.json")
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*\.safetensors")


@dataclass(frozen=True, slots=True)
class Folder:
    """`tensors` by name; `files` by file name; `owner` says which file holds a tensor."""

    path: Path
    place: ModelFolder
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
        return _object(self.place, GENERATION, MAX_CONFIG)[0] if self.place.has(GENERATION) else {}

    def tokenizer_files(self) -> dict[str, bytes]:
        """Contents of those of TOKENIZER_FILES that exist, unchanged; empty for a model without tokenizer."""
        limits = {name: MAX_TOKENIZER if name == "tokenizer.json" else MAX_BYTES for name in TOKENIZER_FILES}
        found = {name: self.place.read(name, limit) for name, limit in limits.items() if self.place.has(name)}
        slow = [name for name in SLOW_TOKENIZERS if self.place.has(name)]
        if slow and "tokenizer.json" not in found:
            raise InputError(
                f"{self.path}: the tokenizer is only there as {', '.join(slow)}; write a tokenizer.json with "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers"
            )
        return found


def read_folder(path: Path) -> Folder:
    """Read config and headers; InputError as the module says."""
    _check_folder(path)
    place = list_folder(path)
    if not place.has("config.json"):
        raise InputError(f"{path}: no config.json; give a Hugging Face model folder")
    config, config_bytes = _object(place, "config.json", MAX_CONFIG)
    names, index = _shards(place)
    files = {name: open_safetensors(place.file(name)) for name in names}
    tensors: dict[str, TensorInfo] = {}
    owner: dict[str, str] = {}
    for file_name, file in files.items():
        for name, info in file.tensors.items():
            if name in tensors:
                raise InputError(f"{path}: tensor {short(name)} is in {owner[name]} and in {file_name}")
            tensors[name], owner[name] = info, file_name
    if index is not None and index != owner:
        odd = next(iter(index.items() ^ owner.items()))[0]
        raise InputError(f"{path / INDEX}: tensor {short(odd)}: the index says {index.get(odd)}, the shards say {owner.get(odd)}")
    return Folder(path, place, config, config_bytes, files, tensors, owner)


def _check_folder(path: Path) -> None:
    text = str(path)
    if not path.exists():
        if _HUB_ID.fullmatch(text):
            name = text.split("/")[1]
            raise InputError(f"{text}: no such folder. If it is a model on the hub, download it first: hf download {text} --local-dir {name}")
        raise InputError(f"{text}: no such folder")
    if not path.is_dir():
        raise InputError(f"{text}: not a folder; give a Hugging Face model folder with config.json and safetensors files")


def _shards(place: ModelFolder) -> tuple[tuple[str, ...], Mapping[str, str] | None]:
    """File names, and tensor -> file name where an index says so."""
    path = place.path
    if place.has(INDEX):
        names, weight_map = _indexed(place)
        if place.has(SINGLE) and SINGLE not in names:
            raise InputError(f"{path}: both {SINGLE} and {INDEX}, which does not name it; remove the stale one")
        return names, weight_map
    if place.has(SINGLE):
        return (SINGLE,), None
    pickled = place.ending_in(PICKLED)
    if pickled:
        raise InputError(f"{path}: weights only as {pickled[0]}, a pickle, which can run code; convert them to safetensors first")
    raise InputError(f"{path}: no {SINGLE} and no {INDEX}")


def _indexed(place: ModelFolder) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The index's file names, sorted, and its map."""
    where, weight_map = place.path / INDEX, _object(place, INDEX, MAX_INDEX)[0].get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{where}: weight_map must map tensor names to file names")
    for name in weight_map.values():
        if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
            raise InputError(f"{where}: {str(name)[:120]!r} is not the plain name of a safetensors file")
    names = tuple(sorted(set(weight_map.values())))
    if len(names) > MAX_SHARDS:
        raise InputError(f"{where}: {len(names)} files; at most {MAX_SHARDS} are read")
    return names, weight_map


def _object(place: ModelFolder, name: str, limit: int) -> tuple[dict[str, Any], bytes]:
    """A JSON object and its bytes."""
    data = place.read(name, limit)
    value = strict_json(data, str(place.path / name))
    if not isinstance(value, dict):
        raise InputError(f"{place.path / name}: not a JSON object")
    return value, data
