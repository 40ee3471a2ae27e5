"""Each attack changes one thing in a good artifact; exactly its rule must object, at once, with exit code 6."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_artifact
from attacks import claims, container, meaning, pages, zipped
from source import ROOT, sources
from thinlm.artifacts import open_artifact, verify_artifact
from thinlm.runtime_min import load
from thinlm.schemas.errors import ArtifactError

Attack = Callable[[Path], Path | None]
MODULES = (container, zipped, claims, pages, meaning)
CASES = [
    pytest.param(code, attack, id=f"{code}-{name}")
    for module in MODULES
    for code, attacks in module.ATTACKS.items()
    for attack in attacks
    for name in [name for name, value in vars(module).items() if value is attack]
]
SECONDS = 5.0


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny_artifact.build(tmp_path_factory.mktemp("good") / "good.thin")
    assert verify_artifact(path) == []
    return path


def outcome(path: Path) -> list[ArtifactError]:
    try:
        return verify_artifact(path)
    except ArtifactError as e:
        return [e]


@pytest.mark.parametrize(("code", "attack"), CASES)
def test_attack(code: str, attack: Attack, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.thin"
    shutil.copytree(good, folder)
    path = attack(folder) or folder
    start = time.monotonic()
    errors = outcome(path)
    assert time.monotonic() - start < SECONDS
    assert [error.code for error in errors] == [code], errors
    assert errors[0].exit_code == 6
    assert len(str(errors[0])) < 600


HOSTILE = [case for case in CASES if case.values[0] in ("A-23", "A-24")]


@pytest.mark.parametrize("device", ["cpu", "interp"])
@pytest.mark.parametrize(("code", "attack"), HOSTILE)
def test_hostile_models_are_refused_before_they_are_loaded(code: str, attack: Attack, device: str, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.thin"
    shutil.copytree(good, folder)
    attack(folder)
    with pytest.raises(ArtifactError) as refused:
        load(folder, device)
    assert refused.value.code == code and "\n" not in str(refused.value)


@pytest.mark.parametrize("device", ["cpu", "interp"])
def test_what_the_attacks_are_made_from_runs(device: str, good: Path, tmp_path: Path) -> None:
    """So each of them is refused for what it changes."""
    folder = tmp_path / "good.thin"
    shutil.copytree(good, folder)
    for change in (lambda _: None, meaning.a_cache_that_fits):
        change(folder)
        model = load(folder, device)
        assert set(model.trace([1, 2])) == {"logits", "hidden.embed", "hidden.0", "hidden.1", "hidden.final"}
        assert len(model.generate([1, 2, 3], max_new_tokens=4, ignore_eos=True)) == 4


def test_a_broken_page_is_named(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.thin"
    shutil.copytree(good, folder)
    pages.flipped_bit_in_a_page(folder)
    (error,) = outcome(folder)
    assert "page 0 of embed (weights/00000.safetensors)" in str(error)


def test_reading_a_changed_file_is_refused(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad.thin"
    shutil.copytree(good, folder)
    container.changed_tokenizer(folder)
    with pytest.raises(ArtifactError, match="A-09"):
        open_artifact(folder).file("tokenizer.json")


def test_every_rule_has_text_function_and_attack() -> None:
    text = (ROOT / "artifacts/SPEC.md").read_text(encoding="utf-8")
    rules = re.findall(r"^- \*\*(A-\d\d)\*\*", text, re.MULTILINE)
    assert rules == [f"A-{n:02}" for n in range(1, len(rules) + 1)]
    assert {code for module in MODULES for code in module.ATTACKS} == set(rules)
    raised: dict[str, set[str]] = {code: set() for code in rules}
    for file in sources():
        for function, code in re.findall(r"^def (\w+)|ArtifactError\(\"(A-\d\d)\"", file.text, re.MULTILINE):
            if function:
                current = function
            else:
                raised[code].add(current)  # pyright: ignore[reportPossiblyUnboundVariable]
    assert {code: len(where) for code, where in raised.items()} == dict.fromkeys(rules, 1)
    assert all(name.startswith(code.lower().replace("-", "")) for code, (name,) in raised.items() if code != "A-03")
