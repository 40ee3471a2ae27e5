"""FIDELITY along the source's own text: at how many points of its greedy continuations would the artifact choose the same token?

Teacher-forced: the source continues each prompt, both models read the result, and their best tokens are compared where the source chose one.
1. Distinct contexts: a position counts only where its last TAIL ids occur for the first time, so that a loop counts once.
2. Ties don't count: positions where the source's two best logits lie less than TIE apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...runtime_min.lockstep import continue_texts
from ...runtime_min.model import Model
from ...schemas.certificate import Check
from ..metrics import compare_pieces
from ..stats import wilson
from ..texts import Text

METRICS = ("greedy",)
TIE = 0.05  # design.md section 3
TAIL = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt with its continuation: ids, the number of prompt ids, and per new token whether both chose it and the source's margin."""

    ids: Sequence[int]
    first: int
    top1: np.ndarray
    margin: np.ndarray

    def to_json(self) -> list[object]:
        """As JSON values; exact."""
        return [list(map(int, self.ids)), self.first, self.top1.tolist(), self.margin.tolist()]

    @classmethod
    def from_json(cls, value: list[Any]) -> Comparison:
        """Back from `to_json`."""
        ids, first, top1, margin = value
        return cls(ids, first, np.array(top1, bool), np.array(margin, np.float64))


class GreedyTally:
    """Counts agreement prompt by prompt."""

    def __init__(self, tokens: int, vocabulary: int) -> None:
        self._tokens, self._vocabulary = tokens, vocabulary
        self._seen: set[tuple[int, ...]] = set()
        self._prompts = self._hits = self._counted = self._ties = self._repeats = 0

    def compare(self, model: Model, source: Model, prompts: Sequence[Text]) -> list[Comparison | None]:
        """Continue some prompts with the source, in step, as far as the context has room, and compare along them; None for an empty prompt."""
        room = min(source.options.context, model.options.context)
        starts = {n: prompt.ids.tolist()[-(room - 1) :] for n, prompt in enumerate(prompts) if len(prompt.ids)}
        own = source.running(replace(source.options, context=max(1, room - 1)))
        new = dict(zip(starts, continue_texts(own, tuple(starts.values()), self._tokens), strict=True))
        return [self._compared(model, source, starts[n], new[n]) if n in starts else None for n in range(len(prompts))]

    def _compared(self, model: Model, source: Model, start: list[int], continuation: list[int]) -> Comparison:
        ids = [*start, *continuation[:-1]]  # the last new token needs no logits after it
        got = compare_pieces(source.forward_pieces(ids), model.forward_pieces(ids), self._vocabulary, len(start) - 1)
        return Comparison(ids, len(start), got.top1, got.margin)

    def count(self, found: Comparison | None) -> None:
        """Add one prompt's points, in the order of the prompts: a context counts where it comes first."""
        if found is None:
            return
        self._prompts += 1
        for i, (hit, gap) in enumerate(zip(found.top1, found.margin, strict=True)):
            context = tuple(found.ids[max(0, found.first + i - TAIL) : found.first + i])
            if context in self._seen:
                self._repeats += 1
            elif gap < TIE:
                self._ties += 1
            else:
                self._counted += 1
                self._hits += int(hit)
            self._seen.add(context)

    def checks(self) -> tuple[Check, ...]:
        """The share of agreement."""
        name = f"greedy[prompts={self._prompts},tokens={self._tokens},tie={TIE},tail={TAIL}]"
        if self._counted == 0:
            return (Check(metric="greedy", name=name, value=None, n=0, detail="no prompt gave a context that counts"),)
        low, high = wilson(self._hits, self._counted)
        detail = f"{self._ties} ties and {self._repeats} repeated contexts left out"
        value = self._hits / self._counted
        return (Check(metric="greedy", name=name, value=value, n=self._counted, lower=low, upper=high, detail=detail),)
