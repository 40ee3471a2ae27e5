"""The interpreter: runs a graph in numpy by the reference functions of `interp_ops.py`. The meaning that backends and passes are held to.

In: a verified graph, its weights as arrays, token ids. Out: the named outputs. Every value is rounded to `dtype`, so that float32 means
float32 throughout; constants, and the angles inside rope, stay float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..schemas.graph import Graph
from ..schemas.ops import OPS, REQUIRED, attrs_of
from .interp_ops import REFERENCE, Args, Attrs

__all__ = ["REFERENCE", "evaluate", "run_op"]


def run_op(op: str, args: Args, attrs: Attrs, key_positions: np.ndarray | None = None) -> np.ndarray:
    """One op; `attrs` may leave defaults out; `key_positions` i32[B, S] is for attention over a cache."""
    complete = {k: a.default for k, a in OPS[op].attrs.items() if a.default is not REQUIRED} | dict(attrs)
    return REFERENCE[op](args, complete) if key_positions is None else REFERENCE[op](args, complete, key_positions)


def evaluate(
    graph: Graph,
    weights: Callable[[str], np.ndarray],
    ids: np.ndarray,
    dtype: Any = np.float64,
    positions: np.ndarray | None = None,
    keep: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Run `graph` without a cache on ids [B, T]; all named outputs, and the values named in `keep`.

    `weights(name)` gives a param as an array of its declared shape. `positions` [B, T] default to 0..T-1; negative ones are padding.
    """
    ids = np.asarray(ids)
    values: dict[str, np.ndarray] = {"ids": ids, "positions": np.broadcast_to(np.arange(ids.shape[1]), ids.shape) if positions is None else positions}
    values.update((c.name, np.array(c.values, np.float64)) for c in graph.consts)
    params, wanted = graph.param_table(), {v for _, v in graph.outputs} | set(keep)
    last_use = {name: at for at, node in enumerate(graph.nodes) for name in node.inputs}

    def value(name: str) -> np.ndarray:
        return np.asarray(weights(name), dtype) if name in params else values[name]

    for at, node in enumerate(graph.nodes):
        out = REFERENCE[node.op]([value(i) if i else None for i in node.inputs], attrs_of(node))
        values[node.output] = np.asarray(out, dtype)
        for name in node.inputs:
            if last_use[name] == at and name not in wanted:
                values.pop(name, None)
    return {name: value(v) for name, v in graph.outputs} | {name: value(name) for name in keep}
