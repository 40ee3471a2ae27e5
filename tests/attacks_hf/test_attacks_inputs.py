"""Recipes, texts, statistics and scores that are hostile: one line, exit code 2 or 5, soon, with little memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from attacks_hf import folder, inputs
from thinlm.compiler.cli import run

SECONDS, MEBIBYTES = 5.0, 400
CASES = [
    pytest.param(words, codes, made, id=f"{words[0]} {words[-1]} {name}")
    for words, codes, table in (
        (("plan", "--recipe"), {2}, inputs.RECIPES),
        (("compile", "--budget", "9MB", "--calibration"), {5}, inputs.TEXTS),
        (("compile", "--weights-budget", "40%", "--stats"), {5}, inputs.STATS),
        (("plan", "--budget", "9MB", "--stats"), {2, 5}, inputs.SCORES),
    )
    for name, made in table.items()
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder.write(tmp_path_factory.mktemp("good") / "model")


@pytest.mark.parametrize(("words", "codes", "made"), CASES)
def test_hostile_input(
    words: tuple[str, ...], codes: set[int], made: inputs.Made, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = ["-o", str(tmp_path / "a.thin")] if words[0] == "compile" else []
    (tmp_path / "in").mkdir()
    path = made(tmp_path / "in")
    before = sorted(tmp_path.rglob("*"))
    capfd.readouterr()
    start = time.thread_time()
    tracemalloc.start()
    code = run([words[0], str(model), *words[1:], str(path), *output])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seconds = time.thread_time() - start
    err = capfd.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("thinc: ")]
    assert code in codes, err
    assert path.name in err or "t.txt" in err or "t.jsonl" in err, err
    assert len(lines) == 1, err
    assert len(lines[0]) < 1000
    assert lines[0].isprintable()
    assert "Traceback" not in err
    assert seconds < 2 * SECONDS  # tracing doubles it
    assert most >> 20 < MEBIBYTES
    assert sorted(tmp_path.rglob("*")) == before
