"""The command line as users meet it: the shipped model from checkpoint to text, every verb's flags, exit codes and JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest

from thinlm.artifacts import open_artifact
from thinlm.certify import read_certificates
from thinlm.compiler import open_source
from thinlm.compiler.cli import VERBS, run, thinc
from thinlm.runtime_min import load

PICO = Path(__file__).parents[2] / "examples" / "pico"


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]):
    """Runs `thinc` in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shipped model compiled at 36 %."""
    path = tmp_path_factory.mktemp("cli")
    arguments = ["compile", str(PICO), "--weights-budget", "36%", "-o", str(path / "pico.thin"), "--save-stats", str(path / "stats.npz")]
    assert run(arguments) == 0
    return path


@pytest.fixture
def art(folder: Path) -> Path:
    return folder / "pico.thin"


def test_compile_certifies_within_the_budget(art: Path, cli) -> None:
    report = cli("inspect", art, "--json").json
    assert {"artifact_id", "payload_root", "build_key", "verdicts", "bytes", "bits_per_weight"} <= set(report)
    assert [v["verdict"] for v in report["verdicts"]] == ["pass"]
    weights = sum(f.stat().st_size for f in (art / "weights").iterdir())
    ledger = report["ledger"]
    assert ledger["encoded_weight_bytes"] <= ledger["budgets"]["weights_budget"] == int(0.36 * 2 * report["parameters"])
    assert 0 <= weights - ledger["encoded_weight_bytes"] <= 64 << 10, "only file headers lie between `ls -l` and the ledger"
    assert sum(f.stat().st_size for f in art.rglob("*") if f.is_file() and "attest" not in f.parts) == report["bytes"]


def test_the_certificate_is_about_these_bytes(art: Path) -> None:
    (certificate,) = read_certificates(open_artifact(art))
    checks = {c.metric: c for g in certificate.predicate.gates for c in g.checks}
    assert certificate.subject[0].digest.sha256 == open_artifact(art).artifact_id
    assert checks["memory_prediction"].value <= 0.02
    source, model = open_source(PICO), load(art)
    ids = np.random.default_rng(0).integers(4, 2000, 200)
    a, b = source.forward(ids).astype(np.float64), model.forward(ids).astype(np.float64)
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    assert 0.9 < cosine.mean() < 1 - 1e-6, "the artifact is near its source, and is not the source"


def test_run_streams_and_reports(art: Path, cli) -> None:
    text = cli("run", art, "--prompt", "def read_file(path):", "--max-new-tokens", 12)
    report = cli("run", art, "--prompt", "def read_file(path):", "--max-new-tokens", 12, "--json").json
    assert (text.code, text.err) == (0, "") and text.out.rstrip("\n") == report["text"].rstrip("\n") != ""
    assert len(report["ids"]) <= 12
    same = [cli("run", art, "--prompt", "It is", "--temperature", 1, "--seed", 7, "--max-new-tokens", 8, "--json").json["ids"] for _ in range(2)]
    assert same[0] == same[1]
    slow = cli("run", art, "--prompt", "def read_file(path):", "--max-new-tokens", 4, "--device", "interp", "--json").json
    assert slow["ids"] == report["ids"][:4]
    stopped = cli("run", art, "--prompt", "def read_file(path):", "--max-new-tokens", 12, "--stop", report["text"][2:4], "--json").json
    assert stopped["ended"] == "stop" and stopped["text"] == report["text"][: report["text"].index(report["text"][2:4])]


def test_chat_answers_every_line(art: Path) -> None:
    command = [sys.executable, "-c", "from thinlm.compiler.cli import main; main()", "chat", str(art), "--json", "--max-new-tokens", "6"]
    done = subprocess.run(command, input="Hello\nAnd now?\n\nnot read\n", capture_output=True, text=True, check=False)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and len(replies) == 2 and replies[1]["prompt_tokens"] > replies[0]["prompt_tokens"]


def test_pack_round_trip(art: Path, folder: Path, cli) -> None:
    assert cli("pack", art, "-o", folder / "p.thin.zip", "--force").code == 0
    assert cli("unpack", folder / "p.thin.zip", "-o", folder / "again.thin", "--force").code == 0
    assert cli("inspect", folder / "again.thin", "--json").json == cli("inspect", art, "--json").json
    assert cli("run", folder / "p.thin.zip", "--prompt", "x", "--max-new-tokens", 2).code == 0
    assert cli("gate", folder / "p.thin.zip").code == 0


def test_switches_need_a_certificate(art: Path, cli) -> None:
    refused = cli("run", art, "--prompt", "x", "--max-new-tokens", 1, "--context", 100)
    assert refused.code == 4 and "--uncertified" in refused.err
    assert cli("run", art, "--prompt", "x", "--max-new-tokens", 1, "--context", 100, "--uncertified").code == 0
    assert cli("run", art, "--prompt", "x", "--max-new-tokens", 1, "--kv-dtype", "bf16").code == 4


def test_gate_judges_again(art: Path, folder: Path, cli) -> None:
    assert cli("gate", art).code == 0
    strict = folder / "strict.json"
    strict.write_text('{"gate": {"top1": 0.999}}')
    assert cli("gate", art, "--recipe", strict).code == 4
    bare = folder / "bare.thin"
    shutil.copytree(art, bare, dirs_exist_ok=True)
    shutil.rmtree(bare / "attest")
    assert cli("gate", bare).code == 4 and "no certificate" in cli("gate", bare).err
    warned = cli("run", bare, "--prompt", "x", "--max-new-tokens", 1)
    assert warned.code == 0 and "warning" in warned.err


def test_certify_writes_the_same_certificate_again(art: Path, folder: Path, cli) -> None:
    copy = folder / "pico-copy" / "pico.thin"
    shutil.copytree(art, copy, dirs_exist_ok=True)
    (name,) = [p.name for p in (art / "attest").iterdir() if p.name.startswith("certificate")]
    shutil.rmtree(copy / "attest")
    done = cli("certify", copy, "--source", PICO, "--json")
    assert done.code == 0 and done.json["verdict"] == "pass"
    assert (copy / "attest" / name).read_bytes() == (art / "attest" / name).read_bytes(), "a certificate holds no times"


def test_a_damaged_page_is_named(art: Path, folder: Path, cli) -> None:
    copy = folder / "damaged.thin"
    shutil.copytree(art, copy, dirs_exist_ok=True)
    (file,) = (copy / "weights").iterdir()
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    for verb in (("verify",), ("run", "--prompt", "x"), ("run", "--prompt", "x", "--verify", "full"), ("chat",)):
        done = cli(verb[0], copy, *verb[1:])
        assert done.code == 6 and "page" in done.err and "A-19" in done.err and done.out == ""


@pytest.mark.parametrize(("share", "code"), [("20%", 4), ("3%", 3)])
def test_too_small_budgets(folder: Path, cli, share: str, code: int) -> None:
    target = folder / f"small{code}.thin"
    done = cli("compile", PICO, "--weights-budget", share, "-o", target, "--stats", folder / "stats.npz", "--json", "--force")
    assert done.code == code and not target.exists()
    if code == 3:
        assert "weights_budget" in done.err and "smallest feasible" in done.err
        return
    report = json.loads(done.out.splitlines()[0])
    assert report["verdict"] == "fail" and report["path"].endswith(".rejected") and (folder / "small4.thin.rejected").is_dir()
    (certificate,) = read_certificates(open_artifact(report["path"]))
    failed = [c for g in certificate.predicate.gates for c in g.checks if not c.passed]
    assert failed and all(c.miss > 0 for c in failed)


@pytest.mark.parametrize(("flag", "name"), [("--budget", "budget"), ("--max-artifact", "max_artifact"), ("--weights-budget", "weights_budget")])
def test_every_budget_names_itself(cli, flag: str, name: str) -> None:
    done = cli("plan", PICO, flag, "100KB", "--json")
    assert done.code == 3 and done.json["exit_code"] == 3 and f"{name}: 100000 bytes asked for" in done.json["error"]


def test_plan_and_the_artifact_agree(art: Path, cli) -> None:
    plan = cli("plan", PICO, "--weights-budget", "36%", "--stats", art, "--json").json
    ledger = cli("inspect", art, "--json").json["ledger"]
    assert plan["chosen"] == ledger
    low, high = plan["feasible"]["weights_budget"]
    assert low < ledger["encoded_weight_bytes"] < high
    graph = cli("inspect", PICO, "--graph").out
    assert graph.startswith("graph ") and "attention" in graph


REFUSED = {
    "hub id": (("compile", "org/model"), 5, "hf download"),
    "no model": (("compile", "nowhere"), 5, "nowhere"),
    "no budget unit": (("compile", PICO, "--budget", "6GX"), 2, "6GX"),
    "percent of the wrong budget": (("plan", PICO, "--budget", "10%"), 2, "weights budget"),
    "unknown flag": (("run", "x.thin", "--promptt", "x"), 2, "--prompt"),
    "unknown verb": (("compil", "x"), 2, "compil"),
    "no prompt": (("run", "x.thin"), 2, "--prompt"),
    "no artifact": (("run", "x.thin", "--prompt", "x"), 5, "x.thin"),
    "wrong name": (("compile", PICO, "-o", "out"), 2, ".thin"),
    "no folder": (("compile", PICO, "-o", "missing/x.thin"), 2, "missing"),
    "context": (("plan", PICO, "--context", "5000"), 2, "1024"),
    "temperature": (("run", "x.thin", "--prompt", "x", "--temperature", "-1"), 2, "temperature"),
    "recipe": (("plan", PICO, "--recipe", "none.yaml"), 2, "none.yaml"),
    "target": (("plan", PICO, "--target", "toaster"), 2, "toaster"),
    "verify nothing": (("verify", "nothing.thin"), 5, "nothing.thin"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line(cli, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, code, words = REFUSED[case]
    done = cli(*arguments)
    assert done.code == code and words in done.err and done.err.count("\n") == 1 and done.out == "", done
    as_json = cli(*arguments, "--json")
    assert as_json.code == code and as_json.json["exit_code"] == code
    assert list(tmp_path.iterdir()) == []


def test_unsupported_devices(art: Path, cli) -> None:
    for device, code in (("cuda:0", 7), ("toaster", 2)):
        assert cli("run", art, "--prompt", "x", "--device", device, "--uncertified").code == code


def test_an_existing_target_is_refused_before_the_work(art: Path, cli) -> None:
    done = cli("compile", PICO, "-o", art)
    assert done.code == 2 and "--force" in done.err


def test_a_lossless_artifact_is_its_source(folder: Path, cli) -> None:
    done = cli("compile", PICO, "-o", folder / "exact.thin", "--json", "--force")
    assert done.code == 0
    (certificate,) = read_certificates(open_artifact(folder / "exact.thin"))
    checks = {c.name: c for g in certificate.predicate.gates for c in g.checks}
    centred = [c.value for name, c in checks.items() if name.startswith("logits_cosine_centred")]
    assert centred and all(1 - value <= 1e-9 for value in centred)


def test_doctor(cli) -> None:
    report = cli("doctor", "--json").json
    assert report["devices"]["interp"] == "ok" and set(report["extras"]) == {"torch", "compile"}


FLAGS = {
    "compile": "allow-uncertified batch budget calibration context force json max-artifact max-ram no-certify output recipe resume save-stats stats "
    "target weights-budget",
    "plan": "batch budget context json max-artifact recipe stats target weights-budget",
    "certify": "device json max-ram recipe source",
    "gate": "device json recipe",
    "verify": "json threads",
    "inspect": "graph json",
    "run": "context device ignore-eos json kv-dtype max-new-tokens min-p prompt prompt-file seed stop temperature top-k top-p uncertified verify",
    "chat": "context device json kv-dtype max-new-tokens min-p seed stop system temperature top-k top-p uncertified verify",
    "pack": "force json output",
    "unpack": "force json output",
    "doctor": "json",
}


def test_the_vocabulary_is_frozen() -> None:
    context = click.Context(thinc)
    found = {}
    for verb in VERBS:
        command = thinc.get_command(context, verb)
        assert command is not None and command.help
        found[verb] = {max(p.opts, key=len).removeprefix("--") for p in command.params if isinstance(p, click.Option)}
    assert found == {verb: set(flags.split()) for verb, flags in FLAGS.items()}


def test_interrupting_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from thinlm.compiler.cli import main; main()", "compile", str(PICO), "--weights-budget", "36%", "-o", "x.thin"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("calibrate"):
                break
        process.terminate()
        rest = process.stderr.read()
    assert process.returncode == 130 and "interrupted" in rest and "--resume" in rest and "Traceback" not in rest
    assert not (tmp_path / "x.thin").exists()
