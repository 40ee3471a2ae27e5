"""How to calibrate; and the sizes that bound its memory, fixed so that memory never decides a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BATCH = 8  # windows whose values are in memory at a time, forward
GRAM_ROWS = 512  # rows of a second moment that one task adds up
PIECE = 64  # positions of the head that are in memory at a time, backward
WIDE = 1 << 26  # weights: larger matrices are read a run of rows at a time
ROWS = 1 << 24  # weights of such a run

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
