"""Calibration: a source model and token windows in, `Stats` out - what every linear's input looks like, how much every output matters.

1. inputs (inputs.py): count, mean and second moments of each linear's input, segment by segment (segments.py)
2. gradients (gradients.py): mean squared gradient of the loss at each linear's output and at the embedding's, labels sampled from the
   model's own distribution, segment by segment backward
In memory are one segment's weights and a few windows' activations, never the model. Every segment is a step that `work` keeps: a killed
calibration goes on at the next one, and the statistics are views of kept files.
torch is imported here, lazily, and nowhere else in passes. Every window is one single-threaded task and results are added in window order,
so the statistics do not depend on the number of threads (measured: torch's MKL keeps its bits at 16 tokens and more, 2026-11).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ...artifacts.work import NOTHING_KEPT, Work
from ...runtime_min.weights import Weights
from ...schemas.errors import BackendError, UsageError
from ...schemas.graph import Graph
from ...schemas.text import to_json
from .options import Calibration, Progress
from .segments import segments
from .stats import InputMoments, Stats, StatsHeader, TableMoments, load_stats, save_stats

__all__ = ["Calibration", "InputMoments", "Stats", "TableMoments", "calibrate", "load_stats", "save_stats", "windows_digest"]


def windows_digest(windows: Sequence[np.ndarray]) -> str:
    """SHA-256 of the token ids, window by window."""
    digest = hashlib.sha256()
    for window in windows:
        digest.update(len(window).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(window, "<i8").tobytes())
    return digest.hexdigest()


def calibrate(
    graph: Graph,
    weights: Weights,
    windows: Sequence[np.ndarray],
    options: Calibration,
    progress: Progress = lambda share: None,
    work: Work = NOTHING_KEPT,
) -> Stats:
    """Statistics of `graph` on `windows` (token ids int[T] each, non-empty). BackendError without torch, UsageError without text."""
    if not windows or any(len(w) == 0 for w in windows):
        raise UsageError("calibration: no tokens; give a longer text")
    try:
        from . import gradients, inputs, tasks
    except (ModuleNotFoundError, BackendError) as e:
        raise BackendError("calibration needs torch; install thinlm[compile]") from e
    count = max(1, round(len(windows) * options.gradient_share))
    chosen = [i * len(windows) // count for i in range(count)]
    starts = np.cumsum([0, *map(len, windows)])
    texts = gradients.Texts([windows[i] for i in chosen], [int(starts[i]) for i in chosen])
    steps = work.stage("calibrate", to_json(graph), windows_digest(windows), options.numbers())
    runner, parts = tasks.Runner.of(graph, weights), segments(graph)
    found = inputs.measure_inputs(runner, parts, windows, options, (steps, lambda x: progress(x / 2)))
    outputs, tables = gradients.measure_gradients(runner, parts, (found.boundary, texts), options, (steps, lambda x: progress((1 + x) / 2)))
    header = StatsHeader(
        source=options.source,
        text=windows_digest(windows),
        tokens=sum(map(len, windows)),
        gradient_tokens=sum(map(len, texts.windows)),
        seed=options.seed,
        inputs=found.keys,
    )
    return Stats(header, found.moments, outputs, tables)
