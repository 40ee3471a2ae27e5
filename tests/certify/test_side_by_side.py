"""Certifying with little memory: workers by what fits, prompts in batches, and the same figures whatever is spilled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from thinlm.artifacts import open_artifact
from thinlm.certify import certify
from thinlm.certify.side_by_side import PROCESS_BYTES, TOGETHER, WORKERS, batches, worker_bytes, workers_within
from thinlm.runtime_min import load_artifact
from thinlm.runtime_min.backends.torch_cpu import TorchBackend, memory
from thinlm.runtime_min.model import Model
from thinlm.schemas.certificate import Certificate
from tiny import Dims, tiny_graph
from tiny_compiled import Recipe, build, inputs, open_candidate, open_reference


def test_as_many_workers_as_fit() -> None:
    graph = tiny_graph(Dims())
    each = worker_bytes(graph, 40)
    assert workers_within(graph, 40, None) == WORKERS
    assert workers_within(graph, 40, PROCESS_BYTES + WORKERS * each) == WORKERS
    assert workers_within(graph, 40, PROCESS_BYTES + WORKERS * each - 1) == WORKERS - 1
    assert workers_within(graph, 40, 1) == 1, "one always runs"


@pytest.mark.parametrize("larger", [Dims(vocab=530), Dims(ffn=400), Dims(heads=64, kv_heads=2), Dims(layers=30, windows=(0,) * 30)])
def test_what_a_worker_takes_grows_with_every_size(larger: Dims) -> None:
    assert worker_bytes(tiny_graph(larger), 40) > worker_bytes(tiny_graph(Dims()), 40)
    assert worker_bytes(tiny_graph(larger), 80) > worker_bytes(tiny_graph(larger), 40)


@given(st.integers(0, 100), st.integers(1, 4))
def test_batches_tile_the_items(count: int, workers: int) -> None:
    runs = batches(range(count), workers)
    assert [i for run in runs for i in run] == list(range(count))
    assert len(runs) >= min(count, workers)
    sizes = [len(run) for run in runs]
    assert not sizes or (min(sizes) > 0 and max(sizes) <= TOGETHER and max(sizes) - min(sizes) <= 1)


def figures(certificate: Certificate) -> dict[str, tuple[float | None, int]]:
    return {c.name: (c.value, c.n) for gate in certificate.predicate.gates for c in gate.checks}


def test_figures_do_not_depend_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything spilled, one worker, the source streamed: memory figures are the same, the others up to rounding."""
    path = build(tmp_path, Recipe(batch=2, kv_dtype="f16"))
    plain = certify(open_candidate(path), open_reference(), inputs(path))
    monkeypatch.setattr(memory, "SPILLED", 1)
    spilled: list[int] = []
    spill, make = tmp_path / "spill", memory.Spill.__call__
    spill.mkdir()

    def counted(self: memory.Spill, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        out = make(self, shape, dtype)
        spilled.append(out.nbytes)
        return out

    monkeypatch.setattr(memory.Spill, "__call__", counted)
    source = open_reference()
    reference = Model(source.graph, source.weights, TorchBackend(spill), source.options)
    artifact = open_artifact(path)
    given = replace(inputs(path), load=lambda: load_artifact(open_artifact(path), spill=spill), max_ram=1)
    lean = certify(load_artifact(artifact, spill=spill), reference, given)
    assert len(spilled) > 20
    assert not list(spill.iterdir())
    a, b = figures(plain), figures(lean)
    assert a.keys() == b.keys()
    for name, (value, n) in a.items():
        exact = name.startswith(("memory_", "graph_", "file_", "row", "lossless_", "nonfinite"))
        assert b[name] == ((value, n) if exact else (pytest.approx(value, rel=1e-4, abs=1e-6), n)), name
