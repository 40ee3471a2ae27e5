"""Scores: the formula by an independent loop, the KL that a perturbation really causes, sampling, and the table for a whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from thinlm.artifacts.formats import get_format
from thinlm.artifacts.work import Work
from thinlm.passes import import_pipeline, run_pipeline, score
from thinlm.passes.calibrate import Calibration, InputMoments, Stats, TableMoments, calibrate
from thinlm.passes.costs import cost_table
from thinlm.passes.round import encode_slab
from thinlm.passes.score import Scoring, Sensitivity, column_weights, measure, sensitivities
from thinlm.passes.targets import get_target
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.graph import LOSSLESS_ROLES, Graph
from tiny import Dims, MemoryWeights, tiny_graph

CPU = get_target("cpu")
CANDIDATES = ("int8-sym-g32/1", "int4-sym-g32/1", "int3-sym-g32/1", "int2-sym-g32/1")
DIMS = Dims(hidden=32, ffn=136, layers=2, heads=4, kv_heads=2, head_dim=8, vocab=60, windows=(0, 5))
WINDOWS = [np.random.default_rng(n).integers(0, DIMS.vocab, 48) for n in range(12)]

Case = tuple[Graph, MemoryWeights, Stats]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def case(request: pytest.FixtureRequest) -> Case:
    dims = Dims(**{f: getattr(DIMS, f) for f in DIMS.__dataclass_fields__} | {"tied": request.param})
    graph, _ = run_pipeline(tiny_graph(dims), import_pipeline())
    weights = MemoryWeights(graph)
    return graph, weights, calibrate(graph, weights, WINDOWS, Calibration(source="tiny", gradient_share=1.0))


def predicted(known: Sensitivity, error: np.ndarray) -> float:
    """The formula of score.py as sums over single weights."""
    total = 0.0
    for row, e in enumerate(error.astype(np.float64)):
        if known.head is not None:
            gradient, moments = known.head
            total += gradient[row] * sum(e[i] * moments.second[i, j] * e[j] for i in range(len(e)) for j in range(len(e)))
        if known.table is not None:
            counts = known.table.counts + score.UNSEEN
            total += counts[row] / counts.sum() * sum(e**2 * known.table.gradient)
    return total / 2


def test_the_formula() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 5))
    head = (rng.random(3), InputMoments(x.mean(0), (x.T @ x / 40).astype(np.float32)))
    table = TableMoments(np.array([4, 0, 1]), rng.random(5))
    error = rng.standard_normal((3, 5)).astype(np.float32)
    for known in (Sensitivity(head, None), Sensitivity(None, table), Sensitivity(head, table)):
        assert known.kl(error, np.arange(3)) == pytest.approx(predicted(known, error), rel=1e-5)
    diagonal = (head[0], InputMoments(head[1].mean, head[1].diagonal))
    assert Sensitivity(diagonal, None).kl(error, np.arange(3)) == pytest.approx(float(head[0] @ (error**2 @ diagonal[1].second)) / 2)
    np.testing.assert_allclose(Sensitivity(head, table).column_weights(), head[0].mean() * head[1].diagonal + table.gradient / 3)


def real_kl(graph: Graph, weights: MemoryWeights, name: str, error: np.ndarray) -> float:
    """Mean KL over all positions of the calibration text, with `error` added to one weight."""
    moved = {**weights.arrays, name: weights.arrays[name] + error}
    total, count = 0.0, 0
    for window in WINDOWS:
        a, b = (_log_softmax(evaluate(graph, w, window[None])["logits"][0]) for w in (weights.arrays, moved))
        total += float((np.exp(a) * (a - b)).sum())
        count += len(window)
    return total / count


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["blk.0.ffn.up", "blk.1.ffn.down", "blk.0.attn.v", "blk.1.attn.o", "embed"])
def test_predictions_are_what_small_errors_cost(case: Case, name: str) -> None:
    graph, weights, stats = case
    rng = np.random.default_rng(3)
    known = sensitivities(graph, stats)[name]
    ratios = []
    for _ in range(4):
        error = (rng.standard_normal(weights.shape(name)) * 0.01).astype(np.float32)
        ratios.append(known.kl(error, np.arange(len(error))) / real_kl(graph, weights, name, error))
    assert 0.6 < np.mean(ratios) < 1.6


def test_the_table_of_a_model(case: Case) -> None:
    graph, weights, stats = case
    costs = cost_table(graph, CPU, CANDIDATES)
    seen: list[float] = []
    table = measure(graph, weights, stats, costs, Scoring(progress=seen.append))
    assert table.scored
    assert table.stats == stats.digest()
    assert seen[-1] == pytest.approx(1.0)
    params = graph.param_table()
    for group, before in zip(table.groups, costs.groups, strict=True):
        kls = [o.predicted_kl for o in group.options]
        assert kls[-1] == 0
        assert [(o.format, o.encoded_bytes, o.resident_bytes) for o in group.options] == [
            (o.format, o.encoded_bytes, o.resident_bytes) for o in before.options
        ]
        if params[group.params[0]].role not in LOSSLESS_ROLES:
            assert 0 < kls[0] < kls[1] < kls[2] < kls[3]
    assert measure(graph, weights, stats, costs, Scoring(workers=1)) == table


def test_a_score_is_that_of_the_rounding_that_ships(case: Case) -> None:
    graph, weights, stats = case
    table = measure(graph, weights, stats, cost_table(graph, CPU, CANDIDATES))
    known, h = sensitivities(graph, stats), column_weights(graph, stats)
    (group,) = (g for g in table.groups if g.params == ("blk.1.ffn.down",))
    w, fmt = weights.f32("blk.1.ffn.down"), get_format("int3-sym-g32/1")
    cuts = [fmt.dequantize(encode_slab(fmt, w[:, a:b], h["blk.1.ffn.down"][a:b]), b - a) for a, b in ((0, 128), (128, 136))]
    expected = known["blk.1.ffn.down"].kl(np.concatenate(cuts, 1) - w, np.arange(len(w)))
    assert group.option("int3-sym-g32/1").predicted_kl == pytest.approx(expected, rel=1e-4)


def test_large_tensors_are_sampled_by_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, weights, stats = case
    costs = cost_table(graph, CPU, CANDIDATES)
    full = measure(graph, weights, stats, costs)
    monkeypatch.setattr(score, "SAMPLE", 1500)
    part = measure(graph, weights, stats, costs)
    for a, b in zip(full.groups, part.groups, strict=True):
        for x, y in zip(a.options, b.options, strict=True):
            assert y.predicted_kl == pytest.approx(x.predicted_kl, rel=0.6)
    assert full != part


def test_rows_that_matter_more_count_more() -> None:
    """One row in two is known: the others are taken to err as these do, each as far as it matters."""
    head = (np.array([1.0, 5.0, 3.0, 7.0]), InputMoments(np.zeros(2), np.ones(2)))
    table = TableMoments(np.array([0, 0, 0, 0]), np.ones(2))
    error = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert Sensitivity(head, None).kl(error, np.array([0, 2])) == pytest.approx((1 * 1 + 3 * 4) * (16 / 4) / 2)
    assert Sensitivity(None, table).kl(error, np.array([1, 3])) == pytest.approx((1 + 4) / 4 * 2 / 2)


def test_finished_groups_are_not_scored_again(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, weights, stats = case
    costs = cost_table(graph, CPU, CANDIDATES)

    class Stopped(Exception):
        pass

    def stop(share: float) -> None:
        if share > 0.5:
            raise Stopped

    with pytest.raises(Stopped):
        measure(graph, weights, stats, costs, Scoring(work=Work(tmp_path), progress=stop))
    half = len(list(tmp_path.iterdir()))
    table = measure(graph, weights, stats, costs, Scoring(work=Work(tmp_path)))
    assert 0 < half < len(list(tmp_path.iterdir())) or half == len([g for g in costs.groups if len(g.options) > 1])
    assert table == measure(graph, weights, stats, costs)
    monkeypatch.setattr(score, "_score", pytest.fail)
    assert measure(graph, weights, stats, costs, Scoring(work=Work(tmp_path))) == table
    fewer = cost_table(graph, CPU, CANDIDATES[:2])
    monkeypatch.undo()
    assert measure(graph, weights, stats, fewer, Scoring(work=Work(tmp_path))) == measure(graph, weights, stats, fewer)


def test_scores_are_short_numbers(case: Case) -> None:
    graph, weights, stats = case
    table = measure(graph, weights, stats, cost_table(graph, CPU, CANDIDATES[:2]))
    for o in (o for g in table.groups for o in g.options):
        assert o.predicted_kl == float(f"{o.predicted_kl:.5e}")
