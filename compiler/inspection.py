"""What `thinc inspect` reports of an artifact or a checkpoint, from headers and JSON alone."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ..artifacts import open_artifact
from ..artifacts.formats import get_format
from ..certify import read_certificates
from ..runtime_min import graph_of
from ..schemas.certificate import Predicate
from ..schemas.graph import Graph
from ..schemas.kv import kv_slots
from ..schemas.ops import attrs_of
from .frontends import open_checkpoint


def artifact_report(path: Path) -> dict[str, Any]:
    """Identity, verdicts (judged again), sizes, encodings."""
    artifact = open_artifact(path)
    m = artifact.manifest
    parameters: Counter[str] = Counter()
    for t in m.tensors:
        parameters[t.encoding] += prod(t.shape)
    return {
        "kind": "artifact",
        "artifact_id": artifact.artifact_id,
        "payload_root": artifact.identity,
        "build_key": m.build_key,
        "family": m.model.family,
        "source": m.source.name,
        "source_digest": m.source.digest,
        "parameters": m.model.parameters,
        "bits_per_weight": round(8 * m.ledger.encoded_weight_bytes / m.ledger.logical_parameters, 4),
        "bytes": artifact.bytes_on_disk,
        "verdicts": [_verdict(c.predicate) for c in read_certificates(artifact)],
        "ledger": msgspec.to_builtins(m.ledger),
        "weights_by_encoding": dict(parameters.most_common()),
        "dropped": [d.name for d in m.dropped],
    }


def _verdict(p: Predicate) -> dict[str, Any]:
    return {"backend": p.backend, "verdict": p.verdict, "mode": msgspec.to_builtins(p.mode), "loosened": list(p.loosened)}


def model_report(path: Path) -> dict[str, Any]:
    """Family, layers by kind, parameters and bytes by role, KV bytes per token, dropped tensors."""
    graph, source, info = open_checkpoint(path)
    roles, stored = Counter[str](), 0
    for p in graph.params:
        roles[p.role] += p.size
        rows, cols = (p.shape[0], p.shape[1]) if len(p.shape) == 2 else (1, p.size)
        stored += rows * get_format(f"{p.dtype}/1").row_bytes(cols)
    kinds = Counter(_kind(attrs_of(n)) for n in graph.nodes if n.op == "attention")
    return {
        "kind": "model",
        "family": info.family,
        "architecture": info.architecture,
        "identity": source.identity,
        "context": info.context_length,
        "vocab_size": info.vocab_size,
        "parameters": sum(p.size for p in graph.params),
        "weights_bytes": stored,
        "kv_bytes_per_token_f16": sum(s.bytes_per_token for s in kv_slots(graph, info.context_length, 64, "f16")),
        "layers_by_kind": dict(kinds),
        "parameters_by_role": dict(roles.most_common()),
        "dropped": list(source.dropped),
    }


def graph_at(path: Path, artifact: bool) -> Graph:
    """The verified graph of an artifact or a checkpoint."""
    return graph_of(open_artifact(path)) if artifact else open_checkpoint(path)[0]


def _kind(attrs: dict[str, Any]) -> str:
    return f"sliding attention ({attrs['window']})" if attrs["window"] else "full attention"
