"""Windows as independent single-threaded tasks: the same numbers on any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...runtime_min.backends.torch_cpu.ops import OPS
from ...schemas.graph import Graph, Node
from ...schemas.ops import attrs_of


def tensor(array: np.ndarray) -> torch.Tensor:
    """A copy where torch allocates: a matrix product's last bits depend on how its operands are aligned."""
    return torch.from_numpy(array).clone()


def run_node(node: Node, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """One op; `values` holds all of its inputs."""
    return OPS[node.op]([values[i] if i else None for i in node.inputs], attrs_of(node))


def constants(graph: Graph) -> dict[str, torch.Tensor]:
    """The graph's constants, float64."""
    return {c.name: torch.tensor(c.values, dtype=torch.float64) for c in graph.consts}


def inputs_of(window: Any) -> dict[str, torch.Tensor]:
    """ids and positions [1, T] of one window."""
    ids = torch.as_tensor(window, dtype=torch.int64)[None]
    return {"ids": ids, "positions": torch.arange(ids.shape[1], dtype=torch.int32)[None]}
