"""A graph lowered for one backend: a list of steps over numbered value slots, weights resident, dead values dropped at their last use.

Lowering merges linears that read the same value and share an encoding into one step (q/k/v; gate/up), where the weight has no other
reader. The steps fall in two: the body up to `hidden.final`, which fills the KV cache, and the head (`head.py`), run over any of the body's
positions. A closed program runs no more (UsageError).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.graph import Graph, Node
from ..schemas.ops import attrs_of
from .backend import Array, Backend
from .head import head_of
from .kv import KV
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Step:
    """Run `fn` on value slots `ins`, put the result(s) into `outs`, then drop `dead`. `cache` >= 0 marks attention and names its KV slot."""

    fn: Callable[..., Any]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    dead: tuple[int, ...]
    cache: int = -1
    owns: bool = True


class Program:
    """`graph` with `weights` resident on `backend`."""

    def __init__(self, graph: Graph, weights: Weights, backend: Backend) -> None:
        self.backend = backend
        self._slots: dict[str, int] = {}
        self._constants: list[tuple[int, Array]] = []
        self._graph = graph
        for c in graph.consts:
            self._constants.append((self._slot(c.name), backend.put(np.asarray(c.values, np.float64))))
        merged = merged_linears(graph)
        params = graph.param_table()
        for group in load_groups(graph, merged):
            self._constants.append((self._slot(group[0]), backend.load([params[n] for n in group], weights)))
        self._inputs = tuple(self._slot(i.name) for i in graph.inputs)
        head = head_of(graph)
        steps = self._lower(merged)
        inside = {self._slots[name] for name in head.outputs}
        self._body = tuple(s for s in steps if not inside & set(s.outs))
        self._outputs = {name: self._slots[value] for name, value in graph.outputs}
        self._start, self._logits = self._slots[head.start], self._outputs["logits"]
        self._head = self._schedule(tuple(s for s in steps if inside & set(s.outs)), frozenset({self._logits}))
        self._schedules: dict[frozenset[int], tuple[Step, ...]] = {}
        self._join = backend.kernel("concat", {"axis": 0})
        self._closed = False

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots)) if name else -1

    def _lower(self, merged: dict[str, tuple[Node, ...]]) -> tuple[Step, ...]:
        steps, done = [], set()
        for node in self._graph.nodes:
            if node.output in done:
                continue
            group = merged.get(node.output, (node,))
            done.update(n.output for n in group)
            attrs = attrs_of(node)
            ins = tuple(self._slot(i) for i in node.inputs)
            outs = tuple(self._slot(n.output) for n in group)
            fn = self.backend.kernel(node.op, attrs)
            if node.op == "linear" and len(group) > 1:
                biases = tuple(self._slot(n.inputs[2]) if len(n.inputs) > 2 else -1 for n in group)
                ins = (*ins[:2], *biases)
            if node.op == "attention":
                steps.append(Step(fn, ins, outs, (), int(attrs["cache"]), bool(attrs["owns"])))  # pyright: ignore[reportArgumentType]
            else:
                steps.append(Step(fn, ins, outs, ()))
        return tuple(steps)

    def _schedule(self, steps: tuple[Step, ...], keep: frozenset[int]) -> tuple[Step, ...]:
        """`steps` with every value dropped after its last use, except `keep`."""
        pinned = keep | {slot for slot, _ in self._constants} | set(self._inputs) | {-1}
        seen: set[int] = set()
        out = []
        for s in reversed(steps):
            dead = tuple(sorted({*s.ins, *s.outs} - pinned - seen))
            seen |= {*s.ins, *s.outs}
            out.append(replace(s, dead=dead))
        return tuple(reversed(out))

    def body(self, ids: np.ndarray, start: int, kv: KV, keep: Iterable[str] = ()) -> tuple[Array, dict[str, Array]]:
        """Run token ids int32 [1, T] at positions start..start+T-1, all but the head.

        Returns what the head reads, [1, T, ...], and the outputs named in `keep` (any but the logits), as the backend's arrays.
        """
        return self._run(ids, (start,), (kv,), keep)

    def lockstep(self, ids: np.ndarray, starts: Sequence[int], kvs: Sequence[KV]) -> Array:
        """As `body`, for several texts side by side: ids int32 [B, T], row r at starts[r] in kvs[r]. Every weight is read once for all of them."""
        return self._run(ids, starts, kvs)[0]

    def _run(self, ids: np.ndarray, starts: Sequence[int], kvs: Sequence[KV], keep: Iterable[str] = ()) -> tuple[Array, dict[str, Array]]:
        names = tuple(keep)
        kept = frozenset({self._start, *(self._outputs[n] for n in names)})
        if kept not in self._schedules:
            self._schedules[kept] = self._schedule(self._body, kept)
        values = self._values()
        positions = np.add.outer(np.asarray(starts, np.int32), np.arange(ids.shape[1], dtype=np.int32))
        values[self._inputs[0]], values[self._inputs[1]] = self.backend.put(ids), self.backend.put(positions)
        for s in self._schedules[kept]:
            self._step(s, values, self._attend_all(s, values, starts, kvs) if s.cache >= 0 else s.fn(*(values[i] for i in s.ins)))
        return values[self._start], {n: values[self._outputs[n]] for n in names}

    def head(self, hidden: Array) -> Array:
        """Logits [1, P, V] of positions [1, P, ...] of the body's result."""
        values = self._values()
        values[self._start] = hidden
        for s in self._head:
            self._step(s, values, s.fn(*(values[i] for i in s.ins)))
        return values[self._logits]

    def logits(self, hidden: Array, piece: int) -> Iterator[np.ndarray]:
        """Logits of the body's result, `piece` positions at a time: float32 [P, V], which may be the backend's own memory."""
        for at in range(0, hidden.shape[1], piece):
            yield self.read(self.head(hidden[:, at : at + piece]))

    def read(self, x: Array) -> np.ndarray:
        """The backend's [1, T, ...] as numpy float32 [T, ...]."""
        return self.backend.read(x)[0]

    def close(self) -> None:
        """Let go of the weights."""
        self._closed = True
        self._constants.clear()

    def require_open(self) -> None:
        """UsageError once closed."""
        if self._closed:
            raise UsageError("model: it is closed; load it again")

    def _values(self) -> list[Any]:
        self.require_open()
        values: list[Any] = [None] * (len(self._slots) + 1)  # the last one stands for "absent" (slot -1)
        for slot, array in self._constants:
            values[slot] = array
        return values

    @staticmethod
    def _step(s: Step, values: list[Any], result: Any) -> None:
        """Put a step's result where it belongs, and drop what nothing reads any more."""
        if len(s.outs) == 1:
            values[s.outs[0]] = result
        else:
            for at, slot in enumerate(s.outs):  # no name may outlive the loop: it would keep the whole result alive
                values[slot] = result[at]
        for slot in s.dead:
            values[slot] = None

    def _attend_all(self, s: Step, values: Sequence[Any], starts: Sequence[int], kvs: Sequence[KV]) -> Array:
        """Each text by itself: only they know which keys are theirs."""
        given = [values[i] for i in s.ins]
        if len(kvs) == 1:
            return self._attend(s, given, kvs[0], starts[0])
        rows = ([x[r : r + 1] for x in given[:4]] + given[4:] for r in range(len(kvs)))  # sinks and slopes are the heads', not the texts'
        return reduce(self._join, (self._attend(s, row, kv, start) for row, kv, start in zip(rows, kvs, starts, strict=True)))

    def _attend(self, s: Step, given: Sequence[Any], kv: KV, start: int) -> Array:
        q, k, v, positions, *rest = given
        t = q.shape[1]
        keys, vals, low = kv.extend(s.cache, k if s.owns else None, v if s.owns else None)
        if t == 1 and not any(r is not None for r in rest):
            return s.fn(q, keys, vals, positions)  # every key that was read is visible
        key_positions = self.backend.put(np.arange(low, start + t, dtype=np.int32)[None])
        return s.fn(q, keys, vals, positions, *rest, key_positions=key_positions)


def _readers(graph: Graph) -> dict[str, int]:
    count: dict[str, int] = {}
    for node in graph.nodes:
        for i in set(node.inputs):
            count[i] = count.get(i, 0) + 1
    return count


def merged_linears(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """First linear's output -> all linears of one step: same input, same encoding, weight read nowhere else."""
    params, readers = graph.param_table(), _readers(graph)
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "linear" and (p := params.get(node.inputs[1])) is not None and readers[p.name] == 1:
            groups.setdefault((node.inputs[0], p.encoding or p.dtype), []).append(node)
    return {g[0].output: tuple(g) for g in groups.values() if len(g) > 1}


def load_groups(graph: Graph, merged: dict[str, tuple[Node, ...]]) -> tuple[tuple[str, ...], ...]:
    """Which params are loaded together."""
    together = [tuple(n.inputs[1] for n in group) for group in merged.values()]
    inside = {name for group in together for name in group}
    return (*together, *((p.name,) for p in graph.params if p.name not in inside))
