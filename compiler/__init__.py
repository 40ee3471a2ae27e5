"""The compiler: checkpoints in, certified artifacts out. Importing this loads no torch and reads no file."""

from __future__ import annotations

from pathlib import Path

from ..runtime_min.devices import open_backend
from ..runtime_min.model import Model, ModelOptions
from .frontends import ModelInfo, SourceCheckpoint, open_checkpoint

__all__ = ["ModelInfo", "SourceCheckpoint", "open_checkpoint", "open_source"]


def open_source(path: Path | str, device: str = "cpu") -> Model:
    """A supported checkpoint as a runnable Model: exact weights, float32 throughout, keys and values not rounded.

    Raises InputError or FrontendError (the checkpoint), UsageError or BackendError (the device).
    """
    graph, source, info = open_checkpoint(path)
    return Model(graph, source, open_backend(device), ModelOptions(context=info.context_length, vocab=info.vocab_size, eos=info.eos_ids))
