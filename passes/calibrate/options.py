"""How to calibrate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[float], None]  # takes the share of the work done, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """`source` names the weights' content in the statistics; `workers` changes the speed only."""

    source: str
    seed: int = 0
    workers: int = 2
    max_gram: int = 4096  # wider inputs keep only the diagonal of their second moments
    gradient_share: float = 0.5  # of the windows, evenly spaced: a gradient costs three times a forward pass

    def numbers(self) -> list[object]:
        """What the statistics follow from, beside graph, weights and windows."""
        return [self.source, self.seed, self.max_gram, self.gradient_share]
