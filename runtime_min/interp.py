"""The interpreter: runs a graph in numpy by the reference functions of `interp_ops.py`. The meaning that backends and passes are held to.

In: a verified graph, its weights, token ids. Out: the named outputs, or the logits piece by piece. Every value is rounded to `dtype`, so that
float32 means float32 throughout; constants, and the angles inside rope, stay float64. Matrices are read as they are used (interp_weights.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..schemas.graph import Graph, Node
from ..schemas.ops import OPS, REQUIRED, attrs_of
from .head import WHOLE_PIECE, head_of
from .interp_ops import REFERENCE, Args, Attrs
from .interp_weights import Given, Streamed

__all__ = ["REFERENCE", "evaluate", "logits_in_pieces", "run_op"]


def run_op(op: str, args: Args, attrs: Attrs, key_positions: np.ndarray | None = None) -> np.ndarray:
    """One op; `attrs` may leave defaults out; `key_positions` i32[B, S] is for attention over a cache."""
    complete = {k: a.default for k, a in OPS[op].attrs.items() if a.default is not REQUIRED} | dict(attrs)
    return REFERENCE[op](args, complete) if key_positions is None else REFERENCE[op](args, complete, key_positions)


def evaluate(
    graph: Graph, weights: Given, ids: np.ndarray, dtype: Any = np.float64, positions: np.ndarray | None = None, keep: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Run `graph` without a cache on ids [B, T]; all named outputs, and the values named in `keep`.

    `weights` may be arrays by name, of the params' declared shapes. `positions` [B, T] default to 0..T-1; negative ones are padding.
    """
    values = _Values(graph, weights, dtype)
    values.start(np.asarray(ids), positions)
    values.run(graph.nodes, {v for _, v in graph.outputs} | set(keep))
    return {name: values[v] for name, v in graph.outputs} | {name: values[name] for name in keep}


def logits_in_pieces(graph: Graph, weights: Given, ids: np.ndarray, dtype: Any = np.float64) -> Iterator[np.ndarray]:
    """The logits that `evaluate` gives, a few positions at a time: [B, P, V], together [B, T, V]."""
    head = head_of(graph)
    values = _Values(graph, weights, dtype)
    values.start(np.asarray(ids), None)
    values.run([n for n in graph.nodes if n.output not in head.outputs], {head.start})
    hidden, nodes = values[head.start], [n for n in graph.nodes if n.output in head.outputs]
    for at in range(0, hidden.shape[1], WHOLE_PIECE):
        values.put(head.start, hidden[:, at : at + WHOLE_PIECE])
        values.run(nodes, {logits := graph.output("logits")})
        yield values.take(logits)


class _Values:
    """What has been computed, params included."""

    def __init__(self, graph: Graph, weights: Given, dtype: Any) -> None:
        self._streamed, self._dtype = Streamed(weights, dtype), dtype
        self._params = graph.param_table()
        self._consts = {c.name: np.array(c.values, np.float64) for c in graph.consts}
        self._held: dict[str, np.ndarray] = dict(self._consts)

    def start(self, ids: np.ndarray, positions: np.ndarray | None) -> None:
        """Give the graph's inputs."""
        self._held["ids"] = ids
        self._held["positions"] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape) if positions is None else positions

    def run(self, nodes: Sequence[Node], wanted: set[str]) -> None:
        """Compute `nodes` in order; what none of them reads any more is dropped, unless it is `wanted` or a constant."""
        last_use = {name: at for at, node in enumerate(nodes) for name in node.inputs}
        for at, node in enumerate(nodes):
            self.put(node.output, self._compute(node))
            for name in node.inputs:
                if last_use[name] == at and name not in wanted and name not in self._consts:
                    self._held.pop(name, None)

    def _compute(self, node: Node) -> np.ndarray:
        first, table, *bias = (*node.inputs, "", "")
        if node.op == "embedding" and table in self._params:
            return self._streamed.rows(table, self[first])
        if node.op == "linear" and table in self._params:
            y = self._streamed.linear(self[first], table)
            return y + self[bias[0]] if bias[0] else y
        return REFERENCE[node.op]([self[i] if i else None for i in node.inputs], attrs_of(node))

    def put(self, name: str, value: np.ndarray) -> None:
        """Keep a value, rounded."""
        self._held[name] = np.asarray(value, self._dtype)

    def take(self, name: str) -> np.ndarray:
        """A value that nobody needs again."""
        return self._held.pop(name)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._streamed.whole(name) if name in self._params else self._held[name]
