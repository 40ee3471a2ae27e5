"""Certification of a model that is much larger than the memory it may take."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.big_checkpoint import shape_of, write
from thinlm.compiler import open_checkpoint

ROOT = Path(__file__).resolve().parents[2]
BOUND = 500 << 20  # bytes; 190 MB of it are Python, torch and the tokenizer


def test_the_checkpoint_is_what_it_says(tmp_path: Path) -> None:
    """Readable, sharded, the same bytes again, weights normal with deviation 1 / sqrt(columns), norms of ones."""
    shape = shape_of(0.001, 2100)
    total = write(tmp_path / "a", shape, shard_bytes=20 << 20)
    write(tmp_path / "b", shape, shard_bytes=20 << 20)
    graph, weights, info = open_checkpoint(tmp_path / "a")
    assert total == 2 * sum(p.size for p in graph.params)
    assert info.vocab_size == 2100
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 1
    assert weights.digest() == open_checkpoint(tmp_path / "b")[1].digest()
    for p in graph.params:
        w = weights.f32(p.name)
        assert (w == 1).all() if len(p.shape) == 1 else abs(w.std() * p.shape[1] ** 0.5 - 1) < 0.02


@pytest.mark.parametrize("gigabytes", [0.7, 1, 4, 8, 100])
def test_sizes_are_hit(gigabytes: float) -> None:
    total = sum(2 * n * (rest[0] if rest else 1) for _, (n, *rest) in shape_of(gigabytes).tensors())
    assert abs(total / 1e9 - gigabytes) < max(0.02, 0.02 * gigabytes)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not left behind."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.full
def test_peak_memory_is_far_below_the_model(large: Path) -> None:
    """1 GB in bf16, 2 GB in the float32 that it is compared in: source, artifact and caches lie in files, and no logits are held whole."""
    write(large / "model", shape_of(1, 32768))
    command = [sys.executable, "-m", "tests.soak.certify_lean", str(large / "model"), str(large / "work")]
    options = ["--format", "int4-sym-g64/1", "--documents", "2", "--tokens", "200", "--prompts", "3", "--new-tokens", "4", "--max-ram", str(BOUND)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["source_bytes"] > 950e6
    assert {name: peak >> 20 for name, peak in found["peak_rss_anon"].items() if peak > BOUND} == {}
