"""A certificate whose reference is the candidate, or that is about other bytes than those that ran, can't be made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thinlm.certify import certify
from thinlm.certify.metrics import compare
from thinlm.runtime_min import load_artifact, open_artifact, options_of
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model
from thinlm.schemas.errors import ArtifactError, CertifyError, InputError
from thinlm.schemas.manifest import SourceInfo
from tiny_compiled import Recipe, build, inputs, open_candidate, open_reference


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("honest"), Recipe(predicted=1 << 20))


def never(stage: str, done: int, total: int) -> None:
    pytest.fail(f"stage {stage} ran")


def refuse(path: Path, candidate: Model, reference: Model, message: str, kind: type[Exception] = CertifyError, **changes: Any) -> None:
    with pytest.raises(kind, match=message):
        certify(candidate, reference, inputs(path, **changes), never)


def test_the_reference_must_be_a_source(path: Path) -> None:
    candidate = open_candidate(path)
    refuse(path, candidate, candidate, "the reference is of kind 'artifact'")
    refuse(path, candidate, open_candidate(path), "the reference is of kind 'artifact'")
    refuse(path, open_reference(), open_reference(), "the reference is the candidate itself")


class Disguised:
    """The artifact's weights, said to be a source's."""

    kind = "source"

    def __init__(self, artifact: Any, identity: str) -> None:
        self.artifact, self.identity = artifact, identity

    def __getattr__(self, name: str) -> Any:
        return getattr(self.artifact, name)


def test_a_disguised_reference_is_recognised(path: Path) -> None:
    candidate, artifact = open_candidate(path), open_artifact(path)
    disguised = Model(candidate.graph, Disguised(artifact, artifact.identity), TorchBackend(), options_of(artifact))
    refuse(path, candidate, disguised, "the reference is the candidate itself")


def test_shared_logits_are_refused(path: Path) -> None:
    class Echo(Model):
        """Answers with what it was last told."""

        last: np.ndarray

        def forward(self, ids: Any) -> np.ndarray:
            return self.last

    model = open_reference()
    echo = Echo(model.graph, model.weights, TorchBackend(), model.options)
    echo.last = model.forward([1, 2, 3])
    with pytest.raises(CertifyError, match="must not be the candidate"):
        compare(echo.last, echo.forward([1, 2, 3]), 10)


def test_the_candidate_must_come_from_the_disk(path: Path) -> None:
    artifact = open_artifact(path)
    graph = load_artifact(artifact).graph
    in_memory = Model(graph, Disguised(artifact, "other"), TorchBackend(), options_of(artifact))
    in_memory.weights.kind = "artifact"  # type: ignore[misc]
    refuse(path, in_memory, open_reference(), "not loaded from an artifact on the disk")


def test_the_candidate_must_run_the_stored_graph(path: Path) -> None:
    candidate = open_candidate(path)
    candidate.graph = open_reference().graph
    refuse(path, candidate, open_reference(), "runs another graph than the one that is stored")


def test_the_artifact_must_still_be_there(path: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.thin"
    shutil.copytree(path, moved)
    candidate = open_candidate(moved)
    shutil.rmtree(moved)
    refuse(moved, candidate, open_reference(), "moved.thin", InputError)
    other = build(tmp_path, Recipe(matrices="int4-sym-g32/1", predicted=1 << 20), "moved")
    assert other == moved
    refuse(moved, candidate, open_reference(), "was replaced after the candidate was loaded")


def test_another_source_is_refused(path: Path) -> None:
    other = SourceInfo(kind="hf", name="other", digest="00" * 32, files=())
    refuse(path, open_candidate(path), open_reference(), r"was made from tiny .* not from other", InputError, source=other)


def test_damaged_bytes_are_refused(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.thin"
    shutil.copytree(path, copy)
    candidate = open_candidate(copy)
    with open(next((copy / "weights").iterdir()), "r+b") as file:  # in place: the file is mapped
        file.seek(20_000)
        byte = file.read(1)[0]
        file.seek(20_000)
        file.write(bytes([byte ^ 1]))
    refuse(copy, candidate, open_reference(), "A-19", ArtifactError)
    with pytest.raises(ArtifactError, match="A-19"):
        open_candidate(copy)
