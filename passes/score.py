"""What each format of each choice group costs in KL: the table that the allocator reads.

For a linear with weights W, input x and output gradient g, rounding changes the output by dW x, and the next-token distribution by
  KL = 1/2 sum_o E[g_o^2] (dW E[x x'] dW')_oo     nats per token, to second order (Kronecker-factored, outputs taken as uncorrelated)
and for an embedding table whose row r is read with frequency f_r, 1/2 sum_r f_r sum_j E[g_j^2] dW_rj^2. A tied table counts both times.
dW is that of the rounding that ships, cut as the page layout cuts it, for tensors up to SAMPLE weights; of larger ones evenly spaced rows,
which stand for all rows in proportion to how much those matter. Each group's scores are one step that `work` keeps.
Scores are rounded to 6 digits, so that the last bits of a matrix product can't change an allocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from ..artifacts.formats import FORMATS, Format
from ..artifacts.layouts import matrix_shape
from ..artifacts.work import NOTHING_KEPT, Work
from ..runtime_min.parallel import threads
from ..runtime_min.weights import Weights
from ..schemas.errors import InputError
from ..schemas.graph import Graph, Param
from ..schemas.scores import GroupScores, ScoreTable
from ..schemas.text import to_json
from .calibrate.stats import InputMoments, Stats, TableMoments
from .costs import pages_of
from .round import encode_slab

SAMPLE = 1 << 20  # weights of one tensor that are rounded per format
UNSEEN = 0.5  # count given to every row of a table, so that rows which calibration never read count
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What calibration says about one param: `head` when linears read it, `table` when an embedding does."""

    head: tuple[np.ndarray, InputMoments] | None  # (mean squared output gradient f64[rows], input moments)
    table: TableMoments | None

    def frequencies(self) -> np.ndarray:
        """How often each row of the table is read, f64[rows], sums to 1."""
        assert self.table is not None
        counts = self.table.counts + UNSEEN
        return counts / counts.sum()

    def column_weights(self) -> np.ndarray:
        """h f64[cols]: how much a squared error in each column costs, over rows as they are on average."""
        h = 0.0
        if self.head is not None:
            h = h + self.head[0].mean() * self.head[1].diagonal
        if self.table is not None:
            h = h + self.frequencies().mean() * self.table.gradient
        return np.asarray(h)

    def kl(self, error: np.ndarray, rows: np.ndarray) -> float:
        """Predicted KL when the weight error is f32[len(rows), cols] in those rows, and alike in the others."""
        total = 0.0
        if self.head is not None:
            gradient, moments = self.head
            total += _extrapolated(gradient, rows, _quadratic(error, moments.second))
        if self.table is not None:
            total += _extrapolated(self.frequencies(), rows, np.square(error) @ self.table.gradient)
        return total / 2


def _extrapolated(matters: np.ndarray, rows: np.ndarray, figures: np.ndarray) -> float:
    """Sum over all rows of matters x figure, when figures f[len(rows)] are known of some."""
    some = matters[rows]
    known = float(some.sum())
    return float(some @ figures) * (float(matters.sum()) / known) if known > 0 else 0.0


def _quadratic(error: np.ndarray, second: np.ndarray) -> np.ndarray:
    """e A e' for each row e; `second` is A or its diagonal."""
    if second.ndim == 1:
        return np.square(error) @ second
    return np.einsum("ij,ij->i", error @ second, error)


def sensitivities(graph: Graph, stats: Stats) -> dict[str, Sensitivity]:
    """Sensitivity of every param that a linear or an embedding reads."""
    params = graph.param_table()
    return {
        name: Sensitivity((stats.outputs[name], stats.input_of(name)) if name in stats.outputs else None, stats.tables.get(name))
        for name in params
        if name in stats.outputs or name in stats.tables
    }


def column_weights(graph: Graph, stats: Stats) -> dict[str, np.ndarray]:
    """h f64[cols] of every param that calibration knows: what rounding weighs errors with."""
    return {name: s.column_weights() for name, s in sensitivities(graph, stats).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How to score: the speed, where finished groups are kept, and who is told the share of the work done. Nothing here changes a score."""

    workers: int = 2
    work: Work = NOTHING_KEPT
    progress: Callable[[float], None] = lambda share: None


DEFAULT = Scoring()


def measure(graph: Graph, weights: Weights, stats: Stats, costs: ScoreTable, how: Scoring = DEFAULT) -> ScoreTable:
    """`costs` with every predicted KL filled in; params without a choice stay at 0."""
    known, params, origin = sensitivities(graph, stats), graph.param_table(), stats.digest()
    steps = how.work.stage("score", origin, to_json(graph))
    todo = {at: group for at, group in enumerate(costs.groups) if len(group.options) > 1}

    def scored(at: int) -> list[float]:
        group, name = todo[at], f"{at:05d}"
        found = steps.get_json(name)
        if found is None or [format for format, _ in found] != [o.format for o in group.options]:
            each = [_score(weights, params[n], known[n], _formats(group)) for n in group.params]
            found = [[o.format, _short(sum(scores[o.format] for scores in each))] for o in group.options]
            steps.put_json(name, found)
        return [kl for _, kl in found]

    groups, done, total = list(costs.groups), 0, sum(params[n].size for group in todo.values() for n in group.params)
    with threads(how.workers) as pool:
        for at, found in zip(todo, pool.map(scored, todo), strict=True):
            options = (msgspec.structs.replace(o, predicted_kl=kl) for o, kl in zip(todo[at].options, found, strict=True))
            groups[at] = msgspec.structs.replace(todo[at], options=tuple(options))
            done += sum(params[n].size for n in todo[at].params)
            how.progress(done / total)
    return msgspec.structs.replace(costs, scored=True, stats=origin, groups=tuple(groups))


def _formats(group: GroupScores) -> tuple[Format, ...]:
    return tuple(FORMATS[o.format] for o in group.options)


def _short(x: float) -> float:
    return float(f"{x:.{DIGITS - 1}e}")


def _score(weights: Weights, param: Param, known: Sensitivity, formats: tuple[Format, ...]) -> dict[str, float]:
    """Format name -> predicted KL of one param."""
    step = -(-param.size // SAMPLE)
    w, h = weights.block(param.name, slice(None, None, step)), known.column_weights()
    rows = np.arange(0, matrix_shape(param.shape)[0], step)
    with np.errstate(over="ignore", invalid="ignore"):  # said once, by name, below
        found = {fmt.name: 0.0 if fmt.is_lossless_for(param.dtype) else _error_kl(param, known, fmt, (w, h, rows)) for fmt in formats}
    if not all(map(math.isfinite, found.values())):
        raise InputError(f"{param.name}: weights up to {np.abs(w).max():.3g} are too large to compute with in float32; is the checkpoint damaged?")
    return found


def _error_kl(param: Param, known: Sensitivity, fmt: Format, sample: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    w, h, rows = sample
    error = np.empty_like(w)
    for start, stop in _column_cuts(param, fmt):
        parts = encode_slab(fmt, w[:, start:stop], h[start:stop])
        error[:, start:stop] = fmt.dequantize(parts, stop - start) - w[:, start:stop]
    return known.kl(error, rows)


def _column_cuts(param: Param, fmt: Format) -> Iterator[tuple[int, int]]:
    """The column ranges that the layout encodes on their own; rows are always independent."""
    pages = pages_of(param, fmt.name)
    yield from sorted({(r.col0, r.col1) for r in map(pages.slots[0].region, range(pages.count))})
