"""The search of a compile: what it knows of the weights' importance, and which format every tensor gets.

In: a prepared compile, its texts. Out: a Search. Where every tensor fits as stored nothing is searched: no calibration, no scores. Otherwise
calibrate (or read recorded statistics), score every format with the rounding that ships, and allocate. Finished parts are kept (work.py).
Refused: InputError for statistics of other weights, for a tokenizer that does not fit the model, for text without tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..artifacts.work import Work
from ..passes.allocate import Allocation
from ..passes.calibrate import Calibration, Stats, calibrate, load_stats, save_stats
from ..passes.score import Scoring, measure
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.errors import InputError
from ..schemas.plan import Solve
from ..schemas.scores import ScoreTable
from ..schemas.texts import Document, documents_digest, windows
from .prepare import Choice, Prepared, choose
from .progress import Progress, Tick

WINDOW = 256  # calibration tokens of one window
MIN_WINDOW = 32


@dataclass(frozen=True, slots=True)
class Search:
    """The choice, the scores and statistics behind it (None where nothing had to be searched), the digest of the calibration text that was read."""

    choice: Choice
    table: ScoreTable
    stats: Stats | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What the search works with: text, recorded statistics to read or to write, kept steps, threads."""

    tokenizer: Tokenizer
    documents: Sequence[Document]
    recorded: Path | None
    record: Path | None
    work: Work
    workers: int


def search(prepared: Prepared, how: How, progress: Progress) -> Search:
    """Everything as stored when that fits; otherwise calibrate (or read statistics), score and allocate."""
    if (choice := as_stored(prepared)) is not None:
        return Search(choice, prepared.costs, None, "")
    stats = _statistics(prepared, how, progress)
    if how.record:
        save_stats(stats, how.record)
    with progress.stage("score", 1.0) as tick:
        table = measure(prepared.graph, prepared.source, stats, prepared.costs, Scoring(workers=how.workers, work=how.work, progress=_shares(tick)))
    with progress.stage("allocate"):
        choice = choose(prepared, table)
    return Search(choice, table, stats, "" if how.recorded else documents_digest(how.documents))


def as_stored(prepared: Prepared) -> Choice | None:
    """Every tensor as it is stored in the source, when that fits."""
    exact = prepared.lossless()
    for kv_dtype in prepared.kv_choices():
        memory = prepared.memory(exact, kv_dtype)
        ledger = prepared.ledger(exact, kv_dtype, memory)
        if all(ledger.figure(name) <= limit for name, limit in ledger.budgets.items()):
            solve = Solve(objective=0.0, bound=0.0, gap=0.0, shadow_prices={}, constraints=())
            return Choice(Allocation(exact, solve), kv_dtype, memory)
    return None


def _statistics(prepared: Prepared, how: How, progress: Progress) -> Stats:
    """Calibrate, or read recorded statistics of the same weights (InputError for those of others)."""
    digest = prepared.source.digest()
    if how.recorded:
        stats = load_stats(how.recorded)
        if stats.header.source != digest:
            raise InputError(f"{how.recorded}: these statistics are of another model ({stats.header.source[:12]}..., not {digest[:12]}...)")
        return stats
    recipe, info = prepared.recipe, prepared.info
    ids = calibration_windows(how.tokenizer, how.documents, recipe.calibration_tokens, info.context_length, info.vocab_size)
    options = Calibration(source=digest, seed=recipe.seed, workers=how.workers)
    with progress.stage("calibrate", 1.0) as tick:
        return calibrate(prepared.graph, prepared.source, ids, options, _shares(tick), how.work)


def calibration_windows(tokenizer: Tokenizer, documents: Sequence[Document], tokens: int, context: int, vocab: int) -> list[np.ndarray]:
    """Windows from documents taken evenly over the whole set until `tokens` are reached: int64[<= WINDOW] each."""
    length = min(WINDOW, context)
    encoded = (tokenizer.encode(d.text) for d in documents)
    found = [np.asarray(ids, np.int64) for _, ids in windows(encoded, length, min(MIN_WINDOW, length))]
    if (highest := max((int(ids.max()) for ids in found), default=0)) >= vocab:
        raise InputError(f"tokenizer.json gives id {highest}, the model has only {vocab} embeddings: these are files of two models")
    wanted = max(1, min(len(found), -(-tokens // length)))
    return [found[i * len(found) // wanted] for i in range(wanted)] if found else []


def _shares(tick: Tick) -> Callable[[float], None]:
    """A callback that takes the share done so far and advances a stage of total 1."""
    done = 0.0

    def report(share: float) -> None:
        nonlocal done
        tick(share - done)
        done = share

    return report
