"""Intervals against scipy, against their definition, and their coverage on data whose mean is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from thinlm.certify.stats import UNKNOWN, bootstrap_t, mean_interval, student, t_probability, t_quantile, wilson


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 31, 32, 63, 200, 1001])
def test_student_t_equals_scipy(degrees: int) -> None:
    from scipy.stats import t

    for point in (0.0, 0.1, 1.0, 2.5, 30.0):
        assert t_probability(point, degrees) == pytest.approx(t.cdf(point, degrees), abs=1e-12)
    for probability in (0.5, 0.9, 0.95, 0.975, 0.999):
        assert t_quantile(probability, degrees) == pytest.approx(t.ppf(probability, degrees), rel=1e-9, abs=1e-9)


def test_student_interval_equals_scipy() -> None:
    from scipy.stats import sem, t

    figures = np.random.default_rng(0).normal(3, 2, 40)
    assert student(figures) == pytest.approx(t.interval(0.95, 39, figures.mean(), sem(figures)))


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (10, 10), (7, 10), (450, 500)])
def test_wilson_equals_scipy(hits: int, trials: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(hits, trials).proportion_ci(0.95, "wilson")
    assert wilson(hits, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_no_trials_say_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("figures", [np.empty(0), np.array([0.9])])
def test_fewer_than_two_documents_bound_nothing(figures: np.ndarray) -> None:
    assert mean_interval(figures, 0) == UNKNOWN == (-math.inf, math.inf)


def test_equal_documents_have_no_spread() -> None:
    assert mean_interval(np.full(8, 0.25), 0) == (0.25, 0.25)


def test_bootstrap_is_seeded_and_skewed() -> None:
    figures = 1 - np.random.default_rng(1).exponential(0.01, 40)  # cosines: a long tail below
    assert bootstrap_t(figures, 7) == bootstrap_t(figures, 7) != bootstrap_t(figures, 8)
    low, high = bootstrap_t(figures, 7)
    assert figures.mean() - low > high - figures.mean()
    assert mean_interval(figures, 7)[0] <= min(low, student(figures)[0])


def test_coverage_on_skewed_documents() -> None:
    """The true mean lies inside at least 92 of 100 intervals of 32 documents each."""
    rng = np.random.default_rng(2)
    inside = 0
    for seed in range(100):
        low, high = mean_interval(1 - rng.gamma(2, 0.002, 32), seed)
        inside += low <= 1 - 2 * 0.002 <= high
    assert inside >= 92
