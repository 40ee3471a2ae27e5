"""Refuses a certificate that would compare a model with itself, or be about other bytes than those that ran.

In: candidate and reference models, what the reference's source is. Out: the candidate's open artifact.
"""

from __future__ import annotations

from ..artifacts.reader import Artifact, open_artifact
from ..artifacts.verify import verify_artifact
from ..runtime_min import graph_of
from ..runtime_min.model import Model
from ..schemas.errors import CertifyError, InputError
from ..schemas.manifest import SourceInfo


def require_honest(candidate: Model, reference: Model, source: SourceInfo) -> Artifact:
    """The artifact behind `candidate`; CertifyError, InputError or ArtifactError as certify/run.py says."""
    if reference.kind != "source":
        raise CertifyError(f"the reference is of kind {reference.kind!r}: an artifact is certified against its source, never another artifact")
    if candidate is reference or candidate.weights is reference.weights or candidate.identity == reference.identity:
        raise CertifyError("the reference is the candidate itself")
    artifact = candidate.weights
    if candidate.kind != "artifact" or not isinstance(artifact, Artifact):
        raise CertifyError("the candidate was not loaded from an artifact on the disk; open what was written with runtime_min.load")
    if open_artifact(artifact.path).artifact_id != artifact.artifact_id:
        raise CertifyError(f"{artifact.path} was replaced after the candidate was loaded; load it again")
    if graph_of(artifact) != candidate.graph:
        raise CertifyError(f"{artifact.path}: the candidate runs another graph than the one that is stored")
    if artifact.manifest.source.digest != source.digest:
        made_from = artifact.manifest.source
        raise InputError(f"{artifact.path} was made from {made_from.name} ({made_from.digest[:16]}), not from {source.name} ({source.digest[:16]})")
    if broken := verify_artifact(artifact.path):
        raise broken[0]
    return artifact
