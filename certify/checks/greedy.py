"""FIDELITY along the source's own text: at how many points of its greedy continuations would the artifact choose the same token?

Teacher-forced: the source continues each prompt, both models read the result, and their best tokens are compared where the source chose one.
1. Distinct contexts: a position counts only where its last TAIL ids occur for the first time, so that a loop counts once.
2. Ties don't count: positions where the source's two best logits lie less than TIE apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...runtime_min.model import Model
from ...schemas.certificate import Check
from ..metrics import compare
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


class GreedyTally:
    """Counts agreement prompt by prompt."""

    def __init__(self, tokens: int, vocabulary: int) -> None:
        self._tokens, self._vocabulary = tokens, vocabulary
        self._seen: set[tuple[int, ...]] = set()
        self._prompts = self._hits = self._counted = self._ties = self._repeats = 0

    def compare(self, model: Model, source: Model, prompt: Text) -> Comparison | None:
        """Continue one prompt with the source, as far as the context has room, and compare along it; None for an empty prompt."""
        room = min(source.options.context, model.options.context)
        start = prompt.ids.tolist()[-(room - 1) :] if len(prompt.ids) >= room else prompt.ids.tolist()
        if not start:
            return None
        continuation = source.generate(start, max_new_tokens=min(self._tokens, room - len(start)))
        ids = [*start, *continuation[:-1]]  # the last new token needs no logits after it
        got = compare(source.forward(ids), model.forward(ids), self._vocabulary, len(start) - 1)
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
