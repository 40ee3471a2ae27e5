"""Windows as independent single-threaded tasks: the same numbers on any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ...runtime_min.backends.torch_cpu.ops import OPS
from ...runtime_min.weights import Weights
from ...schemas.graph import Graph, Node
from ...schemas.ops import attrs_of
from .options import ROWS, WIDE

Values = dict[str, torch.Tensor]



def tensor(array: np.ndarray) -> torch.Tensor:
    """A copy where torch allocates: a matrix product's last bits depend on how its operands are aligned."""
    out = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    out.numpy()[...] = array
    return out


def constants(graph: Graph) -> Values:
    """The graph's constants, float64."""
    return {c.name: torch.tensor(c.values, dtype=torch.float64) for c in graph.consts}


def inputs_of(window: Any) -> Values:
    """ids and positions [1, T] of one window."""
    ids = torch.as_tensor(np.asarray(window), dtype=torch.int64)[None]
    return {"ids": ids, "positions": torch.arange(ids.shape[1], dtype=torch.int32)[None]}


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs nodes of a graph on weights that are read when they are needed."""

    graph: Graph
    weights: Weights
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, graph: Graph, weights: Weights) -> Runner:
        """Shapes of the params, by name."""
        return cls(graph, weights, {p.name: p.shape for p in graph.params})

    def load(self, nodes: tuple[Node, ...]) -> Values:
        """The weights that `nodes` read, float32; embedding tables and wide matrices are left to `run`."""
        names = {i for n in nodes for i in n.inputs if i in self.shapes and not self._in_place(n, i)}
        return {name: self._whole(name) for name in sorted(names)}

    def run(self, node: Node, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One op; `values` holds its inputs."""
        inputs = [None if not i or self._in_place(node, i) else values[i] for i in node.inputs]
        name = next((i for i in node.inputs[1:2] if self._in_place(node, i)), None)
        if name is not None:
            first = inputs[0]
            assert first is not None
            return self._gather(name, first) if node.op == "embedding" else self._wide(name, first, inputs[2] if len(inputs) > 2 else None)
        return OPS[node.op](inputs, attrs_of(node))

    def _whole(self, name: str) -> torch.Tensor:
        """A weight in its shape, read a run of rows at a time: no second copy of a matrix is held."""
        out = torch.empty(self.shapes[name], dtype=torch.float32)
        matrix = out.numpy().reshape(-1, self.shapes[name][-1])
        step = max(1, ROWS // matrix.shape[1])
        for start in range(0, len(matrix), step):
            matrix[start : start + step] = self.weights.block(name, slice(start, start + step))
        return out

    def _gather(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return tensor(self.weights.block(name, ids.reshape(-1).numpy())).view(*ids.shape, -1)

    def _wide(self, name: str, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, cols = self.shapes[name]
        y: torch.Tensor = _Wide.apply(x, partial(self._rows, name), rows, cols)  # pyright: ignore[reportAssignmentType]
        return y if bias is None else y + bias

    def _in_place(self, node: Node, name: str) -> bool:
        """Is that weight read where it lies: some rows, or a run of rows at a time?"""
        if name not in self.shapes or len(node.inputs) < 2 or name != node.inputs[1]:
            return False
        return node.op == "embedding" or (node.op == "linear" and int(np.prod(self.shapes[name])) > WIDE)

    def _rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        return tensor(self.weights.block(name, slice(start, stop)))


class _Wide(torch.autograd.Function):
    """x [..., c] times the transpose of a matrix [rows, c] that is read a run of rows at a time, again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, read: Callable[[int, int], torch.Tensor], rows: int, cols: int) -> torch.Tensor:
        ctx.read, ctx.runs = read, [(r, min(r + max(1, ROWS // cols), rows)) for r in range(0, rows, max(1, ROWS // cols))]
        y = x.new_empty(*x.shape[:-1], rows)
        for start, stop in ctx.runs:
            y[..., start:stop] = x @ read(start, stop).T
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (g,) = grads
        total = sum(g[..., start:stop] @ ctx.read(start, stop) for start, stop in ctx.runs)
        return total, None, None, None
