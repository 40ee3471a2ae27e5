"""The thin runtime: `load` an artifact and run it. Importing this loads no backend; torch comes in when a device that needs it is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from ..artifacts.reader import Artifact, open_artifact
from ..artifacts.verify import require_intact
from ..schemas.graph import Graph
from .devices import open_backend
from .model import Model, ModelOptions, Session
from .sample import SamplingParams

__all__ = ["Artifact", "Model", "ModelOptions", "SamplingParams", "Session", "graph_of", "load", "load_artifact", "open_artifact", "options_of"]

Verify = Literal["touched", "full"]


def load(path: Path | str, device: str = "cpu", verify: Verify = "touched") -> Model:
    """The model in an artifact, folder or packed, as its plan runs it. Pages are compared with their digests when they are first touched,
    or all before this returns (`verify="full"`, as `thinc verify` does).

    Raises InputError (nothing there), ArtifactError (it breaks a rule), UsageError or BackendError (the device).
    """
    artifact = open_artifact(path)
    if verify == "full":
        require_intact(artifact)
    return load_artifact(artifact, device)


def load_artifact(artifact: Artifact, device: str = "cpu", options: ModelOptions | None = None, spill: Path | None = None) -> Model:
    """As `load`, for an open artifact; `options` replace what its plan says, `spill` as in `devices.open_backend`."""
    return Model(graph_of(artifact), artifact, open_backend(device, spill), options or options_of(artifact))


def graph_of(artifact: Artifact) -> Graph:
    """The verified graph of an artifact, whose params are its tensors; ArtifactError A-23 otherwise."""
    return artifact.graph


def options_of(artifact: Artifact) -> ModelOptions:
    """How the plan runs it: context, batch, KV dtype and block, prefill chunk; ArtifactError A-24."""
    plan = artifact.plan
    model = artifact.manifest.model
    options = ModelOptions(context=plan.context, batch=plan.batch, vocab=min(model.tokenizer_vocab, model.vocab_size), eos=model.eos_ids)
    if not plan.kv:
        return options
    first = plan.kv[0]
    return replace(options, kv_dtype=first.dtype, block=first.block, prefill_chunk=plan.memory.prefill_chunk)
