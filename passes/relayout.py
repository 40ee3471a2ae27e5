"""relayout: in which order the channels of each feed-forward block are stored. The graph stays as it is; the weights move.

In: "identity", or (block name, order) pairs: stored channel i is the source's channel order[i]. Blocks that are not named keep their order.
Out: the same graph. `permuted(weights, graph, orders)` are the weights that belong to it, `orders_of` what the plan records.
Refused with PassError: a block that the graph does not have, an order that is no permutation of its channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..artifacts.formats import get_format
from ..runtime_min.weights import Weights
from ..schemas.encoding import Slab
from ..schemas.errors import PassError
from ..schemas.graph import Graph
from ..schemas.plan import FFNOrder
from .base import Numerics
from .facts import CANONICAL
from .ffn import find_ffns
from .round import encode_slab

Orders = Literal["identity"] | tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Relayout:
    """Record the channel order of every feed-forward block."""

    orders: Orders = "identity"

    name: ClassVar[str] = "relayout"
    requires: ClassVar[frozenset[str]] = frozenset({CANONICAL})
    ensures: ClassVar[frozenset[str]] = frozenset()
    drops: ClassVar[frozenset[str]] = frozenset()
    numerics: ClassVar[Numerics] = "exact"

    def run(self, graph: Graph) -> Graph:
        """The same graph, once the orders are known to fit it."""
        orders_of(graph, self.orders)
        return graph


def orders_of(graph: Graph, orders: Orders) -> tuple[FFNOrder, ...]:
    """The order of every block of `graph`; PassError where `orders` does not fit."""
    given = {} if orders == "identity" else dict(orders)
    ffns = find_ffns(graph)
    if unknown := sorted(set(given) - {f.name for f in ffns}):
        raise PassError(f"relayout: the graph has no feed-forward block {unknown[0]!r}")
    for ffn in ffns:
        order = given.get(ffn.name, tuple(range(ffn.channels)))
        if sorted(order) != list(range(ffn.channels)):
            raise PassError(f"relayout: {ffn.name}: the order given is no permutation of its {ffn.channels} channels")
    return tuple(FFNOrder(ffn=f.name, order=given.get(f.name, "identity")) for f in ffns)


def permuted(weights: Weights, graph: Graph, orders: Orders) -> Weights:
    """`weights` as a graph after `Relayout(orders)` stores them."""
    if orders == "identity":
        return weights
    axes: dict[str, tuple[int, np.ndarray]] = {}
    given = dict(orders)
    for ffn in find_ffns(graph):
        if ffn.name in given:
            order = np.asarray(given[ffn.name])
            axes |= {name: (0, order) for name in (ffn.gate, ffn.up, ffn.gate_bias, ffn.up_bias) if name} | {ffn.down: (1, order)}
    return _Permuted(weights, axes)


@dataclass(frozen=True, slots=True)
class _Permuted:
    """Weights with some tensors' rows (axis 0) or columns (axis 1) in another order."""

    base: Weights
    axes: Mapping[str, tuple[int, np.ndarray]]

    @property
    def kind(self) -> str:
        return self.base.kind

    @property
    def identity(self) -> str:
        return self.base.identity

    def encoding(self, name: str) -> str:
        return self.base.encoding(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.base.shape(name)

    def f32(self, name: str) -> np.ndarray:
        array = self.base.f32(name)
        return np.take(array, self.axes[name][1], self.axes[name][0]) if name in self.axes else array

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """See `Weights.block`."""
        if name not in self.axes:
            return self.base.block(name, rows, cols)
        axis, order = self.axes[name]
        if axis == 0 and len(self.shape(name)) > 1:
            return self.base.block(name, order[rows], cols)
        return self.base.block(name, rows)[:, order[cols]]

    def slabs(self, name: str) -> Iterator[Slab]:
        """As stored; a permuted tensor is one slab, in the format that it had (a source's, which loses nothing)."""
        if name not in self.axes:
            yield from self.base.slabs(name)
            return
        fmt, array = get_format(self.encoding(name)), self.f32(name)
        assert fmt.family == "float", "only a source is permuted"
        matrix = array.reshape(-1, array.shape[-1])
        yield Slab(0, matrix.shape[0], 0, matrix.shape[1], fmt.pack(encode_slab(fmt, matrix)))
