"""One architecture as data (`Adapter`), and the engine that turns a folder into a verified graph and its weights.

Name table rows: (checkpoint name, slot), `{L}` standing for the layer number on both sides; slot None = dropped on purpose, and then the
name may end in `*`. The engine demands that every tensor of the checkpoint matches exactly one row, that every slot of the graph is filled
once, and that shapes and dtypes agree; FrontendError lists the first three of each kind of mismatch. No weight is read, with one exception: a
head stored beside an embedding that it is tied to must hold the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...runtime_min.tokenizer import MAX_EOS, MAX_ID
from ...schemas.errors import FrontendError
from ...schemas.graph import DTYPES, Graph
from ...schemas.verify import checked
from .blocks import Config, build
from .config_reader import ConfigReader
from .hf_dir import Folder
from .source import Binding, SourceCheckpoint

Row = tuple[str, str | None]
SHOWN = 3
_NUMBER = re.compile(r"\.(0|[1-9][0-9]{0,5})\.")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says about itself beyond the graph. `eos_ids` prefers generation_config.json to config.json."""

    family: str
    architecture: str
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A family: `defaults` are what transformers assumes for missing config keys. Derive a relative with dataclasses.replace."""

    family: str
    architecture: str
    model_type: str
    defaults: Mapping[str, Any]
    config: Callable[[ConfigReader], Config]
    names: tuple[Row, ...]


def prefixed(prefix: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with `prefix` before their checkpoint names."""
    return tuple((prefix + name, slot) for name, slot in rows)


def import_checkpoint(adapter: Adapter, folder: Folder) -> tuple[Graph, SourceCheckpoint, ModelInfo]:
    """Read the config, build the graph, bind every tensor; FrontendError as the module says."""
    reader = ConfigReader(folder.config, adapter.defaults, f"{adapter.family}: config.json")
    config = adapter.config(reader)
    reader.finish()
    found, problems = _match(adapter.names, folder)
    if config.layers > len(folder.tensors):
        raise FrontendError(f"{adapter.family}: {folder.path}: {config.layers} layers in config.json, but only {len(folder.tensors)} tensors")
    graph = build(config, adapter.family, {slot: folder.tensors[name].dtype for slot, name in found.items()})
    shapes = {p.name: p.shape for p in graph.params}
    if "head" in found and config.tied and "embed" in found:
        _check_tied(folder, found.pop("head"), found["embed"])
    problems["have no place in the model"] = [f"{name} ({slot})" for slot, name in found.items() if slot not in shapes]
    problems["are missing"] = [slot for slot in shapes if slot not in found]
    for slot in shapes.keys() & found.keys():
        tensor = folder.tensors[found[slot]]
        if tensor.shape != shapes[slot]:
            problems["differ in shape"].append(f"{tensor.name} {list(tensor.shape)}, expected {list(shapes[slot])}")
        if tensor.dtype not in DTYPES:
            problems["have a dtype that can't be read"].append(f"{tensor.name} {tensor.dtype}, expected one of {', '.join(DTYPES)}")
    _raise(adapter, folder, problems)
    dropped = tuple(sorted(set(folder.tensors) - set(found.values())))
    weights = SourceCheckpoint(folder, {slot: Binding(found[slot]) for slot in shapes}, dropped)
    return checked(graph), weights, _info(adapter, folder, config)


def _match(rows: Sequence[Row], folder: Folder) -> tuple[dict[str, str], dict[str, list[str]]]:
    """slot -> tensor name, and what went wrong on the way."""
    exact = {name: slot for name, slot in rows if not name.endswith("*")}
    families = tuple(name[:-1] for name, _ in rows if name.endswith("*"))
    assert len(exact) + len(families) == len(rows) and not any(n.startswith(families) for n in exact), "rows overlap"
    found: dict[str, str] = {}
    problems: dict[str, list[str]] = {"match no row of the name table": [], "fill a slot twice": [], "differ in shape": []}
    problems["have a dtype that can't be read"] = []
    for name in folder.tensors:
        number = _NUMBER.search(name)
        pattern = name if number is None else f"{name[: number.start()]}.{{L}}.{name[number.end() :]}"
        if name.startswith(families):
            continue
        if pattern not in exact:
            problems["match no row of the name table"].append(name)
        elif (slot := exact[pattern]) is not None:
            slot = slot if number is None else slot.replace("{L}", number[1])
            if found.setdefault(slot, name) != name:
                problems["fill a slot twice"].append(f"{name} and {found[slot]} ({slot})")
    return found, problems


def _raise(adapter: Adapter, folder: Folder, problems: Mapping[str, list[str]]) -> None:
    parts = []
    for what, names in problems.items():
        if names:
            shown = ", ".join(name[:120].encode("unicode_escape").decode() for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            parts.append(f"{len(names)} {'slots' if what == 'are missing' else 'tensors'} {what}: {shown}")
    if parts:
        raise FrontendError(f"{adapter.family}: {folder.path}: {'; '.join(parts)}")


def _check_tied(folder: Folder, head: str, embed: str) -> None:
    if not folder.same_bytes(head, embed):
        raise FrontendError(
            f"{folder.path}: config.json ties the head to the embedding, but {head} differs from {embed}; set tie_word_embeddings to false"
        )


def _info(adapter: Adapter, folder: Folder, config: Config) -> ModelInfo:
    text = folder.config.get("text_config")
    places = (folder.generation_config(), folder.config, text if isinstance(text, dict) else {})
    given = next((p["eos_token_id"] for p in places if p.get("eos_token_id") is not None), ())
    ids = tuple(given) if isinstance(given, list | tuple) else (given,)
    if len(ids) > MAX_EOS or not all(type(i) is int and 0 <= i < MAX_ID for i in ids):
        raise FrontendError(f"{folder.path}: eos_token_id {str(given)[:120]} is no token id and no list of them")
    return ModelInfo(
        family=adapter.family,
        architecture=adapter.architecture,
        context_length=config.context,
        vocab_size=config.vocab,
        eos_ids=ids,
    )
