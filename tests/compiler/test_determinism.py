"""The same inputs give the same bytes: threads, cores, hash seed, time zone, locale, umask, places and the order of files change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tiny_source
from processes import Surroundings, thinc
from source import ROOT
from thinlm.artifacts import open_artifact
from thinlm.compiler import certification
from thinlm.compiler.driver import Job, compile_model
from thinlm.compiler.progress import Quiet
from thinlm.runtime_min.tokenizer import Tokenizer
from thinlm.schemas.recipe import Recipe
from tiny_source import copy_reversed

PICO = ROOT / "examples" / "pico"
LEAN = "650MB"
UNCERTIFIED = ("--no-certify", "--allow-uncertified", "--json")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run the same compile; `copied` reads a copy of the checkpoint made in reversed order, `near` runs in its folder, `lean` has
    memory for one worker only."""

    environment: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022
    one_core: bool = False
    copied: bool = False
    near: bool = False
    lean: bool = False


def threads(n: int) -> dict[str, str]:
    return {f"{name}_NUM_THREADS": str(n) for name in ("OMP", "MKL", "OPENBLAS")}


ODD = {"LANG": "ja_JP.eucJP", "HOME": "/nonexistent", "USER": "nobody", "COLUMNS": "11", "TERM": "dumb"}
VARIANTS = (
    Variant(environment={**threads(1), "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C"}),
    Variant(environment={**threads(2), "PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8"}, umask=0o077, copied=True),
    Variant(environment={**threads(1), "PYTHONHASHSEED": "random", "LC_ALL": "tr_TR.UTF-8", **ODD}, one_core=True, near=True, lean=True),
    Variant(environment={**threads(2), "PYTHONHASHSEED": "random", "TZ": "America/St_Johns"}, near=True, copied=True),
    Variant(environment={**threads(2), "PYTHONOPTIMIZE": "2", "LC_ALL": "C"}, umask=0o077, one_core=True),
    Variant(environment={"OMP_NUM_THREADS": "3", "PYTHONUTF8": "0", "LC_ALL": "POSIX"}, copied=True, lean=True),
    Variant(environment={**threads(1), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "Asia/Kathmandu"}, umask=0o002, near=True),
    Variant(environment={**threads(2), "OMP_DYNAMIC": "true", "LANG": "de_DE.ISO-8859-1", "PYTHONHASHSEED": "4294967295"}, umask=0o027),
)


def build(variant: Variant, model: Path, folder: Path, *arguments: object) -> dict[str, str | bytes]:
    """Compile and pack; what must not differ. Every build has its own output name."""
    folder.mkdir()
    if variant.copied:
        model = copy_reversed(model, folder / model.name)
    given, cwd = (Path(model.name), model.parent) if variant.near else (model, folder)
    where = Surroundings(cwd=cwd, environment=variant.environment, umask=variant.umask, one_core=variant.one_core)
    out = folder / f"{folder.name}.thin"
    memory = ("--max-ram", LEAN) if variant.lean else ()
    done = thinc("compile", given, "-o", out, *arguments, *memory, *UNCERTIFIED, where=where)
    assert done.returncode == 0, done.stderr
    assert thinc("pack", out, where=where).returncode == 0
    artifact = open_artifact(out)
    return {
        "payload_root": artifact.identity,
        "build_key": artifact.manifest.build_key,
        "artifact_id": artifact.artifact_id,
        "packed": (folder / f"{out.name}.zip").read_bytes(),  # with the evidence of the search: nothing here depends on the machine or the day
    }


def same(variants: tuple[Variant, ...], model: Path, folder: Path, *arguments: object) -> None:
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda n: build(variants[n], model, folder / f"build{n}", *arguments), range(len(variants))))
    different = {name: [n for n, one in enumerate(built) if one[name] != built[0][name]] for name in built[0]}
    assert different == {name: [] for name in built[0]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards, so that their order on the disk could matter."""
    return tiny_source.write(tmp_path_factory.mktemp("source") / "tiny", shards=3)


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """A recipe that calibrates on little text."""
    path = tmp_path / "quick.json"
    path.write_text(json.dumps({"calibration_tokens": 1024}))
    return path


def test_three_builds_are_one(tiny: Path, quick: Path, tmp_path: Path) -> None:
    same(VARIANTS[:3], tiny, tmp_path, "--recipe", quick, "--weights-budget", "40%")


@pytest.mark.full
def test_eight_builds_are_one(tmp_path: Path) -> None:
    same(VARIANTS, PICO, tmp_path, "--weights-budget", "36%")


def test_recorded_statistics_give_the_same_bytes(tiny: Path, quick: Path, tmp_path: Path) -> None:
    """What was calibrated and what is read again round alike; only the key says where the statistics came from."""
    arguments = ("--recipe", quick, "--weights-budget", "40%", *UNCERTIFIED)
    assert thinc("compile", tiny, "-o", tmp_path / "a.thin", *arguments, "--save-stats", tmp_path / "s.npz").returncode == 0
    assert thinc("compile", tiny, "-o", tmp_path / "b.thin", *arguments, "--stats", tmp_path / "s.npz").returncode == 0
    a, b = (open_artifact(tmp_path / f"{name}.thin") for name in "ab")
    assert a.identity == b.identity and a.manifest.build_key != b.manifest.build_key
    assert a.manifest.provenance.calibration and b.manifest.provenance.calibration == "", "no text was read"


class Stopped(Quiet):
    """Ends when the artifact's pages are all written."""

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator:
        with super().stage(name, total) as tick:
            yield tick
        if name == "round, write":
            raise KeyboardInterrupt


def test_another_model_does_not_go_on_with_what_was_left(tmp_path: Path) -> None:
    """Fine-tunes of one shape, the same recipe and target: no step and no page of the one is taken for the other's."""
    first, other = (tiny_source.write(tmp_path / str(seed) / "model", seed) for seed in (0, 1))
    recipe = Recipe(weights_budget="40%", calibration_tokens=512)

    def compiled(model: Path, name: str, progress: Quiet, resume: bool) -> str:
        return compile_model(Job(model=model, output=tmp_path / name, recipe=recipe, certify=False, resume=resume), progress).artifact.artifact_id

    with pytest.raises(KeyboardInterrupt):
        compiled(first, "t.thin", Stopped(), False)
    assert {".t.thin.work", ".t.thin.partial"} <= {path.name for path in tmp_path.iterdir()}
    assert compiled(other, "t.thin", Quiet(), True) == compiled(other, "alone.thin", Quiet(), False)


def test_a_certificate_does_not_depend_on_its_day() -> None:
    """A template that tells the date is told the same one on every day."""
    files = {path.name: path.read_bytes() for path in PICO.iterdir() if path.suffix == ".json"}
    files["chat_template.jinja"] = b"{{ strftime_now('%d %b %Y') }}: {{ messages[-1].content }}"
    tokenizer = Tokenizer.from_files(files)
    chats = [tokenizer.decode(p.ids.tolist()) for p in certification._prompts(tokenizer, files) if p.domain == "chat"]
    assert len(chats) > 2 and all(text.startswith("01 Jan 2025: ") for text in chats)
