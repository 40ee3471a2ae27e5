"""Memory and disk from headers: what --max-ram decides, and what it refuses before any work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_source
from thinlm.compiler import room
from thinlm.compiler.cli import run
from thinlm.compiler.prepare import Prepared, prepare
from thinlm.compiler.room import Room, disk_bytes, memory_bytes, room_for
from thinlm.schemas.recipe import Recipe

GIB = 1 << 30


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_source.write(tmp_path_factory.mktemp("room") / "model")


@pytest.fixture(scope="module")
def prepared(source: Path) -> Prepared:
    return prepare(source, Recipe(weights_budget="40%", calibration_tokens=1024))


def test_workers_and_spilling_follow_what_fits(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (memory_bytes(prepared, workers, searching=True) for workers in (1, 2))
    assert one < two
    assert room_for(prepared, two + GIB, tmp_path, searching=True) == Room(2, None, two + GIB)
    assert room_for(prepared, two, tmp_path, searching=True) == Room(2, tmp_path, two), "no room for models beside the work: spilled"
    assert room_for(prepared, two - 1, tmp_path, searching=True) == Room(1, tmp_path, two - 1)
    monkeypatch.setattr(room, "physical_bytes", lambda: 64 * GIB)
    assert room_for(prepared, None, tmp_path, searching=True) == Room(2, None, None)
    monkeypatch.setattr(room, "physical_bytes", lambda: 1 << 20)
    assert room_for(prepared, None, tmp_path, searching=True) == Room(1, tmp_path, None), "a small machine is no reason to refuse"


def test_certifying_alone_needs_less(prepared: Prepared) -> None:
    assert memory_bytes(prepared, 1, searching=False) < memory_bytes(prepared, 1, searching=True)


def test_a_wider_vocabulary_needs_more_and_more_layers_do_not(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory_bytes(prepared, 2, searching=True)
    for name, value, grows in (("VOCAB", 60_000, True), ("LAYERS", 7, False)):
        with monkeypatch.context() as m:
            m.setattr(tiny_source, name, value)
            m.setitem(tiny_source.CONFIG, {"VOCAB": "vocab_size", "LAYERS": "num_hidden_layers"}[name], value)
            m.setattr(tiny_source.tiny_tokenizers, "build", lambda kind, vocab, build=tiny_source.tiny_tokenizers.build: build(kind, 320))
            other = prepare(tiny_source.write(tmp_path / name), prepared.recipe)
        more = memory_bytes(other, 2, searching=True) - before
        assert (more > 64 << 20) if grows else (more < 4 << 20), name


def test_the_disk_has_to_hold_the_budget_and_the_kept_steps(prepared: Prepared) -> None:
    budget = prepared.recipe.weights_budget
    assert isinstance(budget, int)
    lossless = prepare(prepared.path, Recipe())
    assert disk_bytes(prepared) > budget
    assert disk_bytes(lossless) > sum(p.size for p in prepared.graph.params) * 2
    longer = replace(prepared, recipe=prepare(prepared.path, Recipe(weights_budget="40%", calibration_tokens=4096)).recipe)
    assert disk_bytes(longer) > disk_bytes(prepared)


@pytest.mark.parametrize("verb", ["compile", "certify"])
def test_too_little_memory_is_infeasible(verb: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 before any work, with the smallest feasible figure; that figure is enough."""
    made = tmp_path / "made.thin"
    compiling = ["compile", str(source), "-o", str(made), "--weights-budget", "60%", "--no-certify", "--allow-uncertified"]
    words = compiling if verb == "compile" else ["certify", str(made), "--source", str(source)]
    if verb == "certify":
        assert run(compiling) == 0
    capsys.readouterr()
    assert run([*words, "--max-ram", "1MiB"]) == 3
    message = capsys.readouterr().err
    assert "max_ram: 1048576 bytes asked for, the smallest feasible is about" in message
    least = message.split("about ")[1].split()[0]
    assert run([*words, "--max-ram", least]) != 3
    assert run([*words, "--max-ram", "36%"]) == 2


