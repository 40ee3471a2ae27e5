"""The run-time peak beside weights and KV: a run's steps in order, every value alive until its last reader, each step's own allocations.

In: a graph with encodings, a target, a resolved recipe. Out: a MemoryPlan. Modelled is a session that fills the context in chunks and asks for
every position's logits (`append_pieces`; `advance` makes only the last position's and needs no more): the body of the costliest chunk, or its
head over one piece of positions beside the body's result (runtime_min/head.py). Logits that were handed out are the caller's.
The figure is never below the measured peak and within 2 % of it, weights and KV included (tests/passes/test_plan_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..runtime_min.head import PIECE, head_of
from ..runtime_min.program import load_groups, merged_linears
from ..schemas.graph import LOSSLESS_ROLES, Graph, Node, Param
from ..schemas.kv import KVSlot, kv_slots
from ..schemas.ops import attrs_of
from ..schemas.plan import LiveValue, MemoryPlan
from ..schemas.recipe import Recipe
from ..schemas.verify import infer
from .targets import Target
from .targets.base import Call, Footprint, Shape

I32, F32 = 4, 4


def plan_memory(graph: Graph, target: Target, recipe: Recipe) -> MemoryPlan:
    """The peak of the costliest chunk. Every param has an encoding, the recipe a context and a KV dtype."""
    assert recipe.context is not None and recipe.kv_dtype != "auto"
    slots = {s.slot: s for s in kv_slots(graph, recipe.context, recipe.block, recipe.kv_dtype)}
    chunk = min([recipe.prefill_chunk, recipe.context, *(s.block for s in slots.values() if s.window)])
    full, rest = divmod(recipe.context, chunk)
    chunks = [((full - 1) * chunk, chunk)] + ([(full * chunk, rest)] if rest else [])
    runs = [_Run(graph, target, slots, start, tokens, recipe.batch > 1) for start, tokens in chunks]
    worst = max((run.walk() for run in runs), key=lambda peak: peak.bytes)
    live = tuple(LiveValue(name=name, bytes=size) for name, size in sorted(worst.live.items(), key=lambda item: -item[1]) if size)
    return MemoryPlan(prefill_chunk=chunk, workspace_bytes=worst.bytes, peak_node=worst.node, live=live)


@dataclass(slots=True)
class _Peak:
    """The worst moment so far."""

    bytes: int = 0
    node: str = ""
    live: dict[str, int] = field(default_factory=dict)

    def see(self, node: str, live: dict[str, int], extra: int) -> None:
        total = sum(live.values()) + extra
        if total > self.bytes:
            self.bytes, self.node, self.live = total, node, {**live, f"inside {node}": extra}


class _Run:
    """One chunk: `tokens` positions from `start`."""

    def __init__(self, graph: Graph, target: Target, slots: dict[int, KVSlot], start: int, tokens: int, shared: bool) -> None:
        self.graph, self.target, self.slots = graph, target, slots
        self.start, self.tokens, self.shared = start, tokens, shared
        self.params, (self.types, _) = graph.param_table(), infer(graph)
        self.merged = merged_linears(graph)
        self.head = head_of(graph)
        self.piece = tokens  # positions that the head is run over

    def walk(self) -> _Peak:
        """Run the steps on sizes alone: the body once, the head over every size of piece that there is."""
        peak, held = _Peak(), self._held()
        steps = list(self._steps())
        body = [group for group in steps if group[0].output not in self.head.outputs]
        left = self._walk(body, held, peak, self.head.start)
        for piece in (min(PIECE, self.tokens), self.tokens % PIECE or 1, 1):
            self.piece = piece
            self._walk(steps[len(body) :], left, peak, self.graph.output("logits"))
        return peak

    def _walk(self, steps: list[tuple[Node, ...]], held: dict[str, int], peak: _Peak, result: str) -> dict[str, int]:
        """What is held afterwards: `held` and the storage of `result`."""
        live = dict(held)
        storage: dict[str, str] = {}  # value -> name of the storage that it lies in
        last = {name: at for at, group in enumerate(steps) for node in group for name in (*node.inputs, node.output)}
        last[result] = len(steps)
        for at, group in enumerate(steps):
            made = self._footprint(group)
            peak.see(self._label(group), live, made.peak)
            for n, node in enumerate(group):
                if made.out:
                    storage[node.output] = group[min(n, len(made.out) - 1)].output
                else:
                    storage[node.output] = storage.get(node.inputs[0], "")
            live.update((node.output, made.out[n]) for n, node in enumerate(group[: len(made.out)]))
            for name in [name for name in storage if last[name] <= at]:
                del storage[name]
            for name in [name for name in live if name not in storage.values() and name not in held]:
                del live[name]
        return live

    def _held(self) -> dict[str, int]:
        """What lives through the whole run: ids and positions, tables of the kernels and of rope."""
        ropes = {(n.inputs[2], attrs_of(n)["scale"]) for n in self.graph.nodes if n.op == "rope"}
        frequencies = {c.name: len(c.values) for c in self.graph.consts}
        return {
            "ids, positions": 2 * I32 * self.tokens,
            "kernel tables": self.target.table_bytes(frozenset(self._loads()), self.tokens),
            "rope tables": sum(4 * F32 * self.tokens * frequencies[name] for name, _ in ropes) + 8 * sum(frequencies.values()),
        }

    def _loads(self) -> Iterator[tuple[str, int, int]]:
        for names in load_groups(self.graph, self.merged):
            first = self.params[names[0]]
            if first.role not in LOSSLESS_ROLES:
                yield first.encoding, sum(self.params[n].shape[0] for n in names), first.shape[-1]

    def _steps(self) -> Iterator[tuple[Node, ...]]:
        done: set[str] = set()
        for node in self.graph.nodes:
            if node.output not in done:
                group = self.merged.get(node.output, (node,))
                done.update(n.output for n in group)
                yield group

    def _label(self, group: tuple[Node, ...]) -> str:
        weights = [i for n in group for i in n.inputs if i in self.params]
        return f"{group[0].op} {'+'.join(weights) or group[0].output}"

    def _shape(self, name: str, positions: int) -> Shape:
        """Sizes of a value."""
        sizes = {"B": 1, "T": positions}
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.types[name].shape) if name else ()

    def _footprint(self, group: tuple[Node, ...]) -> Footprint:
        node, attrs = group[0], attrs_of(group[0])
        positions = self.piece if node.output in self.head.outputs else self.tokens
        matrix = next((self.params[i] for i in node.inputs[1:] if self._is_matrix(i)), None)
        keys, gathered = self._keys(attrs) if node.op == "attention" else (0, False)
        slot = self.slots.get(int(attrs["cache"])) if node.op == "attention" else None  # pyright: ignore[reportArgumentType]
        call = Call(
            op=node.op,
            attrs=attrs,
            shapes=tuple(self._shape(i, positions) for i in node.inputs),
            outs=tuple(self._shape(n.output, positions) for n in group),
            format=matrix.encoding if matrix is not None else "",
            biased=tuple(len(n.inputs) > 2 for n in group),
            keys=keys,
            kv_dtype=slot.dtype if slot else "f32",
            gathered=gathered,
        )
        return self.target.footprint(call)

    def _is_matrix(self, name: str) -> bool:
        param: Param | None = self.params.get(name)
        return param is not None and param.role not in LOSSLESS_ROLES

    def _keys(self, attrs: dict) -> tuple[int, bool]:
        """How many positions the cache gives back, and whether their blocks may be out of order (a window wraps, sequences share a pool)."""
        slot = self.slots[attrs["cache"]]
        low = max(0, self.start - slot.window + 1) if slot.window else 0
        end = self.start + self.tokens
        return end - low, self.shared or end > slot.capacity
