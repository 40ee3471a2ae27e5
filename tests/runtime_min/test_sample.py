"""Sampling: parameter ranges, ties, filters against a plain reimplementation and transformers, frequencies against the exact distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from thinlm.runtime_min.sample import SamplingParams, distribution, sample, uniform
from thinlm.schemas.errors import BackendError, UsageError

# Few distinct values, so that ties are common.
LOGITS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-30.0, -2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0, 8.0]))
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1e-9, 0.2, 0.5, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


def plain(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """The kept ids and their probabilities, by sorting everything and filtering one step after another."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: params.top_k or None]
    weights = [math.exp((float(logits[i]) - float(logits[order[0]])) / params.temperature) for i in order]
    total, mass, kept = math.fsum(weights), 0.0, []
    for i, weight in zip(order, weights, strict=True):
        if mass >= params.top_p * total * (1 - 1e-12) and params.top_p < 1:
            break
        mass += weight
        if weight >= params.min_p:
            kept.append((i, weight))
    scale = math.fsum(w for _, w in kept)
    return {i: w / scale for i, w in kept}


@given(LOGITS, PARAMS)
def test_filters_equal_the_plain_version(logits: np.ndarray, params: SamplingParams) -> None:
    ids, weights = distribution(logits, params)
    expected = plain(logits, params)
    assert sorted(ids) == sorted(expected)
    np.testing.assert_allclose(weights / weights.sum(), [expected[i] for i in ids], rtol=1e-9)


@given(LOGITS, PARAMS, st.integers(0, 10_000))
def test_a_draw_is_a_kept_id_and_repeatable(logits: np.ndarray, params: SamplingParams, step: int) -> None:
    drawn = sample(logits, params, step)
    assert drawn in plain(logits, params)
    assert drawn == sample(logits.copy(), params, step)


@given(LOGITS, st.integers(0, 2**64 - 1))
def test_what_equals_greedy(logits: np.ndarray, seed: int) -> None:
    """Temperature 0, one kept id, a tiny top-p, and a temperature near 0 all choose the lowest id among the highest logits."""
    best = int(np.argmax(logits))
    assert sample(logits, SamplingParams(seed=seed), 3) == best
    for filters in ({"top_k": 1}, {"top_p": 1e-12}):
        assert sample(logits, SamplingParams(temperature=1.0, seed=seed, **filters), 3) == best
    cold, _ = distribution(logits, SamplingParams(temperature=1e-300, top_p=0.999999))
    assert set(cold) <= set(np.flatnonzero(logits == logits.max()))


def test_ties_go_to_the_lowest_id() -> None:
    logits = np.array([1, 5, 5, 0, 5], np.float32)
    assert sample(logits, SamplingParams(), 0) == 1
    assert list(distribution(logits, SamplingParams(temperature=1.0, top_k=2))[0]) == [1, 2]
    assert list(distribution(logits, SamplingParams(temperature=1.0, top_p=0.5))[0]) == [1, 2]


def test_padding_rows_are_never_chosen() -> None:
    logits = np.array([0, 1, 9, 9], np.float32)
    assert sample(logits, SamplingParams(), 0, vocab_size=2) == 1
    drawn = {sample(logits, SamplingParams(temperature=5.0, seed=1), step, vocab_size=2) for step in range(200)}
    assert drawn == {0, 1}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.6, top_k=5, seed=4),
        SamplingParams(temperature=1.4, top_p=0.8, seed=5),
        SamplingParams(temperature=1.0, min_p=0.1, top_k=9, seed=6),
    ],
)
def test_frequencies_match_the_exact_distribution(params: SamplingParams) -> None:
    from scipy.stats import chisquare

    logits = np.random.default_rng(1).normal(0, 1.5, 12).astype(np.float32)
    expected = plain(logits, params)
    draws = 6000
    counts = np.bincount([sample(logits, params, step) for step in range(draws)], minlength=12)
    assert set(np.flatnonzero(counts)) <= set(expected)
    assert chisquare([counts[i] for i in expected], [p * draws for p in expected.values()]).pvalue > 1e-3


def test_steps_and_seeds_are_independent() -> None:
    table = np.array([[uniform(seed, step) for step in range(200)] for seed in range(50)])
    assert len(np.unique(table)) == table.size
    assert abs(table.mean() - 0.5) < 0.01
    neighbours = [np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1], np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]]
    assert max(map(abs, neighbours)) < 0.04


def test_the_stream_is_what_it_was() -> None:
    """A change here changes every sampled text that users have recorded."""
    assert [uniform(1, step) for step in range(3)] == [0.3035680343067586, 0.0751511510959112, 0.30931491118583454]
    logits = np.linspace(-1, 2, 50, dtype=np.float32)
    assert [sample(logits, SamplingParams(temperature=1.0, seed=7), step) for step in range(8)] == [47, 48, 34, 38, 40, 11, 41, 6]


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", v) for v in (-0.1, math.nan, math.inf)]
    + [("top_k", -1), ("seed", -1), ("seed", 2**64)]
    + [("top_p", v) for v in (0.0, -1.0, 1.1, math.nan)]
    + [("min_p", v) for v in (-0.1, 1.01, math.nan)],
)
def test_parameters_out_of_range(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name}=.*expected"):
        SamplingParams(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits(bad: float, temperature: float) -> None:
    with pytest.raises(BackendError, match="highest logit"):
        sample(np.array([0, bad, 1], np.float32), SamplingParams(temperature=temperature), 0)


def test_masked_logits() -> None:
    logits = np.array([-np.inf, 1.0, -np.inf], np.float32)
    assert {sample(logits, SamplingParams(temperature=9.0), step) for step in range(50)} == {1}
    with pytest.raises(BackendError, match="highest logit is -inf"):
        sample(np.full(3, -np.inf, np.float32), SamplingParams(), 0)


@pytest.mark.parametrize(("point", "expected"), [(0.0, 1), (1 - 2.0**-53, 2)])
def test_ids_of_weight_zero_are_never_drawn(point: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the random number's range, with ids at both ends whose weight underflows."""
    monkeypatch.setattr("thinlm.runtime_min.sample.uniform", lambda seed, step: point)
    logits = np.array([-2000.0, 0.0, 1.0, -2000.0, -np.inf], np.float32)
    assert sample(logits, SamplingParams(temperature=1.0), 0) == expected


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 0.9, 0.0), (7, 1.0, 0.0), (20, 0.7, 0.05), (0, 1.0, 0.2), (50, 0.99, 0.01)])
def test_the_filters_are_those_of_transformers(top_k: int, top_p: float, min_p: float) -> None:
    import torch
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = np.random.default_rng(2).normal(0, 2, 60).astype(np.float32)
    ids = torch.zeros((1, 0), dtype=torch.long)
    scores = TemperatureLogitsWarper(0.8)(ids, torch.from_numpy(logits)[None])
    scores = TopKLogitsWarper(top_k)(ids, scores) if top_k else scores
    scores = TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
    scores = MinPLogitsWarper(min_p)(ids, scores) if min_p else scores
    kept, weights = distribution(logits, SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p))
    got = np.zeros(60)
    got[kept] = weights / weights.sum()
    np.testing.assert_allclose(got, scores.softmax(-1)[0].numpy(), atol=1e-6)
