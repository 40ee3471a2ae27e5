"""Counting agreement: ties, repeated contexts, prompts that are too long, on models whose logits are tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from thinlm.certify.checks import greedy
from thinlm.certify.checks.greedy import TAIL, TIE, GreedyTally
from thinlm.certify.texts import Text

V = 40


class Table:
    """The next id is a function of the last one; `margin` is what it leads by."""

    def __init__(self, step: int = 1, wrong: set[int] = frozenset(), margin: float = 1.0, context: int = 64) -> None:  # type: ignore[assignment]
        self.options = Options(context)
        self.step, self.wrong, self.margin = step, wrong, margin

    def forward(self, ids: Any) -> np.ndarray:
        assert len(ids) <= self.options.context
        logits = np.zeros((len(ids), V), np.float32)
        for row, i in zip(logits, ids, strict=True):
            row[(i + self.step) % V if i not in self.wrong else 0] = self.margin
        return logits

    def forward_pieces(self, ids: Any) -> Iterator[np.ndarray]:
        yield self.forward(ids)

    def running(self, options: Any) -> Table:
        return Table(self.step, self.wrong, self.margin, options.context)


@dataclass
class Options:
    context: int


def continue_tables(source: Any, texts: Sequence[list[int]], most: int) -> list[list[int]]:
    """Greedy, up to `most` or the context's end."""
    found = []
    for text in texts:
        out: list[int] = []
        while len(out) < min(most, source.options.context - len(text) + 1):
            out.append(int(source.forward([*text, *out][-1:])[0].argmax()))
        found.append(out)
    return found


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "continue_texts", continue_tables)


def tally(model: Table, source: Table, *prompts: list[int], tokens: int = 8) -> Any:
    counter = GreedyTally(tokens, V)
    texts = [Text(str(n), "d", "", np.array(prompt)) for n, prompt in enumerate(prompts)]
    for found in counter.compare(model, source, texts):  # type: ignore[arg-type]
        counter.count(found)
    return counter.checks()[0]


def test_equal_models_agree() -> None:
    check = tally(Table(), Table(), [3], [20])
    assert (check.value, check.n) == (1.0, 16)
    assert check.name == f"greedy[prompts=2,tokens=8,tie={TIE},tail={TAIL}]"


def test_the_source_chooses_the_way() -> None:
    check = tally(Table(wrong={5, 7}), Table(), [3])  # contexts end in 3, 4, ... 10
    assert (check.value, check.n) == (6 / 8, 8)
    assert check.lower < 6 / 8 < check.upper


@pytest.mark.parametrize(("margin", "n"), [(TIE * 0.9, 0), (TIE * 1.1, 8)])
def test_ties_do_not_count(margin: float, n: int) -> None:
    check = tally(Table(), Table(margin=margin), [3])
    assert (check.n, check.value) == (n, 1.0 if n else None)


def test_a_loop_counts_once() -> None:
    check = tally(Table(step=0), Table(step=0), [9], tokens=60)
    assert check.n == TAIL, "the last TAIL ids are 9 from then on, in contexts of 1, 2, ... TAIL ids"
    assert f"{60 - TAIL} repeated contexts" in check.detail


def test_equal_prompts_count_once() -> None:
    assert tally(Table(), Table(), [3, 4], [3, 4]).n == 8


def test_long_and_empty_prompts() -> None:
    check = tally(Table(context=10), Table(context=12), list(range(30)), [])
    assert check.n == 1, "nine ids of the prompt's end leave room for one more"
    assert "prompts=1" in check.name
