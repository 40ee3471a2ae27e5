"""Calibration in segments: the cut is sound, wide matrices give the same numbers, and a killed calibration goes on where it was."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from thinlm.artifacts.work import Work
from thinlm.passes import import_pipeline, run_pipeline
from thinlm.passes.calibrate import Calibration, Stats, calibrate, tasks
from thinlm.passes.calibrate.segments import segments
from thinlm.schemas.graph import Graph, Node
from tiny import Dims, MemoryWeights, tiny_graph

OPTIONS = Calibration(source="tiny", gradient_share=0.7)
WINDOWS = [np.random.default_rng(n).integers(0, 53, size) for n, size in enumerate((20, 17, 33, 5))]


def model(seed: int = 0) -> tuple[Graph, MemoryWeights]:
    graph, _ = run_pipeline(tiny_graph(Dims(tied=False)), import_pipeline())
    return graph, MemoryWeights(graph, seed)


@pytest.fixture(scope="module")
def stats() -> Stats:
    return calibrate(*model(), WINDOWS, OPTIONS)


@pytest.mark.parametrize("tied", [True, False])
def test_segments_are_the_graph_cut_at_layers(tied: bool) -> None:
    graph, _ = run_pipeline(tiny_graph(Dims(tied=tied)), import_pipeline())
    parts = segments(graph)
    assert tuple(n for part in parts for n in part.nodes) == graph.nodes
    params, seen = graph.param_table(), set[str]()
    for at, part in enumerate(parts):
        assert len({params[i].layer for n in part.nodes for i in n.inputs if i in params}) <= 1
        here = {n.output for n in part.nodes}
        later = {i for p in parts[at + 1 :] for n in p.nodes for i in n.inputs}
        assert set(part.reads) == {i for n in part.nodes for i in n.inputs} & seen
        assert set(part.makes) == here & later
        seen |= here
    assert parts[-2].nodes[-1].output == graph.output("hidden.final")


def test_wide_matrices_give_the_same_numbers(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "WIDE", 0)
    monkeypatch.setattr(tasks, "ROWS", 100)  # 4 rows of 24 columns at a time
    graph, weights = model()
    longest: list[int] = []

    def block(name: str, rows: slice | np.ndarray) -> np.ndarray:
        w = weights.arrays[name]
        part = w.reshape(-1, w.shape[-1])[rows].copy()
        longest.append(part.size)
        return part

    monkeypatch.setattr(weights, "f32", pytest.fail)
    monkeypatch.setattr(weights, "block", block)
    got = calibrate(graph, weights, WINDOWS, OPTIONS)
    assert max(longest) <= 33 * 24, "no more than an embedded window is read at a time"
    for key, moments in stats.moments.items():
        np.testing.assert_allclose(got.moments[key].second, moments.second, rtol=1e-4, atol=1e-5)
    for name, gradient in stats.outputs.items():
        np.testing.assert_allclose(got.outputs[name], gradient, rtol=1e-4, atol=1e-7 * gradient.max())
    np.testing.assert_allclose(got.tables["embed"].gradient, stats.tables["embed"].gradient, rtol=1e-4)


def test_pieces_of_any_size_give_the_same_numbers(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of windows, rows of second moments, positions of the head: windows here are shorter than the shipped sizes."""
    from thinlm.passes.calibrate import gradients, inputs

    for module, name, size in ((inputs, "BATCH", 3), (inputs, "GRAM_ROWS", 7), (gradients, "PIECE", 6)):
        monkeypatch.setattr(module, name, size)
    got = calibrate(*model(), WINDOWS, OPTIONS)
    for key, moments in stats.moments.items():
        np.testing.assert_allclose(got.moments[key].second, moments.second, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(got.moments[key].mean, moments.mean)
    for name, gradient in stats.outputs.items():
        np.testing.assert_allclose(got.outputs[name], gradient, rtol=1e-3, atol=1e-6 * gradient.max())


def test_wherever_the_cuts_are_the_numbers_are_the_same(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment per node: residual values pass several segments by and get gradients from more than one."""
    cuts = sys.modules[segments.__module__]  # the package's name for it is the function
    whole = cuts._groups

    def each_node_alone(graph: Graph) -> list[list[Node]]:
        *body, tail = whole(graph)
        return [*([node] for part in body for node in part), tail]

    monkeypatch.setattr(cuts, "_groups", each_node_alone)
    graph, weights = model()
    parts = segments(graph)
    assert any(sum(value in part.reads for part in parts) > 1 for part in parts for value in part.makes)
    got = calibrate(graph, weights, WINDOWS, OPTIONS)
    assert got.header == stats.header
    for key, moments in stats.moments.items():
        np.testing.assert_array_equal(got.moments[key].second, moments.second)
    for name, gradient in stats.outputs.items():
        np.testing.assert_allclose(got.outputs[name], gradient, rtol=1e-3, atol=1e-6 * gradient.max())
    np.testing.assert_allclose(got.tables["embed"].gradient, stats.tables["embed"].gradient, rtol=1e-3)


class Stopped(Exception):
    """Stands for a kill."""


def test_a_stopped_calibration_goes_on(stats: Stats, tmp_path: Path) -> None:
    """Stopped after every single step in turn, it ends with the same bits, and does no step twice."""
    work, stops = Work(tmp_path), 0
    while True:
        before = set(tmp_path.iterdir())
        made = 0

        def stop(share: float, before: set[Path] = before) -> None:
            nonlocal made
            made = len(set(tmp_path.iterdir()) - before)
            if made:
                raise Stopped

        try:
            found = calibrate(*model(), WINDOWS, OPTIONS, stop, work)
            break
        except Stopped:
            assert made == 1
            stops += 1
    assert stops == 2 * len(segments(model()[0]))
    assert found.digest() == stats.digest()


def test_finished_steps_are_not_done_again(stats: Stats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, weights = model()
    calibrate(graph, weights, WINDOWS, OPTIONS, work=Work(tmp_path))
    monkeypatch.setattr(weights, "f32", pytest.fail)
    monkeypatch.setattr(weights, "block", pytest.fail)
    assert calibrate(graph, weights, WINDOWS, OPTIONS, work=Work(tmp_path)).digest() == stats.digest()


def test_damaged_steps_are_done_again(stats: Stats, tmp_path: Path) -> None:
    calibrate(*model(), WINDOWS, OPTIONS, work=Work(tmp_path))
    for path in sorted(tmp_path.iterdir()):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert calibrate(*model(), WINDOWS, OPTIONS, work=Work(tmp_path)).digest() == stats.digest()


@pytest.mark.parametrize("change", ["weights", "seed", "text", "share"])
def test_steps_of_another_calibration_are_not_used(stats: Stats, tmp_path: Path, change: str) -> None:
    """Two fine-tunes of one shape, or other settings, in the same work folder."""
    from dataclasses import replace

    calibrate(*model(), WINDOWS, OPTIONS, work=Work(tmp_path))
    windows = [*WINDOWS[:-1], WINDOWS[-1][::-1].copy()] if change == "text" else WINDOWS
    options = replace(
        OPTIONS,
        source="other" if change == "weights" else "tiny",
        seed=5 if change == "seed" else 0,
        gradient_share=0.3 if change == "share" else OPTIONS.gradient_share,
    )
    weights = model(seed=7 if change == "weights" else 0)
    got = calibrate(*weights, windows, options, work=Work(tmp_path))
    assert got.digest() == calibrate(*weights, windows, options).digest()
    assert got.digest() != stats.digest()
