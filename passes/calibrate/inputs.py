"""Moments of every linear's input, and the values at every segment's boundary, streamed segment by segment.

Within a segment each node runs on BATCH windows before the next one: its weights are read, used and dropped. What a later segment reads is kept
with the segment's moments as one step (artifacts/work.py), from which a killed job goes on. Nodes that no linear's input depends on (the
head, what follows it) are not run. Second moments are float32 products of one window, added up in float64, in the order of the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from ...artifacts.work import Arrays, Steps
from ...runtime_min.parallel import Map, one_thread_each
from ...schemas.graph import Node
from .options import BATCH, GRAM_ROWS, Calibration, Progress
from .segments import Segment
from .stats import InputMoments
from .tasks import Runner, Values, constants, inputs_of, tensor

Boundary = dict[str, np.ndarray]  # value -> float32 [sum of T, ...], windows one after another


@dataclass(slots=True)
class Inputs:
    """`moments` by key (the first weight that reads the input), `keys` weight -> key, and every value that crosses a boundary."""

    moments: dict[str, InputMoments] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    boundary: Boundary = field(default_factory=dict)

    def take(self, step: Arrays) -> None:
        """Add one segment's results."""
        for name, array in step.items():
            kind, _, rest = name.partition("/")
            if kind == "mean":
                self.moments[rest] = InputMoments(array, step[f"second/{rest}"])
            elif kind == "value":
                self.boundary[rest] = array


def measure_inputs(
    runner: Runner, parts: Sequence[Segment], windows: Sequence[np.ndarray], options: Calibration, kept: tuple[Steps, Progress]
) -> Inputs:
    """All linears' input moments; `kept` holds finished steps, and is told the share of the work done."""
    steps, progress = kept
    found, params = Inputs(), runner.shapes
    nodes = [n for part in parts for n in part.nodes]
    needed = _needed(nodes)
    by_value: dict[str, str] = {}
    for node in nodes:
        if node.op == "linear" and node.inputs[1] in params:
            found.keys[node.inputs[1]] = by_value.setdefault(node.inputs[0], node.inputs[1])
    with torch.no_grad(), one_thread_each(options.workers) as each:
        for at, part in enumerate(parts):
            name = f"forward-{at:04d}"
            step = steps.get(name)
            if step is None:
                work = _Part(runner, part, by_value, needed, options.max_gram)
                step = steps.put(name, work.run(windows, found.boundary, each))
            found.take(step)
            progress((at + 1) / len(parts))
    return found


def _needed(nodes: Sequence[Node]) -> set[str]:
    """Outputs of the nodes that have to run: those that some linear's input depends on."""
    needed: set[str] = set()
    run: set[str] = set()
    for node in reversed(nodes):
        if node.output in needed:
            needed.update(node.inputs)
            run.add(node.output)
        elif node.op == "linear":
            needed.add(node.inputs[0])
    return run


@dataclass(slots=True)
class _Part:
    """One segment's pass over all windows."""

    runner: Runner
    part: Segment
    keys: dict[str, str]  # value that a linear reads -> key of its moments
    needed: set[str]
    max_gram: int
    grams: dict[str, _Gram] = field(default_factory=dict)

    def run(self, windows: Sequence[np.ndarray], boundary: Boundary, each: Map) -> Arrays:
        """Moments and made values of the segment, as arrays to keep."""
        made: dict[str, list[np.ndarray]] = {v: [] for v in self.part.makes if v in self.needed}
        ends = np.cumsum([0, *map(len, windows)])
        for start in range(0, len(windows), BATCH):
            stop = min(start + BATCH, len(windows))
            live = [
                inputs_of(windows[w]) | {v: tensor(boundary[v][ends[w] : ends[w + 1]])[None] for v in self.part.reads if v in boundary}
                for w in range(start, stop)
            ]
            self._nodes(live, each)
            for v, pieces in made.items():
                pieces.extend(values[v][0].numpy() for values in live)
        out = {f"value/{v}": np.concatenate(pieces) for v, pieces in made.items()}
        for key, gram in self.grams.items():
            out |= {f"mean/{key}": gram.mean(), f"second/{key}": gram.second()}
        return out

    def _nodes(self, live: list[Values], each: Map) -> None:
        shared = constants(self.runner.graph)
        last = {name: at for at, node in enumerate(self.part.nodes) for name in node.inputs}
        measured: set[str] = set()
        for at, node in enumerate(self.part.nodes):
            value = node.inputs[0]
            if node.op == "linear" and node.inputs[1] in self.runner.shapes and value not in measured and self._starts(value, node.inputs[1]):
                measured.add(value)
                self._gram(value, live).add([values[value][0] for values in live], each)
            if node.output in self.needed:
                loaded = shared | self.runner.load((node,))
                list(each(partial(self._step, node, loaded), live))
            for name in node.inputs:
                if last[name] == at and name not in self.part.makes:
                    for values in live:
                        values.pop(name, None)

    def _starts(self, value: str, weight: str) -> bool:
        """Is that weight the first to read the value? Later segments that read it, too, find its moments there."""
        return self.keys[value] == weight

    def _gram(self, value: str, live: list[Values]) -> _Gram:
        key = self.keys[value]
        if key not in self.grams:
            cols = live[0][value].shape[-1]
            self.grams[key] = _Gram(cols, full=cols <= self.max_gram)
        return self.grams[key]

    def _step(self, node: Node, loaded: Values, values: Values) -> None:
        with torch.no_grad():  # grad mode belongs to a thread
            values[node.output] = self.runner.run(node, loaded | values)


class _Gram:
    """Sums of x and x x' over tokens: of each window in float32, of all windows in float64."""

    def __init__(self, cols: int, full: bool) -> None:
        self._count, self._sum, self._full = 0, np.zeros(cols), full
        self._total = np.zeros((cols, cols) if full else cols)

    def add(self, xs: Sequence[torch.Tensor], each: Map) -> None:
        """Windows x [T, cols], in order; tasks own disjoint rows of the sum."""
        for x in xs:
            self._count += len(x)
            self._sum += x.double().sum(0).numpy()
        if self._full:
            list(each(partial(self._rows, xs), range(0, len(self._sum), GRAM_ROWS)))
            return
        for x in xs:
            self._total += x.double().square().sum(0).numpy()

    def _rows(self, xs: Sequence[torch.Tensor], start: int) -> None:
        """Rows from `start`, columns from there on: the rest follows by symmetry."""
        with torch.no_grad():
            for x in xs:
                self._total[start : start + GRAM_ROWS, start:] += (x[:, start : start + GRAM_ROWS].T @ x[:, start:]).numpy()

    def mean(self) -> np.ndarray:
        """f64[cols]."""
        return self._sum / self._count

    def second(self) -> np.ndarray:
        """Mean of x x', f32[cols, cols], or its diagonal, f64[cols]; ends the counting."""
        self._total /= self._count
        if not self._full:
            return self._total
        out = self._total.astype(np.float32)
        for start in range(0, len(out), GRAM_ROWS):
            stop = min(start + GRAM_ROWS, len(out))
            out[stop:, start:stop] = out[start:stop, stop:].T
        return out
