"""How much every linear's output and every embedding column matters: the mean squared gradient of a token's loss.

Labels are sampled from the model's own next-token distribution (seeded per window), so that the mean squared gradient is the diagonal of the
Fisher information, and half of it times a squared error is the KL divergence that the error causes, to second order.
One backward pass per window through the torch op table; the whole model in float32 and one window's activations per worker are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from ...runtime_min.parallel import one_thread_each
from ...runtime_min.weights import Weights
from ...schemas.graph import Graph
from .options import Calibration, Progress
from .stats import TableMoments
from .tasks import constants, inputs_of, run_node, tensor

Sums = dict[str, np.ndarray]  # summed squared gradients, by weight


def measure_gradients(
    graph: Graph, weights: Weights, windows: Sequence[np.ndarray], options: Calibration, progress: Progress
) -> tuple[Sums, dict[str, TableMoments]]:
    """(linear weight -> f64[out], embedding table -> its moments), both per token."""
    loaded = constants(graph) | {p.name: tensor(weights.f32(p.name)) for p in graph.params}
    total: dict[tuple[str, str], np.ndarray] = {}
    with one_thread_each(options.workers) as each:
        task = partial(_window, graph, loaded, options.seed)
        for at, sums in enumerate(each(task, enumerate(windows))):
            for key, value in sums.items():
                total[key] = total.get(key, 0) + value
            progress((at + 1) / len(windows))
    count = sum(map(len, windows))
    outputs = {name: value / count for (op, name), value in total.items() if op == "linear"}
    tables = {}
    for (op, name), value in total.items():
        if op == "embedding":
            counts = np.bincount(np.concatenate(list(windows)), minlength=loaded[name].shape[0])
            tables[name] = TableMoments(counts.astype(np.int64), value / count)
    return outputs, tables


def _window(graph: Graph, loaded: dict[str, torch.Tensor], seed: int, numbered: tuple[int, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    """Summed squared gradients of one window, f64, by (op, weight)."""
    number, ids = numbered
    sums: dict[tuple[str, str], np.ndarray] = {}
    with torch.enable_grad():
        values = loaded | inputs_of(ids)
        for node in graph.nodes:
            out = run_node(node, values)
            if node.op in ("linear", "embedding") and node.inputs[1] in loaded:
                if not out.requires_grad:
                    out.requires_grad_()
                out.register_hook(partial(_add_square, sums, (node.op, node.inputs[1])))
            values[node.output] = out
        logits = values[graph.output("logits")][0]
        loss = torch.nn.functional.cross_entropy(logits, _sampled(logits, (seed, number)), reduction="sum")
        loss.backward()
    return sums


def _add_square(sums: dict[tuple[str, str], np.ndarray], key: tuple[str, str], gradient: torch.Tensor) -> None:
    square = gradient[0].double().square().sum(0).numpy()
    sums[key] = sums.get(key, 0) + square


def _sampled(logits: torch.Tensor, seed: tuple[int, int]) -> torch.Tensor:
    """One label per row of logits [T, V], drawn from its softmax."""
    cumulative = logits.detach().double().softmax(-1).cumsum(-1)
    draw = torch.from_numpy(np.random.default_rng(seed).random(len(logits)))[:, None]
    return (cumulative < draw * cumulative[:, -1:]).sum(-1).clamp_(max=logits.shape[1] - 1)
