"""The soak tools with small numbers, and that they notice what they are there for."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_source
from soak import chains, disk_full, kill
from soak.chains import LEAST, Soak, draw, fresh, soak
from soak.job import PUBLISH, Broken, Job, Result, Undisturbed, undisturbed
from source import ROOT

PICO = ROOT / "examples" / "pico"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Undisturbed]:
    """Seconds of work - a tiny model, little text, no certificate -, done undisturbed."""
    folder = tmp_path_factory.mktemp("soak")
    model = tiny_source.write(folder / "tiny")
    (folder / "quick.json").write_text(json.dumps({"calibration_tokens": 1024}))
    arguments = ("--recipe", str(folder / "quick.json"), "--weights-budget", "40%", "--no-certify", "--allow-uncertified")
    job = Job(model, folder / "out" / "T.thin", arguments)
    fresh(job)
    return job, undisturbed(job)


def test_a_killed_compile_goes_on_to_the_same_bytes(plain: tuple[Job, Undisturbed], tmp_path: Path) -> None:
    job, plan = plain
    job, report = replace(job, target=tmp_path / "out" / "T.thin"), chains.Report(plan)
    fresh(job)
    middle = [n for n in range(len(plan.events)) if plan.gap(n)[0] in ("calibrate", "write")]
    chains.run_chain(job, [chains.Moment(n, 0.0) for n in (middle[1], middle[-1])], kill.send(signal.SIGKILL), report)
    assert report.times == 2 and report.chains == 1


def plan_of(stages: str) -> Undisturbed:
    """A compile of one event a second; a letter for each, its stage."""
    events = tuple((f"{stage}.{n}", float(n + 1)) for n, stage in enumerate(stages))
    return Undisturbed(Result(0, "", ""), events, len(stages) + 1.0, 1.0)


def test_moments_reach_every_stage() -> None:
    plan = plan_of("aaaaaaaaaaaaaaaaaaaaaaaabc")
    assert plan.stages == ("a", "b", "c", PUBLISH) and plan.place({}) == "a" and plan.place(dict(plan.events)) == PUBLISH
    for seed in range(20):
        found = [stage for _, stage in draw(plan, 12, random.Random(seed))]
        assert len(found) == 12 and all(found.count(stage) >= LEAST for stage in plan.stages)


class Finished(Job):
    """A compile that does nothing: what lies there is its result."""

    def start(self, *, resume: bool) -> subprocess.Popen[bytes]:
        self.says.touch()
        return subprocess.Popen(["true"])


def test_what_must_not_be_is_noticed(plain: tuple[Job, Undisturbed], tmp_path: Path) -> None:
    """A public name that holds half an artifact, a hidden file that stays, a wrong exit code, another result."""
    done, plan = plain
    shutil.copytree(done.target.parent, tmp_path / "out")
    job = Finished(done.model, tmp_path / "out" / "T.thin", ())
    disturb, report = kill.send(signal.SIGKILL), chains.Report(plan)
    chains.run_chain(job, [], disturb, report)
    with pytest.raises(Broken, match="undisturbed Result"):
        chains.run_chain(job, [], disturb, replace(report, plan=replace(plan, result=replace(plan.result, payload_root="0" * 64))))
    with pytest.raises(Broken, match="ended with 1"):
        job.result(1)
    (job.target.parent / ".T.thin.work").mkdir()
    with pytest.raises(Broken, match="left behind"):
        job.result(0)
    (job.target / "pages.idx").unlink()
    with pytest.raises(Broken, match="does not verify"):
        job.require_whole()


@pytest.mark.full
@pytest.mark.parametrize("name", ["KILL", "INT", "TERM"])
def test_kills(name: str, tmp_path: Path) -> None:
    job = Job(PICO, tmp_path / "out" / "T.thin", ("--weights-budget", "36%"))
    report = soak(job, Soak(disturb=kill.send(signal.Signals[f"SIG{name}"]), times=10, chain=5))
    assert report.missing() == []


@pytest.mark.full
def test_replacing_an_artifact_is_killed(tmp_path: Path) -> None:
    """With --force the old artifact stays until the new one takes its place."""
    job = Job(PICO, tmp_path / "out" / "T.thin", ("--weights-budget", "36%", "--no-certify", "--allow-uncertified", "--force"))
    old = replace(job, arguments=("--no-certify", "--allow-uncertified"))
    fresh(job)
    first = undisturbed(old).result
    plan = undisturbed(job)
    for gap in (1, len(plan.events) - 1, len(plan.events)):
        fresh(job)
        assert old.result(old.start(resume=False).wait()) == first
        chains.run_chain(job, [chains.Moment(gap, plan.gap(gap)[1] / 2)], kill.send(signal.SIGKILL), chains.Report(plan))


@pytest.mark.full
@pytest.mark.skipif(bool(disk_full.refusal()), reason=disk_full.refusal())
def test_full_disks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.disk_full", str(PICO), "--times", "10", "--", "--weights-budget", "36%"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "disk full: disturbed" in done.stdout, done.stdout + done.stderr
