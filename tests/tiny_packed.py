"""A model rounded by the compiler's own rounding, held in memory as an artifact would give it, cut as the layouts cut it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thinlm.artifacts.formats import get_format
from thinlm.artifacts.layouts import matrix_shape
from thinlm.passes.costs import pages_of
from thinlm.passes.round import encode_slab
from thinlm.runtime_min.weights import Weights
from thinlm.schemas.encoding import Slab
from thinlm.schemas.graph import Graph, Param


class Packed:
    """Weights of kind "artifact" for a graph with encodings."""

    kind, identity = "artifact", "packed in memory"

    def __init__(self, graph: Graph, source: Weights) -> None:
        self._params, self._slabs = graph.param_table(), {}
        for p in graph.params:
            w = source.f32(p.name).reshape(matrix_shape(p.shape))
            self._slabs[p.name] = tuple(_slabs(p, w))

    def encoding(self, name: str) -> str:
        return self._params[name].encoding

    def shape(self, name: str) -> tuple[int, ...]:
        return self._params[name].shape

    def slabs(self, name: str) -> Iterator[Slab]:
        return iter(self._slabs[name])

    def f32(self, name: str) -> np.ndarray:
        out = np.empty(self.shape(name), np.float32)
        matrix, fmt = out.reshape(matrix_shape(out.shape)), get_format(self.encoding(name))
        for s in self._slabs[name]:
            matrix[s.row0 : s.row1, s.col0 : s.col1] = fmt.decode(s.raw, s.col1 - s.col0)
        return out

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        w = self.f32(name)
        return w.reshape(-1, w.shape[-1])[rows, cols].copy()


def _slabs(p: Param, w: np.ndarray) -> Iterator[Slab]:
    fmt = get_format(p.encoding)
    group = pages_of(p, p.encoding)
    for k in range(group.count):
        r = group.slots[0].region(k)
        yield Slab(r.row0, r.row1, r.col0, r.col1, fmt.pack(encode_slab(fmt, w[r.row0 : r.row1, r.col0 : r.col1])))


def encoded(graph: Graph, matrices: str, embed: str = "") -> Graph:
    """`graph` with one format for all matrices (another for the embedding) and its vectors as stored."""
    names = {p.name: f"{p.dtype}/1" if len(p.shape) == 1 else embed if embed and p.role == "embed" else matrices for p in graph.params}
    return graph.with_encodings(names)
