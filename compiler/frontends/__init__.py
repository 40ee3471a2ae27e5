"""Reads source checkpoints: a folder in, a verified graph and its exact weights out, in seconds and from headers alone.

A new architecture is one new file with an Adapter and one line here (examples/add_an_architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...schemas.errors import FrontendError
from ...schemas.graph import Graph
from . import gemma3, gemma3_wrapper, llama, mistral, qwen2, qwen3
from .adapter import Adapter, ModelInfo, import_checkpoint
from .hf_dir import Folder, read_folder
from .source import Binding, SourceCheckpoint

__all__ = ["ADAPTERS", "Adapter", "Binding", "ModelInfo", "SourceCheckpoint", "open_checkpoint"]


def _table(adapters: Iterable[Adapter]) -> dict[str, Adapter]:
    table: dict[str, Adapter] = {}
    for adapter in adapters:
        if adapter.architecture in table or adapter.model_type in (a.model_type for a in table.values()):
            raise ValueError(f"two adapters for {adapter.architecture} or {adapter.model_type}")
        table[adapter.architecture] = adapter
    return table


ADAPTERS: dict[str, Adapter] = _table((llama.LLAMA, mistral.MISTRAL, qwen2.QWEN2, qwen3.QWEN3, gemma3.GEMMA3, gemma3_wrapper.GEMMA3_WRAPPER))


def open_checkpoint(path: str | Path) -> tuple[Graph, SourceCheckpoint, ModelInfo]:
    """The verified graph, the weights (kind "source") and the facts of a Hugging Face folder. Reads headers only; never imports torch.

    InputError: files that are refused. FrontendError: an architecture, config key or tensor that can't be expressed exactly.
    """
    folder = read_folder(Path(path))
    return import_checkpoint(_adapter(folder), folder)


def _adapter(folder: Folder) -> Adapter:
    """By `architectures`, which must agree with `model_type`; by `model_type` alone where no architecture is given."""
    named, model_type = folder.config.get("architectures") or [], folder.config.get("model_type")
    fitting = [a for a in ADAPTERS.values() if named in ([], [a.architecture]) and a.model_type == model_type]
    if not fitting:
        what = f"architectures={str(named)[:120]}, model_type={str(model_type)[:60]}"
        raise FrontendError(f"{folder.path}: config.json: {what}; known: {', '.join(f'{k} ({a.model_type})' for k, a in ADAPTERS.items())}")
    return fitting[0]
