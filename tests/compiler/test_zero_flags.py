"""Flags of 0: a size of 0 is a usage error, a budget of 0 is one that nothing meets; neither means "not given"."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinlm.compiler.cli import run

PICO = Path(__file__).parents[2] / "examples" / "pico"
CODES = {
    ("plan", "--context", "0"): 2,
    ("plan", "--batch", "0"): 2,
    ("plan", "--budget", "0"): 3,
    ("plan", "--weights-budget", "0"): 3,
    ("plan", "--weights-budget", "0%"): 3,
    ("plan", "--max-artifact", "0"): 3,
    ("plan", "--budget", "-1"): 2,
    ("compile", "--context", "0"): 2,
    ("compile", "--budget", "0B"): 3,
    ("verify", "--threads", "0"): 2,
    ("run", "--context", "0", "--prompt", "a"): 2,
    ("run", "--max-new-tokens", "-1", "--prompt", "a"): 2,
    ("run", "--seed", "-1", "--prompt", "a"): 2,
    ("run", "--top-p", "0", "--prompt", "a"): 2,
}


@pytest.mark.parametrize("words", CODES, ids=" ".join)
def test_zero_is_a_value(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *flags = words
    assert run([verb, str(PICO), *flags]) == CODES[words]
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert flags[0].strip("-").replace("-", "_") in said.replace("-", "_"), "the message names the flag"
    assert not list(tmp_path.glob("*.thin*"))
