"""Calibration against the interpreter and finite differences; independence of workers; the statistics' file and attacks on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from thinlm.passes import import_pipeline, run_pipeline
from thinlm.passes.calibrate import Calibration, Stats, calibrate, load_stats, save_stats, windows_digest
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.errors import InputError, UsageError
from thinlm.schemas.graph import Graph
from tiny import Dims, MemoryWeights, tiny_graph

OPTIONS = Calibration(source="tiny", gradient_share=1.0)
WINDOWS = [np.random.default_rng(n).integers(0, 53, size) for n, size in enumerate((20, 17, 33))]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest) -> tuple[Graph, MemoryWeights]:
    graph, _ = run_pipeline(tiny_graph(Dims(tied=request.param)), import_pipeline())
    return graph, MemoryWeights(graph)


@pytest.fixture(scope="module")
def stats(model: tuple[Graph, MemoryWeights]) -> Stats:
    return calibrate(*model, WINDOWS, OPTIONS)


def test_input_moments_are_those_of_the_interpreter(model: tuple[Graph, MemoryWeights], stats: Stats) -> None:
    graph, weights = model
    linears = [n for n in graph.nodes if n.op == "linear"]
    values = {n.inputs[0] for n in linears}
    runs = [evaluate(graph, weights, w[None], keep=tuple(values)) for w in WINDOWS]
    for node in linears:
        x = np.concatenate([run[node.inputs[0]][0] for run in runs])
        got = stats.input_of(node.inputs[1])
        np.testing.assert_allclose(got.mean, x.mean(0), atol=1e-5)
        np.testing.assert_allclose(got.second, x.T @ x / len(x), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got.diagonal, (x**2).mean(0), rtol=1e-4, atol=1e-6)
    assert len(stats.moments) == len(values)
    assert stats.header.inputs["blk.1.attn.v"] == "blk.1.attn.q"


def test_wide_inputs_keep_their_diagonal(model: tuple[Graph, MemoryWeights], stats: Stats) -> None:
    narrow = calibrate(*model, WINDOWS, replace(OPTIONS, max_gram=24))
    assert narrow.input_of("blk.0.ffn.down").second.shape == (40,)
    assert narrow.input_of("blk.0.attn.q").second.shape == (24, 24)
    for name in ("blk.0.ffn.down", "blk.2.attn.o"):
        np.testing.assert_allclose(narrow.input_of(name).diagonal, stats.input_of(name).diagonal, rtol=1e-5)


def shifted_loss(graph: Graph, weights: MemoryWeights, bias: str, delta: np.ndarray, labels: list[np.ndarray]) -> float:
    """Summed loss of the labels with `delta` added to a bias."""
    arrays = dict(weights.arrays)
    arrays[bias] = arrays[bias].astype(np.float64) + delta
    total = 0.0
    for window, label in zip(WINDOWS, labels, strict=True):
        logits = evaluate(graph, arrays, window[None])["logits"][0]
        logits -= logits.max(-1, keepdims=True)
        total += float((np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(label)), label]).sum())
    return total


def test_gradients_are_those_of_the_loss(model: tuple[Graph, MemoryWeights], monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient at a linear's output, summed over tokens, is that of its bias: seen through the hook and by finite differences."""
    import torch

    from thinlm.passes.calibrate import gradients

    graph, weights = model
    sums: dict[str, np.ndarray] = {}
    labels: list[np.ndarray] = []
    sample, add = gradients._sampled, gradients._add_square

    def watch_labels(logits: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
        labels.append(sample(logits, draws).numpy())
        return torch.from_numpy(labels[-1])

    def watch(found: dict, key: str, gradient: torch.Tensor) -> None:
        sums[key] = sums.get(key, 0) + gradient[0].double().sum(0).numpy()
        add(found, key, gradient)

    monkeypatch.setattr(gradients, "_sampled", watch_labels)
    monkeypatch.setattr(gradients, "_add_square", watch)
    calibrate(graph, weights, WINDOWS, replace(OPTIONS, workers=1))
    for name in ("blk.0.attn.q", "blk.2.attn.v"):
        for channel in (0, 3):
            delta = np.zeros(weights.shape(f"{name}.bias"))
            delta[channel] = 1e-4
            up, down = (shifted_loss(graph, weights, f"{name}.bias", d, labels) for d in (delta, -delta))
            assert sums[f"output/{name}"][channel] == pytest.approx((up - down) / 2e-4, rel=2e-3, abs=1e-3)


def test_head_gradients_are_the_models_own_uncertainty(model: tuple[Graph, MemoryWeights]) -> None:
    """E[g^2] = p (1 - p) where labels are drawn from p; averaged over many windows of the same text."""
    graph, weights = model
    head = "embed" if "head" not in graph.param_table() else "head"
    window = WINDOWS[0][:6]
    got = calibrate(graph, weights, [window] * 200, replace(OPTIONS, seed=1)).outputs[head]
    logits = evaluate(graph, weights, window[None])["logits"][0]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = (p * (1 - p)).mean(0)
    np.testing.assert_allclose(got.sum(), expected.sum(), rtol=0.04)
    assert np.corrcoef(got, expected)[0, 1] > 0.95


def test_tables_count_what_was_read(stats: Stats) -> None:
    table = stats.tables["embed"]
    np.testing.assert_array_equal(table.counts, np.bincount(np.concatenate(WINDOWS), minlength=53))
    assert table.gradient.shape == (24,)
    assert (table.gradient > 0).all()


def test_workers_change_nothing(model: tuple[Graph, MemoryWeights], stats: Stats) -> None:
    seen: list[float] = []
    again = calibrate(*model, WINDOWS, replace(OPTIONS, workers=3), seen.append)
    assert again.digest() == stats.digest()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert calibrate(*model, WINDOWS, replace(OPTIONS, seed=9)).digest() != stats.digest()


def test_gradients_may_use_fewer_windows(model: tuple[Graph, MemoryWeights], stats: Stats) -> None:
    part = calibrate(*model, WINDOWS, replace(OPTIONS, gradient_share=0.34))
    assert (part.header.tokens, part.header.gradient_tokens) == (70, 20)
    assert part.header.text == stats.header.text == windows_digest(WINDOWS)


@pytest.mark.parametrize("windows", [[], [np.array([], np.int64)]])
def test_no_text_is_refused(model: tuple[Graph, MemoryWeights], windows: list[np.ndarray]) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        calibrate(*model, windows, OPTIONS)


def test_the_file_reads_back(stats: Stats, tmp_path: Path) -> None:
    save_stats(stats, tmp_path / "stats.npz")
    again = load_stats(tmp_path / "stats.npz")
    assert again.digest() == stats.digest()
    assert again.header == stats.header
    np.testing.assert_array_equal(again.input_of("blk.0.ffn.up").second, stats.input_of("blk.0.ffn.up").second)


def _edit(stats: Stats, path: Path, change) -> None:
    """The saved arrays with one change, under a digest that fits it."""
    from thinlm.passes.calibrate.stats import _digest

    save_stats(stats, path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = msgspec.json.decode(arrays.pop("header").tobytes())
    change(header, arrays)
    header["arrays"] = _digest(arrays)
    with path.open("wb") as file:
        np.savez(file, header=np.frombuffer(msgspec.json.encode(header), np.uint8), **arrays)


CHANGES = {
    "another schema": (lambda h, a: h.update(schema="thinc.stats/9"), "schema"),
    "an unknown key": (lambda h, a: h.update(extra=1), "extra"),
    "a missing array": (lambda h, a: a.pop("output/blk.0.attn.q"), "lack 'output/blk.0.attn.q'"),
    "an extra array": (lambda h, a: a.update(other=np.zeros(1)), "unexpected array 'other'"),
    "a negative square": (lambda h, a: a["output/blk.0.attn.q"].__isub__(9), "output/blk.0.attn.q"),
    "not a number": (lambda h, a: a["input/blk.0.attn.q/mean"].fill(np.nan), "finite"),
    "another shape": (lambda h, a: a.update({"input/blk.0.attn.q/mean": np.zeros(3)}), "do not fit"),
    "words": (lambda h, a: a.update({"input/blk.0.attn.q/mean": np.array(["x"])}), "numbers"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=list(CHANGES))
def test_other_files_are_refused(stats: Stats, tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "stats.npz"
    _edit(stats, path, change)
    with pytest.raises(InputError) as caught:
        load_stats(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_changed_number_is_noticed(stats: Stats, tmp_path: Path) -> None:
    path = tmp_path / "stats.npz"
    save_stats(stats, path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["output/blk.0.attn.q"][0] *= 2
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(InputError, match="damaged"):
        load_stats(path)


def test_damage_and_pickles_are_refused(stats: Stats, tmp_path: Path) -> None:
    path = tmp_path / "stats.npz"
    for content in (b"", b"PK\x03\x04nothing", np.array([{}], object), np.zeros(3)):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            with path.open("wb") as file:
                np.save(file, content, allow_pickle=True)
        with pytest.raises(InputError, match="not calibration statistics"):
            load_stats(path)
    with pytest.raises(InputError):
        load_stats(tmp_path / "nowhere.npz")
