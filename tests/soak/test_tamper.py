"""No change of an artifact goes unnoticed (tamper.py): a few changes of every kind in the fast tier, hundreds in the full one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiny_compiled
from soak.tamper import tamper, verify
from thinlm.artifacts import check, open_artifact, pages
from thinlm.artifacts.check_pages import page_bytes

KINDS = 15


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_compiled.build(tmp_path_factory.mktemp("tamper"), tiny_compiled.Recipe(predicted=1 << 20))
    attest = open_artifact(path).attest
    attest.add("scores.json", b'{"scores":[1,2,3]}')
    attest.add("cpu/certificate.json", b'{"verdict":"pass"}')
    return path


def test_some_changes_of_every_kind_are_found(artifact: Path, tmp_path: Path) -> None:
    assert [found.total() for _, found in tamper(artifact, tmp_path, flips=6, cuts=4, seed=1)] == [10] * KINDS


@pytest.mark.full
def test_many_changes_of_every_kind_are_found(artifact: Path, tmp_path: Path) -> None:
    assert [found.total() for _, found in tamper(artifact, tmp_path, flips=200, cuts=50, seed=2)] == [250] * KINDS


@pytest.mark.parametrize(
    ("owner", "name", "instead", "words"),
    [
        (check, "a21_trailer", lambda store, data: None, "manifest.json|artifact_id"),
        (check, "a22_attestation", lambda store, path, data: None, "attest/"),
        (check, "a09_file_digest", lambda store, entry, data: None, "chat_template|tokenizer|graph.json|plan.json|pages.idx"),
        (pages.Pages, "check", lambda self, number: None, "weights/"),
        (pages.Pages, "read", lambda self, number: page_bytes(self._store, self._table, number), "damaged weights were executed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_check_changes_go_unnoticed(
    owner: object, name: str, instead: object, words: str, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool can fail."""
    monkeypatch.setattr(owner, name, instead)
    with pytest.raises(AssertionError, match=words):
        for _ in tamper(artifact, tmp_path, flips=6, cuts=4, seed=1):
            pass


def test_one_damaged_page_of_many_is_named_alone(artifact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.thin"
    shutil.copytree(artifact, folder)
    file = folder / "weights" / "00000.safetensors"
    data = bytearray(file.read_bytes())
    for at in (20_000, len(data) - 100):
        data[at] ^= 1
    file.write_bytes(data)
    code, message = verify(folder)
    assert code == 6
    assert "A-19" in message and "page 0 of embed (weights/00000.safetensors)" in message and message.endswith("(and 1 more)")
