"""The same artifact and seed give the same bits: in two processes, under one thread and two, whatever the hash seed; and blocks of any size
change no token that is not a tie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from thinlm.certify.checks.greedy import TIE
from thinlm.compiler.cli import run
from thinlm.runtime_min import load
from thinlm.runtime_min.model import Model
from tiny_bits import model
from tiny_compiled import Recipe, build

WORKER = Path(__file__).parents[1] / "tiny_bits.py"
PICO = Path(__file__).parents[2] / "examples" / "pico"
FORMATS = (
    "int2-aff-g32/1",
    "int3-sym-g64/1",
    "int4-aff-g32/1",
    "int6-sym-g64/1",
    "int8-sym-g128/1",
    "bf16/1",
    "f16/1",
    "f32/1",
    "fp8-row/1",
    "source",
)
BLOCKS, NEW_TOKENS = (16, 64, 128), 200


def in_two_processes(new_tokens: int, *cases: str) -> list[dict[str, str]]:
    """Digests by what was computed: one entry per process, case and number of threads, cases side by side."""
    found: list[dict[str, dict[str, str]]] = []
    for threads in ("1", "2"):  # what torch finds when it starts; the worker also sets both by itself
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run([sys.executable, str(WORKER), str(new_tokens), *cases], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    return [
        {f"{case}: {what}": digest for case in cases for what, digest in process[f"{case} threads={n}"].items()} for process in found for n in (1, 2)
    ]


def assert_same(found: list[dict[str, str]]) -> None:
    first, *others = found
    assert len(others) == 3
    for other in others:
        assert other.keys() == first.keys()
        assert [what for what in first if first[what] != other[what]] == []


def test_an_artifact_has_one_result(tmp_path: Path) -> None:
    assert_same(in_two_processes(NEW_TOKENS, str(build(tmp_path, Recipe(matrices="int4-sym-g32/1", kv_dtype="f16", predicted=1 << 40)))))


@pytest.mark.parametrize("new_tokens", [20, pytest.param(NEW_TOKENS, marks=pytest.mark.full)])
def test_every_way_to_hold_weights_has_one_result(new_tokens: int) -> None:
    assert_same(in_two_processes(new_tokens, "int4-sym-g64/1", *(FORMATS if new_tokens == NEW_TOKENS else FORMATS[::3])))


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model, compiled."""
    target = tmp_path_factory.mktemp("pico") / "pico.thin"
    assert run(["compile", str(PICO), "--weights-budget", "36%", "--no-certify", "--allow-uncertified", "-o", str(target)]) == 0
    return target


@pytest.mark.full
def test_the_shipped_model_has_one_result(pico: Path) -> None:
    assert_same(in_two_processes(NEW_TOKENS, str(pico)))


@pytest.mark.full
def test_blocks_change_no_token_of_the_shipped_model(pico: Path) -> None:
    assert_blocks_agree(load(pico), list(range(5, 25)))


@pytest.mark.parametrize("case", ["int4-sym-g64/1", "source"])
def test_blocks_change_no_token(case: str) -> None:
    assert_blocks_agree(model(case), [5, 6, 7])


def assert_blocks_agree(m: Model, prompt: list[int]) -> None:
    """200 greedy tokens, position by position along the first block size's own text: another size picks the same or it was a tie."""
    context = len(prompt) + NEW_TOKENS
    runs = [m.running(replace(m.options, block=block, prefill_chunk=min(block, 64), context=context)) for block in BLOCKS]
    text = prompt + runs[0].generate(prompt, NEW_TOKENS, ignore_eos=True)[:-1]
    assert len(set(text)) > 20, "a text that repeats itself says little"
    logits = []
    for r in runs:
        with r.session() as s:
            logits.append(np.array([s.advance(prompt), *(s.advance([t]) for t in text[len(prompt) :])])[:, : m.options.vocab])
    assert logits[0].shape[0] == NEW_TOKENS
    top = np.sort(logits[0], axis=1)
    clear = top[:, -1] - top[:, -2] >= TIE
    assert clear.mean() > 0.5
    for other in logits[1:]:
        assert (other.argmax(1) == logits[0].argmax(1))[clear].all()
        assert np.abs(other - logits[0]).max() <= 1e-3 * np.abs(logits[0]).max()
