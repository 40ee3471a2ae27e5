"""Each attack changes one thing in a good checkpoint: `thinc` says so in one line, with exit code 5, soon, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from attacks_hf import configs, folder, links, tokens, weights
from attacks_hf.folder import Attack
from thinlm.compiler.cli import run
from thinlm.runtime_min.chat import ChatTemplate
from thinlm.schemas.errors import InputError

SECONDS, MEBIBYTES = 5.0, 500
EARLY = {**weights.ATTACKS, **configs.ATTACKS, **links.ATTACKS}  # refused from headers alone, by `plan` too
PROBE = r"""
import re, sys
from pathlib import Path
from thinlm.compiler.cli import run
from thinlm.compiler.frontends import open_checkpoint
from thinlm.runtime_min.tokenizer import Tokenizer
from thinlm.schemas.errors import InputError
code = run(["plan", sys.argv[1]])
if code == 0:
    try:
        Tokenizer.from_files(open_checkpoint(sys.argv[1])[1].tokenizer_files()).encode("a" * 16000)
    except InputError as e:
        print(e, file=sys.stderr)
        code = e.exit_code
# not getrusage: its figure begins with what the parent held when it forked
print(code, int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""
WORST = {
    **{name: weights.ATTACKS[name][0] for name in ("header of a million values", "a million tensors", "262,144 tensors", "index: 3 million names")},
    **{name: configs.ATTACKS[name][0] for name in ("100 MB of spaces", "a million lists", "4,096 layers", "a rope of 2^16")},
    **{name: tokens.ATTACKS[name][0] for name in ("4 million lists", "4 million lists as added tokens", "5 million values", "two times 3,000")},
    **{name: tokens.ATTACKS[name][0] for name in ("config: 60,000 tokens elsewhere", "config: 5 million values")},
    **{name: attack for name, (attack, _) in tokens.SLOW.items()},
}
FULL = {  # seconds each: in the full tier
    *("100,001 files", "index: 3 million names", "262,144 tensors", "a vocabulary of 600,000", "a Unigram of 600,000", "700,000 merges"),
    *({*WORST} - {"a million tensors", "4 million lists as added tokens", "a pattern that Oniguruma gives up"}),
}


def rows(table: Iterable[str]) -> list[object]:
    """The names of a table, slow ones marked."""
    return [pytest.param(name, marks=pytest.mark.full) if name in FULL else name for name in table]


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder.write(tmp_path_factory.mktemp("good") / "model")


@pytest.fixture
def bad(good: Path, tmp_path: Path) -> Callable[[Attack], Path]:
    def make(attack: Attack) -> Path:
        copy = tmp_path / "model"
        shutil.copytree(good, copy)
        made = attack(copy)
        return made if isinstance(made, Path) and made.is_dir() else copy

    return make


def refused(words: list[str], message: str, where: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command ends with exit code 5, in time, with one line that says `message`, and changes nothing below `where`."""
    before = sorted(where.rglob("*"))
    capfd.readouterr()
    start = time.thread_time()
    code = run(words)
    seconds = time.thread_time() - start
    out, err = capfd.readouterr()
    lines = [line for line in (out + err).splitlines() if line.startswith("thinc: ")]
    assert (code, len(lines)) == (5, 1), err
    assert message in lines[0]
    assert len(lines[0]) < 1000
    assert lines[0].isprintable()
    assert "Traceback" not in err
    assert "panicked" not in err
    assert seconds < SECONDS
    assert sorted(where.rglob("*")) == before


@pytest.mark.parametrize("name", rows(EARLY))
def test_a_hostile_folder(name: str, bad: Callable[[Attack], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    attack, message = EARLY[name]
    refused(["compile", str(bad(attack)), "-o", str(tmp_path / "a.thin")], message, tmp_path, capfd)


@pytest.mark.parametrize("name", rows(tokens.ATTACKS))
def test_a_hostile_tokenizer(name: str, bad: Callable[[Attack], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    attack, message = tokens.ATTACKS[name]
    refused(["compile", str(bad(attack)), "-o", str(tmp_path / "a.thin")], message, tmp_path, capfd)


@pytest.mark.parametrize("name", tokens.TEMPLATES)
def test_a_hostile_template(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError) as error:
        ChatTemplate({"default": tokens.TEMPLATES[name]}, {}).render([{"role": "user", "content": "x"}])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert time.monotonic() - start < 6 * SECONDS  # wall time: the processor time is limited by the worker itself


@pytest.mark.parametrize("content", [b"\xff", *(tokens.TEMPLATES[name].encode() for name in ("an endless loop", "malformed", "include"))])
def test_a_hostile_template_ends_a_compile_before_the_work(
    content: bytes, bad: Callable[[Attack], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = bad(folder.put("chat_template.jinja", content))
    refused(["compile", str(path), "-o", str(tmp_path / "a.thin")], "chat", tmp_path, capfd)


@pytest.mark.parametrize("name", rows(WORST))
def test_what_the_worst_cost(name: str, bad: Callable[[Attack], Path]) -> None:
    """Processor time and memory of a process of its own, which shows one line or none."""
    start = os.times()
    done = subprocess.run([sys.executable, "-c", PROBE, bad(WORST[name])], capture_output=True, text=True, check=True)
    end = os.times()
    code, mebibytes = done.stdout.splitlines()[-1].split()
    assert (code, done.stderr.count("\n")) == ("5", 1), done.stderr
    assert not (name in tokens.SLOW and tokens.SLOW[name][1] not in done.stderr), done.stderr
    assert end.children_user + end.children_system - start.children_user - start.children_system < SECONDS
    assert int(mebibytes) < MEBIBYTES


def test_the_good_one_is_good(good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise everything above would be refused for nothing."""
    assert run(["compile", str(good), "-o", str(tmp_path / "a.thin"), "--no-certify", "--allow-uncertified"]) == 0, capfd.readouterr().err
    assert (tmp_path / "a.thin" / "tokenizer.json").read_bytes() == (good / "tokenizer.json").read_bytes()


def test_links_that_a_hub_cache_and_a_folder_may_have(good: Path, tmp_path: Path) -> None:
    """Into the blobs beside `snapshots`, also from a folder below a snapshot, also when the way to the cache is a link; inside the folder."""
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "1" / "sub"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for n, path in enumerate(good.iterdir()):
        shutil.copy(path, blobs / str(n))
        (snapshot / path.name).symlink_to(f"../../../blobs/{n}")
    (tmp_path / "way").symlink_to("cache")
    assert run(["plan", str(snapshot)]) == 0
    assert run(["plan", str(tmp_path / "way" / "snapshots" / "1" / "sub")]) == 0
    inside = Path(shutil.copytree(good, tmp_path / "inside"))
    (inside / "config.json").rename(inside / "other.json")
    (inside / "config.json").symlink_to("other.json")
    assert run(["plan", str(inside)]) == 0


def test_there_are_enough() -> None:
    assert len(EARLY) + len(tokens.ATTACKS) + len(tokens.SLOW) > 200
