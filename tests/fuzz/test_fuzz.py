"""The fuzzers, for a moment each: they read cases and find nothing; and they do find what is planted."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from source import ROOT
from tests.fuzz.campaign import Campaign
from tests.fuzz.mutate import bytes_case, json_case
from tests.fuzz.targets import Target, of_bytes, of_json
from thinlm.schemas.errors import InputError, UsageError


def fuzz(seconds: float, findings: Path) -> str:
    """Output of the program with so many seconds for each target."""
    command = [sys.executable, "-m", "tests.fuzz", "--findings", str(findings)]
    targets = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert len(targets) > 15
    done = subprocess.run([*command, "--minutes", str(seconds * len(targets) / 60)], capture_output=True, text=True, cwd=ROOT, check=False)
    told = "\n".join(path.read_text()[:3000] for path in sorted(findings.glob("*.txt"))) if findings.exists() else ""
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr + told
    cases = {name: int(number) for name, number in re.findall(r"^(\w+) +(\d+) cases", done.stdout, re.MULTILINE)}
    assert [name for name in targets if not cases[name]] == []
    return done.stdout


def test_every_target_for_a_moment(tmp_path: Path) -> None:
    fuzz(0.3, tmp_path / "findings")


@pytest.mark.full
def test_every_target_for_ten_seconds(tmp_path: Path) -> None:
    fuzz(10, tmp_path / "findings")


def hang(work: Path, case: bytes) -> None:
    while True:
        sum(range(1000))


def grow(work: Path, case: bytes) -> None:
    bytearray(b"x" * (400 << 20))


def wrong_code(work: Path, case: bytes) -> None:
    raise UsageError("x")


PLANTED: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "a plain exception": (lambda work, case: {}["x"], "KeyError"),
    "a wrong exit code": (wrong_code, "exit code 2"),
    "a crash": (lambda work, case: os.kill(os.getpid(), 9), "a crash: the process ended with -9"),
    "an exit": (lambda work, case: os._exit(7), "a crash: the process ended with 7"),
    "memory": (grow, "MiB of memory"),
    "a hang": (hang, "a hang"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.campaign.MEBIBYTES", 350)
    if name == "a hang":
        monkeypatch.setattr("tests.fuzz.campaign.SECONDS", 0.3)
    read, why = PLANTED[name]
    campaign = Campaign("planted", Target(start=lambda work: [b"seed"], make=of_bytes, read=read), 5, tmp_path / "work", tmp_path / "found")
    campaign.run(60, most=2)
    assert [path.name for path in campaign.found] == ["planted-5-0", "planted-5-1"]
    for path in campaign.found:
        assert why in Path(f"{path}.txt").read_text()
        assert path.read_bytes() == bytes_case(random.Random(f"planted 5 {path.name[-1]}"), [b"seed"])


def test_refusals_are_no_findings(tmp_path: Path) -> None:
    def refuse(work: Path, case: bytes) -> None:
        raise InputError("no: more than 1 s of processor time" if len(case) % 2 else "no")

    campaign = Campaign("fine", Target(start=lambda work: [b'{"a":[1,2]}'], make=of_json, read=refuse), 0, tmp_path / "work", tmp_path / "found")
    start = time.monotonic()
    campaign.run(2)
    assert (campaign.found, campaign.number > 2) == ([], True)
    assert time.monotonic() - start < 30


def test_a_finding_is_read_again(tmp_path: Path) -> None:
    """--replay: a case that is in order ends with 0."""
    path = tmp_path / "recipe-0-0"
    path.write_bytes(b'{"seed": 1}')
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", "--replay", str(path)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing is wrong with it\n"), done.stderr


def test_cases_follow_from_their_number() -> None:
    seed = b'{"a":[1,2,{"b":"text"}],"c":null,"d":1.5}'
    for make in (lambda rng: json_case(rng, seed), lambda rng: bytes_case(rng, [seed, b"other"])):
        cases = [make(random.Random(n)) for n in range(300)]
        assert cases == [make(random.Random(n)) for n in range(300)]
        assert len(set(cases)) > 200
