"""Confidence bounds over documents, and for shares; numpy only, so that certifying needs no scipy.

In: one figure per document (float64[n]), or counts. Out: two-sided intervals at `CONFIDENCE`.
1. `student`: mean +- t s / sqrt(n).
2. `bootstrap_t`: the same with the quantiles of t taken from resampled documents (seeded): right for skewed figures such as cosines.
3. `mean_interval`: the wider of the two on either side.
4. `wilson`: a share of n trials.
Fewer than two documents bound nothing: (-inf, inf).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 1000

Interval = tuple[float, float]
UNKNOWN: Interval = (-math.inf, math.inf)


def mean_interval(figures: np.ndarray, seed: int) -> Interval:
    """The wider of `student` and `bootstrap_t` on either side."""
    a, b = student(figures), bootstrap_t(figures, seed)
    return min(a[0], b[0]), max(a[1], b[1])


def student(figures: np.ndarray) -> Interval:
    """Student's interval of the mean."""
    n = len(figures)
    if n < 2:
        return UNKNOWN
    mean = float(figures.mean())
    half = t_quantile(0.5 + CONFIDENCE / 2, n - 1) * float(figures.std(ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def bootstrap_t(figures: np.ndarray, seed: int) -> Interval:
    """Studentised bootstrap interval of the mean; resamples without spread say nothing and are left out."""
    n = len(figures)
    if n < 2:
        return UNKNOWN
    mean, error = float(figures.mean()), float(figures.std(ddof=1)) / math.sqrt(n)
    drawn = figures[np.random.Generator(np.random.PCG64(seed)).integers(0, n, (RESAMPLES, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    usable = errors > 0
    if error == 0 or not usable.any():
        return mean, mean
    t = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    low, high = np.quantile(t, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return mean - float(high) * error, mean - float(low) * error


def wilson(hits: int, trials: int) -> Interval:
    """Wilson's interval of a share; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share, z2 = hits / trials, z * z / trials
    centre, half = share + z2 / 2, z * math.sqrt(share * (1 - share) / trials + z2 / trials / 4)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t for a whole number of degrees of freedom, 0.5 <= probability < 1; by bisection on the distribution."""
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return high


def t_probability(t: float, degrees: int) -> float:
    """P(T <= t): the finite trigonometric series for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine2, odd = math.cos(angle) ** 2, degrees % 2
    term = total = (math.cos(angle) if degrees > 1 else 0.0) if odd else 1.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    inside = (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
    return 0.5 + inside / 2
