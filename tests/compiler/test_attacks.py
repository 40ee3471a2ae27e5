"""What users get wrong, kind by kind: each case ends with its exit code and one message, before any work, and nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny_artifact
from thinlm.artifacts import pack, unpack
from thinlm.artifacts.target import hold, require_free
from thinlm.certify.gate import moved, thresholds
from thinlm.compiler.cli import run
from thinlm.compiler.frontends import open_checkpoint
from thinlm.passes.calibrate import load_stats
from thinlm.schemas.errors import InputError, UsageError
from thinlm.schemas.recipe import Gate, read_recipe, recipe_from_dict

PICO = Path(__file__).parents[2] / "examples" / "pico"
THINC = [sys.executable, "-c", "from thinlm.compiler.cli import main; main()"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_artifact.build(tmp_path_factory.mktemp("good") / "good.thin")


def letter(folder: Path) -> Path:
    folder.mkdir()
    (folder / "letter").write_text("keep")
    return folder


def link(path: Path) -> Path:
    path.symlink_to("nowhere")
    return path


TARGETS: dict[str, tuple[Callable[[Path], Path], bool, str]] = {
    "a folder of somebody's": (lambda d: letter(d / "a.thin"), True, "is not an artifact"),
    "a file of somebody's": (lambda d: Path(shutil.copy(PICO / "config.json", d / "a.thin")), True, "is not an artifact"),
    "a link to nothing": (lambda d: link(d / "a.thin"), False, "--force"),
    "a link to nothing, forced": (lambda d: link(d / "a.thin"), True, "is not an artifact"),
    "no folder": (lambda d: d / "no" / "a.thin", False, "does not exist"),
    "a folder that is a file": (lambda d: Path(shutil.copy(PICO / "config.json", d / "no")) / "a.thin", False, "does not exist"),
    "inside an artifact": (lambda d: tiny_artifact.build(d / "b.thin") / "a.thin", False, "inside the artifact"),
    "no name": (lambda d: Path(), False, "not the name"),
    "above": (lambda d: d / "..", True, "not the name"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_that_may_not_be_written_is_left_alone(tmp_path: Path, name: str) -> None:
    make, force, message = TARGETS[name]
    target = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=message):
        require_free(target, force=force)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_writing_verb_asks_about_its_target(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, file = letter(tmp_path / "mine.thin"), pack(good, tmp_path / "p.thin.zip")
    for verb in (["compile", PICO, "-o", mine, "--force"], ["unpack", file, "-o", mine, "--force"], ["pack", good, "-o", mine, "--force"]):
        assert run([str(word) for word in verb]) == 2
        assert "mine.thin" in capsys.readouterr().err
    assert run(["compile", str(PICO), "-o", str(tmp_path / "a.thin"), "--save-stats", str(tmp_path / "no" / "x.npz")]) == 2
    assert run(["compile", str(PICO), "-o", str(tmp_path / f"{'a' * 246}.thin")]) == 2
    letter(tmp_path / "b.thin.rejected")
    assert run(["compile", str(PICO), "-o", str(tmp_path / "b.thin")]) == 2
    assert run(["compile", str(PICO), "--context", "16", "-o", str(tmp_path / "c.thin")]) == 2
    assert (mine / "letter").read_text() == "keep"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.thin.rejected", "mine.thin", "p.thin.zip"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    target = tmp_path / "a.thin"
    with hold(target):
        with pytest.raises(UsageError, match="another thinc"), hold(target):
            pass
        assert run(["compile", str(PICO), "-o", str(target)]) == 2
    script = "import os; from pathlib import Path; from thinlm.artifacts.target import hold\nwith hold(Path('b.thin')): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == -9
    assert [p.name for p in tmp_path.iterdir()] == [".b.thin.lock"]
    for name in ("a.thin", "b.thin"):  # a killed process holds nothing
        with hold(tmp_path / name):
            pass
    assert list(tmp_path.iterdir()) == []


def test_here_has_a_name(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here.thin"
    shutil.copytree(good, here)
    monkeypatch.chdir(here)
    assert pack(Path()) == tmp_path / "here.thin.zip"
    assert unpack(tmp_path / "here.thin.zip", tmp_path / "again.thin").is_dir()


RECIPES: dict[str, bytes] = {
    "deep.json": b'{"gate":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep.yaml": b"gate: " + b"[" * 20_000 + b"]" * 20_000,
    "bytes.json": b'{"context": "\xff"}',
    "bytes.yaml": b"\xff\xfe\x00{",
    "inf.yaml": b"gate: {kl: .inf}",
    "nan.yaml": b"gate: {kl: .nan}",
    "batch.json": b'{"batch": 99999999999999999999999}',
    "block.json": b'{"block": 9223372036854775807}',
    "chunk.json": b'{"prefill_chunk": 1000000000000000}',
    "seed.json": b'{"seed": -1}',
    "seed2.json": b'{"seed": 99999999999999999999999}',
    "tokens.json": b'{"calibration_tokens": 99999999999999999999}',
    "code.yaml": b'!!python/object/apply:os.system ["true"]',
    "list.json": b"[]",
    "empty.yaml": b"",
    "key.yaml": b"1: 2",
    "date.yaml": b"context: 2020-01-01",
    "bomb.yaml": b"a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\ncandidates: [*b,*b,*b]",
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_that_mean_nothing_are_usage_errors(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(RECIPES[name])
    with pytest.raises(UsageError, match=name):
        read_recipe(path)


@pytest.mark.parametrize("amount", ["99999999999999999999GiB", "9" * 6000, "-1", "1e30GiB", "nan", "", "１２", "1_000"])
@pytest.mark.parametrize("budget", ["budget", "weights_budget", "max_artifact"])
def test_budgets_that_are_no_bytes_are_usage_errors(budget: str, amount: str) -> None:
    with pytest.raises(UsageError, match=r"bytes|digits"):
        recipe_from_dict({budget: amount})


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_named(tmp_path: Path, value: float, dtype: Any) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PICO / name, tmp_path / name)
    tensors = {name: np.zeros(t.shape, dtype) for name, t in _tensors().items()}
    name = next(n for n in tensors if n.endswith("1.mlp.down_proj.weight"))
    tensors[name][2, 3] = value
    save_file(tensors, tmp_path / "model.safetensors")
    graph, source, _ = open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"1\.mlp\.down_proj\.weight: row 2, column 3 is"):
        [source.f32(p.name) for p in graph.params]


def _tensors() -> dict[str, np.ndarray]:
    import torch
    from safetensors.torch import load_file as load_torch

    return {name: t.to(torch.float32).numpy() for name, t in load_torch(PICO / "model.safetensors").items()}


def test_thresholds_that_thinc_never_sets_are_seen() -> None:
    """A certificate that calls a looser bound the default, moves what may not move, or judges by another side."""
    for rows in (thresholds(), thresholds(half=True), thresholds(budget=7, metered=False), thresholds(Gate(kl=1.0, top1=0.5))):
        assert moved(rows) == ()
    for metric, changes in {
        "kl": {"bound": 9.0, "default": 9.0},
        "top1": {"comparison": "value<="},
        "greedy": {"gate": "STRUCTURE"},
        "backend_cosine": {"bound": 0.5},
        "p01": {"reason": "because"},
    }.items():
        rows = tuple(msgspec.structs.replace(row, **changes) if row.metric == metric else row for row in thresholds())
        assert moved(rows) == (metric,)


def test_damaged_statistics_are_input_errors(tmp_path: Path) -> None:
    path, rng = tmp_path / "x.npz", np.random.default_rng(0)
    np.savez(path, allow_pickle=False, header=np.frombuffer(json.dumps({"schema": "x"}).encode(), np.uint8), a=rng.normal(size=99))
    raw = path.read_bytes()
    for at in [*range(0, 40), *rng.integers(0, len(raw), 100)]:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :])
        with pytest.raises(InputError, match=r"x\.npz"):
            load_stats(path)
    for end in (0, 1, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:end])
        with pytest.raises(InputError, match=r"x\.npz"):
            load_stats(path)


def test_a_reader_that_went_away_changes_no_exit_code(good: Path) -> None:
    verdict = "import sys; from thinlm.compiler.commands.options import emit; emit(False, {}, ['FAIL']); emit(True, {}, []); sys.exit(4)"
    for command, code in (
        ([*THINC, "verify", good], 0),
        ([*THINC, "verify", good / "weights", "--json"], 6),
        ([*THINC, "plan", PICO], 0),
        ([sys.executable, "-c", verdict], 4),  # as `gate` and `compile` do
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


def test_streams_that_are_closed_or_poor(good: Path, tmp_path: Path) -> None:
    copy = tmp_path / "größe\udcff.thin"
    shutil.copytree(good, copy)
    for io in ("ascii", "utf-8:strict", "latin-1"):
        done = subprocess.run([*THINC, "pack", copy, "--force"], capture_output=True, env={**os.environ, "PYTHONIOENCODING": io}, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    closed = subprocess.run(["sh", "-c", '"$@" >&- 2>&- <&-', "sh", *THINC, "verify", copy], check=False)
    assert closed.returncode == 0
