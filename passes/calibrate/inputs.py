"""Moments of every linear's input, streamed node by node.

Each node runs on all windows before the next one: its weights are loaded, used and dropped; a value lives until its last reader has run.
Nodes that no linear's input depends on (the head, what follows it) are not run. Second moments are float32 products of one window,
added up in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from ...runtime_min.parallel import Map, one_thread_each
from ...runtime_min.weights import Weights
from ...schemas.graph import Graph, Node
from .options import Calibration, Progress
from .stats import InputMoments
from .tasks import constants, inputs_of, run_node, tensor

Values = dict[str, torch.Tensor]


def measure_inputs(
    graph: Graph, weights: Weights, windows: Sequence[np.ndarray], options: Calibration, progress: Progress
) -> dict[str, tuple[str, InputMoments]]:
    """Linear weight -> (key of its input: the first weight that reads it, moments)."""
    params, shared = graph.param_table(), constants(graph)
    nodes = _needed(graph)
    last_use = {name: at for at, (node, _) in enumerate(nodes) for name in node.inputs}
    live: list[Values] = [inputs_of(w) for w in windows]
    by_value: dict[str, tuple[str, InputMoments]] = {}
    found: dict[str, tuple[str, InputMoments]] = {}
    with torch.no_grad(), one_thread_each(options.workers) as each:
        for at, (node, run) in enumerate(nodes):
            if node.op == "linear" and node.inputs[1] in params:
                x, w = node.inputs[:2]
                if x not in by_value:
                    by_value[x] = (w, _moments([v[x] for v in live], options.max_gram, each))
                found.setdefault(w, by_value[x])
            if run:
                loaded = {i: tensor(weights.f32(i)) for i in node.inputs if i in params}
                list(each(partial(_step, node, shared | loaded), live))
            for name in node.inputs:
                if last_use[name] == at and name not in params and name not in shared:
                    for values in live:
                        values.pop(name, None)
            progress((at + 1) / len(nodes))
    return found


def _needed(graph: Graph) -> list[tuple[Node, bool]]:
    """(node, does it have to run): linears, and everything that some linear's input depends on."""
    needed: set[str] = set()
    out = []
    for node in reversed(graph.nodes):
        run = node.output in needed
        if run:
            needed.update(node.inputs)
        elif node.op == "linear":
            needed.add(node.inputs[0])
        if run or node.op == "linear":
            out.append((node, run))
    return out[::-1]


def _step(node: Node, shared: Values, values: Values) -> None:
    with torch.no_grad():  # grad mode belongs to a thread
        values[node.output] = run_node(node, shared | values)


def _moments(xs: Sequence[torch.Tensor], max_gram: int, each: Map) -> InputMoments:
    """Moments over all windows' x [1, T, c]."""
    cols, count = xs[0].shape[-1], sum(x.shape[1] for x in xs)
    full = cols <= max_gram
    total, second = np.zeros(cols), np.zeros((cols, cols) if full else cols)
    for one_sum, one_second in each(partial(_window_moments, full), xs):
        total += one_sum
        second += one_second
    second /= count
    return InputMoments(total / count, second.astype(np.float32) if full else second)


def _window_moments(full: bool, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        x = x[0]
        second = x.T @ x if full else x.double().square().sum(0)
        return x.double().sum(0).numpy(), second.numpy()
