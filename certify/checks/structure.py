"""STRUCTURE: the artifact holds the source's graph, weights and files, before anything is run.

1. `graph_differences`: entries of the graph that differ from a fresh import of the source, encodings and facts aside.
2. `row_error_ratio`, `rows_reversed`, `lossless_differences`: every stored tensor against the source's, row by row, slab by slab as decoded
   from the stored bytes. A recorded order of FFN channels is undone first. At most BLOCK weights are decoded at
   a time (one row at least).
3. `file_differences`: tokenizer, template and other listed files, byte for byte.
A row's error is |decoded - source| / |source|, relative to that of plain rounding in the same slabs, but not below FLOOR: a row that plain rounding
happens to hit exactly may still cost one rounding of a float16 scale.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ...artifacts.formats import get_format
from ...runtime_min.weights import Weights
from ...schemas.certificate import Check
from ...schemas.errors import CertifyError
from ...schemas.graph import Graph, Param
from ...schemas.manifest import FileEntry
from ..plain_rounding import round_plainly

FLOOR = 2.0**-11  # relative error of one float16 rounding
BLOCK = 1 << 20  # weights

CHANNEL_AXIS = {"gate": 0, "gate.bias": 0, "up": 0, "up.bias": 0, "down": 1}  # of an FFN's tensors
METRICS = ("graph_differences", "row_error_ratio", "rows_reversed", "lossless_differences", "file_differences")

Orders = Mapping[str, np.ndarray]  # "blk.3.ffn" -> stored channel i is the source's channel order[i]


def graph_check(graph: Graph, fresh: Graph, weights: Weights) -> Check:
    """Compare the artifact's graph with a fresh import's, and its encodings with the stored ones."""
    found = [*_graph_differences(graph, fresh)]
    found += [f"param {p.name}: encoding {p.encoding}, stored as {e}" for p in graph.params if (e := weights.encoding(p.name)) != p.encoding]
    n = len(fresh.nodes) + len(fresh.params)
    return Check(metric="graph_differences", name="graph_differences", value=len(found), n=n, detail=found[0] if found else "")


def _graph_differences(graph: Graph, fresh: Graph) -> Iterator[str]:
    for kind in ("inputs", "consts", "params", "nodes", "outputs"):
        mine, theirs = (_bare(getattr(g, kind)) for g in (graph, fresh))
        if len(mine) != len(theirs):
            yield f"{kind}: {len(mine)}, a fresh import has {len(theirs)}"
        yield from (f"{kind}: {a}, a fresh import has {b}" for a, b in zip(mine, theirs, strict=False) if a != b)


def _bare(entries: tuple[object, ...]) -> tuple[object, ...]:
    """Params without their encoding; a fresh import has none yet."""
    return tuple(replace(e, encoding="") if isinstance(e, Param) else e for e in entries)


def file_check(files: tuple[FileEntry, ...], source_files: Mapping[str, bytes]) -> Check:
    """Compare the artifact's listed files with the source's bytes of the same paths."""
    mine = {f.path: f.sha256 for f in files}
    theirs = {path: hashlib.sha256(raw).hexdigest() for path, raw in source_files.items()}
    found = [path for path in sorted({*mine, *theirs}) if mine.get(path) != theirs.get(path)]
    detail = f"differing, missing or extra: {', '.join(found[:5])}" if found else ""
    return Check(metric="file_differences", name="file_differences", value=len(found), n=len(theirs), detail=detail)


@dataclass(slots=True)
class _Tally:
    """What all tensors add up to."""

    rows: int = 0
    worst: float = 0.0
    worst_row: str = ""
    reversed: int = 0
    reversed_rows: list[str] = field(default_factory=list)
    exact: int = 0  # weights in lossless formats
    changed: int = 0
    first_change: str = ""

    def checks(self) -> tuple[Check, ...]:
        finite, some = np.isfinite(self.worst), ", ".join(self.reversed_rows[:5])
        return (
            Check(
                metric="row_error_ratio",
                name="row_error_ratio[norm=l2,floor=2^-11]",
                value=self.worst if finite else None,
                n=self.rows,
                detail=f"worst: {self.worst_row}" + ("" if finite else ", which is not finite"),
            ),
            Check(metric="rows_reversed", name="rows_reversed", value=self.reversed, n=self.rows, detail=some),
            Check(metric="lossless_differences", name="lossless_differences", value=self.changed, n=self.exact, detail=self.first_change),
        )


def tensor_checks(stored: Weights, source: Weights, params: tuple[Param, ...], orders: Orders, done: Callable[[str], None]) -> tuple[Check, ...]:
    """Compare every param; `done(name)` is called after each."""
    tally = _Tally()
    for p in params:
        _compare_tensor(p, stored, _Original(source, p.name, orders), tally)
        done(p.name)
    return tally.checks()


class _Original:
    """The source's tensor as a matrix [rows, cols], FFN channels in the order in which they are stored."""

    def __init__(self, source: Weights, name: str, orders: Orders) -> None:
        self._source, self._name = source, name
        shape = source.shape(name)
        self.rows, self.cols = prod(shape[:-1]), shape[-1]
        self._order: np.ndarray | None = None
        self._of_rows = False
        for ffn, order in orders.items():
            axis = CHANNEL_AXIS.get(name.removeprefix(f"{ffn}."))
            if axis is None or not name.startswith(f"{ffn}."):
                continue
            if not np.array_equal(np.sort(order), np.arange(shape[axis])):
                raise CertifyError(f"{name}: the recorded channel order is no permutation of {shape[axis]} channels")
            self._order, self._of_rows = order, axis == 0 and len(shape) > 1

    def block(self, rows: slice) -> np.ndarray:
        """Some rows, float32 [n, cols]."""
        if self._order is None:
            return self._source.block(self._name, rows)
        if self._of_rows:
            return self._source.block(self._name, self._order[rows])
        return np.take(self._source.block(self._name, rows), self._order, 1)


def _compare_tensor(p: Param, stored: Weights, source: _Original, tally: _Tally) -> None:
    """Compare the slabs of one tensor with the source's weights in their place, some rows of both at a time."""
    fmt, slabs = get_format(stored.encoding(p.name)), tuple(stored.slabs(p.name))
    seen = sum((s.row1 - s.row0) * (s.col1 - s.col0) for s in slabs)
    if seen != source.rows * source.cols:
        raise CertifyError(f"{p.name}: slabs hold {seen} weights, the tensor has {source.rows * source.cols}")
    error, plain, dot, decoded_norm, norm = (np.zeros(source.rows) for _ in range(5))
    step = max(1, BLOCK // source.cols)
    for first in range(0, source.rows, step):
        block = source.block(slice(first, min(first + step, source.rows)))
        norm[first : first + len(block)] = _squares(block.astype(np.float64))
        for slab in slabs:
            r = slice(max(first, slab.row0), min(first + len(block), slab.row1))
            if r.start >= r.stop:
                continue
            a = block[r.start - first : r.stop - first, slab.col0 : slab.col1]
            b = fmt.decode(slab.raw[r.start - slab.row0 : r.stop - slab.row0], slab.col1 - slab.col0)
            if fmt.is_lossless_for(p.dtype):
                _count_changes(p.name, a, b, tally)
            else:
                plain[r] += _squares(round_plainly(fmt, a).astype(np.float64) - a)
            error[r] += _squares(b.astype(np.float64) - a)
            dot[r] += np.einsum("ij,ij->i", a, b, dtype=np.float64)
            decoded_norm[r] += _squares(b.astype(np.float64))
    _tally_rows(p.name, tally, norm, (error, plain, dot, decoded_norm))


def _tally_rows(name: str, tally: _Tally, norm: np.ndarray, sums: tuple[np.ndarray, ...]) -> None:
    error, plain, dot, decoded_norm = sums
    tally.rows += len(norm)
    wrong = ~(dot > 0) & ~((norm == 0) & (decoded_norm == 0))
    tally.reversed += int(wrong.sum())
    tally.reversed_rows += [f"{name} row {r}" for r in np.flatnonzero(wrong)[:5]]
    some = norm > 0
    if not some.any():
        return
    ratio = np.sqrt(error[some]) / np.maximum(np.sqrt(plain[some]), FLOOR * np.sqrt(norm[some]))
    ratio = np.where(np.isfinite(ratio), ratio, np.inf)
    at = int(ratio.argmax())
    if ratio[at] > tally.worst:
        tally.worst, tally.worst_row = float(ratio[at]), f"{name} row {np.flatnonzero(some)[at]}"


def _count_changes(name: str, source: np.ndarray, decoded: np.ndarray, tally: _Tally) -> None:
    """Bits, not numbers: -0 and NaN payloads count."""
    changed = np.ascontiguousarray(source).view(np.uint32) != np.ascontiguousarray(decoded).view(np.uint32)
    tally.exact += changed.size
    if changed.any():
        tally.first_change = tally.first_change or f"first in {name}"
        tally.changed += int(changed.sum())


def _squares(x: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", x, x)
