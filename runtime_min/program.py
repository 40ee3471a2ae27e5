"""A graph lowered for one backend: a list of steps over numbered value slots, weights resident, dead values dropped at their last use.

Lowering merges linears that read the same value and share an encoding into one step (q/k/v; gate/up), where the weight has no other
reader. After the last position-wise stretch (from `hidden.final` on) a run may keep only the last position: prefill for generation needs
no other logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..schemas.graph import Graph, Node
from ..schemas.ops import attrs_of
from .backend import Array, Backend
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
        self._plain = self._lower(merged)
        self._final = self._slots.get(dict(graph.outputs).get("hidden.final", ""), -1)
        self._outputs = {name: self._slots[value] for name, value in graph.outputs}
        self._schedules: dict[frozenset[int], tuple[Step, ...]] = {}

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

    def _schedule(self, keep: frozenset[int]) -> tuple[Step, ...]:
        """The steps with every value dropped after its last use, except `keep`."""
        if keep not in self._schedules:
            pinned = keep | {slot for slot, _ in self._constants} | set(self._inputs) | {-1}
            seen: set[int] = set()
            out = []
            for s in reversed(self._plain):
                dead = tuple(sorted({*s.ins, *s.outs} - pinned - seen))
                seen |= {*s.ins, *s.outs}
                out.append(Step(s.fn, s.ins, s.outs, dead, s.cache, s.owns))
            self._schedules[keep] = tuple(reversed(out))
        return self._schedules[keep]

    def run(self, ids: np.ndarray, start: int, kv: KV, keep: Iterable[str] = ("logits",), last_only: bool = False) -> dict[str, Array]:
        """Run token ids int32 [1, T] at positions start..start+T-1; returns the outputs named in `keep` as the backend's arrays [1, T, ...].

        `last_only` cuts everything after `hidden.final` down to the last position.
        """
        b, t = ids.shape
        positions = self.backend.put(np.broadcast_to(np.arange(start, start + t, dtype=np.int32), (b, t)))
        names = tuple(keep)
        steps = self._schedule(frozenset(self._outputs[n] for n in names))
        values: list[Any] = [None] * (len(self._slots) + 1)  # the last one stands for "absent" (slot -1)
        for slot, array in self._constants:
            values[slot] = array
        values[self._inputs[0]], values[self._inputs[1]] = self.backend.put(ids), positions
        cut = self._final if last_only and t > 1 else -2
        for s in steps:
            if s.cache >= 0:
                result = self._attend(s, values, kv, start, t)
            else:
                result = s.fn(*(values[i] for i in s.ins))
            if len(s.outs) == 1:
                values[s.outs[0]] = result
            else:
                for at, slot in enumerate(s.outs):  # no name may outlive the loop: it would keep the whole result alive
                    values[slot] = result[at]
            if cut in s.outs:
                values[cut] = values[cut][:, -1:]
            for slot in s.dead:
                values[slot] = None
        return {n: values[self._outputs[n]] for n in names}

    def _attend(self, s: Step, values: Sequence[Any], kv: KV, start: int, t: int) -> Array:
        q, k, v, positions, *rest = (values[i] for i in s.ins)
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
