"""The thin runtime: `load` an artifact and run it. Importing this loads no backend; torch comes in when a device that needs it is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..artifacts.reader import Artifact, open_artifact
from ..schemas.canonical import parse_canonical
from ..schemas.errors import ArtifactError, InputError
from ..schemas.graph import Graph
from ..schemas.plan import Plan, decode_plan
from ..schemas.text import from_json
from ..schemas.verify import verify
from .devices import open_backend
from .model import Model, ModelOptions, Session
from .sample import SamplingParams

__all__ = ["Artifact", "Model", "ModelOptions", "SamplingParams", "Session", "graph_of", "load", "load_artifact", "open_artifact", "options_of"]


def load(path: Path | str, device: str = "cpu") -> Model:
    """The model in an artifact, folder or packed, as its plan runs it.

    Raises InputError (nothing there), ArtifactError (it breaks a rule), UsageError or BackendError (the device).
    """
    return load_artifact(open_artifact(path), device)


def load_artifact(artifact: Artifact, device: str = "cpu", options: ModelOptions | None = None) -> Model:
    """As `load`, for an open artifact; `options` replace what its plan says."""
    return Model(graph_of(artifact), artifact, open_backend(device), options or options_of(artifact))


def graph_of(artifact: Artifact) -> Graph:
    """The verified graph of an artifact, whose params are its tensors; ArtifactError otherwise."""
    try:
        graph = from_json(parse_canonical(artifact.graph_bytes, where="graph.json"))
    except InputError as e:
        raise ArtifactError("graph", f"{artifact.path}: {e}") from e
    problems = verify(graph)
    stored = {t.name: (t.shape, t.encoding) for t in artifact.manifest.tensors}
    if not problems and stored != {p.name: (p.shape, p.encoding) for p in graph.params}:
        problems = ("graph.json and manifest.json name different tensors, shapes or encodings",)
    if problems:
        raise ArtifactError("graph", f"{artifact.path}: graph.json: {problems[0]}")
    return graph


def options_of(artifact: Artifact) -> ModelOptions:
    """How the plan runs it: context, batch, KV dtype and block, prefill chunk."""
    plan: Plan = decode_plan(artifact.plan_bytes)
    model = artifact.manifest.model
    options = ModelOptions(context=plan.context, batch=plan.batch, vocab=min(model.tokenizer_vocab, model.vocab_size), eos=model.eos_ids)
    if not plan.kv:
        return options
    first = plan.kv[0]
    return replace(options, kv_dtype=first.dtype, block=first.block, prefill_chunk=plan.memory.prefill_chunk)
