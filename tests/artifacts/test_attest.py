"""Attestations: named by their digests, replaced without a moment in which an artifact does not verify, removed freely."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import tiny_artifact
from thinlm.artifacts import open_artifact, verify_artifact
from thinlm.artifacts.attest import plain_name, self_named
from thinlm.artifacts.identity import sha256_hex
from thinlm.schemas.errors import ArtifactError, InputError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_artifact.build(tmp_path / "good.thin")


@pytest.mark.parametrize("name", ["scores.json", "cpu/certificate.json", "a.b.json", "signature", ".hidden", "x.y/z", "a.sig.pem"])
def test_names(name: str) -> None:
    stored = self_named(name, "ab" * 32)
    assert re.search(r"\.(ab){32}(\.|$)", stored)
    assert plain_name(stored) == name == plain_name(name)
    assert Path(stored).parent == Path(name).parent and Path(stored).suffix in (Path(name).suffix, "." + "ab" * 32)


def test_adding_changes_no_identity_and_replaces_its_own_name_alone(folder: Path) -> None:
    artifact = open_artifact(folder)
    before = (folder / "artifact_id").read_bytes(), (folder / "manifest.json").read_bytes()
    first, other = artifact.attest.add("a.json", b"1"), artifact.attest.add("b.json", b"1")
    second = artifact.attest.add("a.json", b"2")
    assert artifact.attest.names() == sorted([second, other]) and first not in artifact.attest.names()
    assert artifact.attest.read("a.json") == artifact.attest.read(second) == b"2"
    assert ((folder / "artifact_id").read_bytes(), (folder / "manifest.json").read_bytes()) == before
    assert artifact.attest.add("a.json", b"2") == second, "again is no change"
    assert verify_artifact(folder) == []
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_an_attestation_may_be_removed(folder: Path) -> None:
    artifact = open_artifact(folder)
    os.remove(folder / "attest" / artifact.attest.add("a.json", b"1"))
    assert verify_artifact(folder) == [] and artifact.attest.names() == []
    with pytest.raises(InputError, match="no attestation"):
        artifact.attest.read("a.json")


@pytest.mark.parametrize("step", ["os.replace", "thinlm.artifacts.attest.remove", "thinlm.artifacts.disk.os.fsync"])
def test_stopped_anywhere_it_still_verifies(step: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = open_artifact(folder)
    artifact.attest.add("a.json", b"1")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(step, stop)
        with pytest.raises(KeyboardInterrupt):
            artifact.attest.add("a.json", b"2")
    assert verify_artifact(folder) == []
    assert artifact.attest.read("a.json") in (b"1", b"2")
    artifact.attest.add("a.json", b"3")
    assert artifact.attest.names() == [self_named("a.json", sha256_hex(b"3"))] and verify_artifact(folder) == []


def test_what_was_changed_is_not_read(folder: Path) -> None:
    artifact = open_artifact(folder)
    stored = artifact.attest.add("a.json", b"1")
    (folder / "attest" / stored).write_bytes(b"2")
    for name in ("a.json", stored):
        with pytest.raises(ArtifactError, match="A-22"):
            artifact.attest.read(name)
    (error,) = verify_artifact(folder)
    assert error.code == "A-22" and f"attest/{stored}" in str(error)


def test_one_at_a_time(folder: Path) -> None:
    from thinlm.artifacts.target import hold

    with hold(folder), pytest.raises(UsageError, match="another thinc"):
        open_artifact(folder).attest.add("a.json", b"1")


def test_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    open_artifact(Path(".")).attest.add("a.json", b"1")
    assert verify_artifact(Path(".")) == []
