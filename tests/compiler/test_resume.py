"""A compile that is stopped anywhere goes on where it was, with the same result; and one that can't have its room says so first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny_source
from thinlm.artifacts import disk, open_artifact
from thinlm.artifacts.work import Steps
from thinlm.compiler import driver
from thinlm.compiler.cli import run
from thinlm.compiler.driver import Job, compile_model
from thinlm.compiler.progress import Quiet
from thinlm.schemas.recipe import Recipe

STAGES = ("hash source", "calibrate", "score", "allocate", "round, write", "certify", "publish")
RECIPE = Recipe(weights_budget="40%", calibration_tokens=1024)


class Stopping(Quiet):
    """Raises at the `nth` sign of life of `stage`, as Ctrl-C would: when it begins (0), or as it advances."""

    def __init__(self, stage: str = "", nth: int = 0) -> None:
        super().__init__()
        self.at, self.left = stage, nth
        self.ticks: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator:
        with super().stage(name, total):
            self._count(name)
            yield lambda n=1.0: self._count(name)

    def _count(self, name: str) -> None:
        self.ticks[name] = self.ticks.get(name, -1) + 1
        if name == self.at and self.ticks[name] == self.left:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_source.write(tmp_path_factory.mktemp("resume") / "model")


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, int]]:
    """payload_root, and how often each stage says that it advanced."""
    progress = Stopping()
    job = Job(model=source, output=tmp_path_factory.mktemp("whole") / "t.thin", recipe=RECIPE)
    return compile_model(job, progress).artifact.identity, progress.ticks


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("t.thin", "t.thin.rejected"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stopped_stage_goes_on(source: Path, undisturbed: tuple[str, dict[str, int]], tmp_path: Path, stage: str) -> None:
    """Stopped as the stage begins and twice in it, one after another; nothing appears under the final name before its time."""
    root, ticks = undisturbed
    target, certify = tmp_path / "t.thin", stage in ("certify", "publish")
    for n, nth in enumerate(sorted({0, ticks[stage] // 2, ticks[stage]})):
        job = Job(model=source, output=target, recipe=RECIPE, resume=n > 0, certify=certify)
        with pytest.raises(KeyboardInterrupt):
            compile_model(job, Stopping(stage, nth if n == 0 else min(1, nth)))
        assert not target.exists()
    outcome = compile_model(Job(model=source, output=target, recipe=RECIPE, resume=True, certify=certify), Quiet())
    assert outcome.artifact.identity == root
    assert left(tmp_path) == []


def test_finished_work_is_recognised(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the last rename, before the hidden files were removed: --resume has nothing to do but that."""
    target = tmp_path / "t.thin"
    job = Job(model=source, output=target, recipe=RECIPE)
    with monkeypatch.context() as m:
        m.setattr(driver, "clean", lambda path: None)
        first = compile_model(job, Quiet())
    assert left(tmp_path) == [".t.thin.work"]
    monkeypatch.setattr(driver, "_compile", pytest.fail)
    again = compile_model(Job(model=source, output=target, recipe=RECIPE, resume=True), Quiet())
    assert (again.artifact.artifact_id, again.verdict, again.path) == (first.artifact.artifact_id, first.verdict, first.path)
    assert left(tmp_path) == []


def test_another_artifact_is_not_taken_for_finished_work(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "t.thin"
    arguments = ["compile", str(source), "-o", str(target), "--no-certify", "--allow-uncertified"]
    assert run([*arguments, "--weights-budget", "60%"]) == 0
    before = open_artifact(target).artifact_id
    assert run([*arguments, "--weights-budget", "50%", "--resume"]) == 2
    assert "exists" in capsys.readouterr().err
    assert open_artifact(target).artifact_id == before
    assert run([*arguments, "--weights-budget", "50%", "--resume", "--force"]) == 0
    assert open_artifact(target).artifact_id != before


def test_a_damaged_target_is_no_finished_work(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "t.thin"
    arguments = ["compile", str(source), "-o", str(target), "--no-certify", "--allow-uncertified", "--weights-budget", "60%"]
    assert run(arguments) == 0
    (target / "artifact_id").write_text("0" * 64 + "\n")
    assert run([*arguments, "--resume"]) == 2
    assert "exists" in capsys.readouterr().err
    assert run([*arguments, "--resume", "--force"]) == 0
    open_artifact(target)


def test_an_artifact_that_was_moved_aside_comes_back(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two renames of a replacement: the older artifact is nobody's leftover."""
    target = tmp_path / "t.thin"
    arguments = ["compile", str(source), "-o", str(target), "--no-certify", "--allow-uncertified", "--weights-budget"]
    assert run([*arguments, "60%"]) == 0
    before = open_artifact(target).artifact_id

    class Killed(BaseException):
        pass

    def rename(path: Path, to: Path, rename=Path.rename) -> Path:
        if path.name.endswith(".partial"):
            raise Killed
        return rename(path, to)

    with monkeypatch.context() as m:
        m.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            compile_model(Job(model=source, output=target, recipe=RECIPE, certify=False, force=True), Quiet())
    assert not target.exists()
    assert run([*arguments, "40%"]) == 2, "it is there again, and --force was not given"
    assert open_artifact(target).artifact_id == before
    assert run([*arguments, "40%", "--force"]) == 0
    assert open_artifact(target).artifact_id != before
    assert left(tmp_path) == []


def test_ctrl_c_says_the_command_that_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "search", interrupted)
    target = tmp_path / "a b.thin"
    assert run(["compile", str(source), "-o", str(target)]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"thinc: interrupted; go on with: thinc compile {source} -o '{target}' --resume"
    assert run(["compile", str(source), "-o", str(target), "--resume"]) == 130
    assert capsys.readouterr().err.count("--resume") == 1


@pytest.mark.parametrize("where", ["a kept step", "a page", "a small file", "an attestation"])
def test_a_disk_that_fills_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """One line, exit 7, nothing published, nothing lost."""
    target = tmp_path / "t.thin"
    uncertified = [] if where == "an attestation" else ["--no-certify"]
    arguments = ["compile", str(source), "-o", str(target), "--weights-budget", "40%", *uncertified]
    places = {
        "a kept step": (Steps, "put"),
        "a page": (driver.ArtifactWriter, "add_page_kind"),
        "a small file": (driver.ArtifactWriter, "add_file"),
        "an attestation": (driver, "write_certificate"),
    }

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    with monkeypatch.context() as m:
        owner, name = places[where]
        m.setattr(owner, name, full)
        assert run(arguments) == 7
    message = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path) in message
    assert "the disk is full" in message
    assert message.endswith(f"go on with: thinc {' '.join(arguments)} --resume")
    assert not target.exists()


def test_too_little_room_is_said_before_the_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "search", pytest.fail)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    assert run(["compile", str(source), "-o", str(tmp_path / "t.thin")]) == 7
    message = capsys.readouterr().err
    assert "1000 are free" in message
    assert len(message.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_room_that_is_taken_already_counts(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * 100_000)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(10**8)
    assert 100_000 <= disk.used_bytes(tmp_path / "folder") < 300_000
    assert disk.used_bytes(tmp_path / "sparse") < 10**6
    assert disk.used_bytes(tmp_path / "nothing") == 0
