"""Choosing the next token from logits.

In: float32 logits [V] of one position, `SamplingParams`, the number of the step. Out: one id.
1. temperature 0: the highest logit; ties go to the lowest id, here and wherever this file orders ids.
2. otherwise the logits are divided by the temperature and ids are kept from the most probable down: the first `top_k`; of those, renormalised,
   the fewest whose probability reaches `top_p`; of those, the ones with at least `min_p` times the highest probability. At least one
   id always stays. The draw is by inverse transform over the kept ids.
The random number of a step depends on (seed, step) alone: Philox with that key, whose stream numpy guarantees, so a run can resume
anywhere and gives the same ids on any machine that computes the same logits, up to the last bit of the platform's float64 `exp`.
Ids at and above `vocab_size` (rows that only pad the head) are never chosen.
Refused: parameters out of range (UsageError); NaN or +inf among the logits, or nothing left but -inf (BackendError).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..schemas.errors import BackendError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. temperature 0 = greedy; top_k 0, top_p 1 and min_p 0 switch that filter off; seed: 0 <= seed < 2^64."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError naming the value and its range."""
        _require(0.0 <= self.temperature < math.inf, "temperature", self.temperature, "a finite number >= 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "an integer >= 0 (0 = off)")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number > 0 and <= 1 (1 = off)")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "a number >= 0 and <= 1 (0 = off)")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "an integer >= 0 and < 2^64")

    @property
    def greedy(self) -> bool:
        """Whether the draw is the argmax, so that `seed` and the filters play no part."""
        return self.temperature == 0.0


def sample(logits_V: np.ndarray, params: SamplingParams, step: int, *, vocab_size: int | None = None) -> int:
    """The id of the next token. `step` counts the sequence's drawn tokens from 0; ids >= `vocab_size` are left out."""
    usable = _usable(logits_V, vocab_size)
    if params.greedy:
        return int(np.argmax(usable))
    ids, weights = distribution(usable, params)
    edges = np.cumsum(weights)
    # u <= 1 - 2^-53, so u * total stays below the total after rounding, and the edge found rises above its left neighbour: an id of
    # weight 0 is never drawn.
    point = uniform(params.seed, step) * edges[-1]
    return int(ids[np.searchsorted(edges, point, side="right")])


def distribution(logits_V: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The ids that may be drawn and their weights relative to the top one: (int64[n], float64[n]), n >= 1. temperature must be > 0.

    They come most probable first, or in id order when no filter needs an order (sorting 150,000 ids takes longer than some decode steps).
    """
    ids = _first(logits_V, params.top_k)
    kept = logits_V[ids].astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the top to -inf, which is what it asks for
        weights = np.exp((kept - kept.max()) / params.temperature)
    if params.top_p == 1.0 and params.min_p == 0.0:
        return ids, weights
    total = float(np.cumsum(weights)[-1])
    # Ids lighter than this sum to at most half of what top-p leaves out, so they can't be kept: not worth sorting.
    light = (1.0 - params.top_p) * total / (2 * len(ids))
    short = np.flatnonzero(weights >= max(params.min_p, light))
    order = short[np.argsort(-kept[short], kind="stable")]
    ids, weights = ids[order], weights[order]
    if params.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p * total, side="left")) + 1
        ids, weights = ids[:keep], weights[:keep]
    return ids, weights


def uniform(seed: int, step: int) -> float:
    """The random number of one step, in [0, 1): the top 53 bits of the first output of Philox keyed by (seed, step)."""
    philox = np.random.Philox(key=np.array([seed, step], np.uint64))
    return (int(philox.random_raw()) >> 11) * 2.0**-53


def _first(logits_V: np.ndarray, top_k: int) -> np.ndarray:
    """The `top_k` ids with the highest logits (0: all), rising; of those that tie for the last place the lowest."""
    if not 0 < top_k < len(logits_V):
        return np.arange(len(logits_V))
    least = np.partition(logits_V, len(logits_V) - top_k)[len(logits_V) - top_k]
    above, ties = np.flatnonzero(logits_V > least), np.flatnonzero(logits_V == least)
    return np.sort(np.concatenate([above, ties[: top_k - len(above)]]))


def _usable(logits_V: np.ndarray, vocab_size: int | None) -> np.ndarray:
    """The logits that may win; BackendError when they say nothing."""
    usable = logits_V if vocab_size is None else logits_V[:vocab_size]
    assert usable.ndim == 1 and usable.size > 0, f"logits of one position expected, got shape {logits_V.shape}"
    highest = usable.max()  # NaN propagates
    if not np.isfinite(highest):
        raise BackendError(f"the model's highest logit is {highest}: its weights or the backend are broken; run `thinc verify` on the artifact")
    return usable


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"{name}={value}: expected {expected}")
