"""What a compile knows from headers alone: the graph, what every format would cost, and whether the budgets can be met. No weight is read.

`plan` shows it; `compile` starts from it. Refused here, in seconds: checkpoints that can't be expressed, contradictory recipes (UsageError) and
budgets that nothing meets (InfeasibleError, exit 3, with the smallest feasible figure).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ..artifacts.formats import FORMATS
from ..passes.allocate import Allocation, Limit, allocate, check_feasible, feasible_range
from ..passes.costs import cost_table
from ..passes.pipeline import PassRecord, import_pipeline, run_pipeline
from ..passes.plan_memory import plan_memory
from ..passes.targets import Target, get_target
from ..schemas.errors import InfeasibleError
from ..schemas.graph import Graph
from ..schemas.kv import KVDtype, KVSlot, kv_bytes, kv_slots
from ..schemas.plan import BudgetName, Ledger, MemoryPlan
from ..schemas.recipe import Recipe, limits_of, resolve
from ..schemas.scores import ScoreTable
from .frontends import ModelInfo, SourceCheckpoint, open_checkpoint

# Predicted KL of storing keys and values in less than float32, nats per token: the largest measured on the trained models (LOG.md, 2026-11).
KV_KL: dict[KVDtype, float] = {"f32": 0.0, "f16": 2.5e-7, "bf16": 1.8e-5}
KV_AUTO: tuple[KVDtype, ...] = ("f32", "f16")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checkpoint and a resolved recipe; `costs` is unscored, `small_bytes` those of the artifact's files that hold no weights."""

    path: Path
    graph: Graph
    source: SourceCheckpoint
    info: ModelInfo
    recipe: Recipe
    target: Target
    costs: ScoreTable
    records: tuple[PassRecord, ...]
    small_bytes: int

    def slots(self, kv_dtype: KVDtype) -> tuple[KVSlot, ...]:
        """KV geometry for the recipe's context."""
        assert self.recipe.context is not None
        return kv_slots(self.graph, self.recipe.context, self.recipe.block, kv_dtype)

    def kv_choices(self) -> tuple[KVDtype, ...]:
        """KV dtypes that the search may use."""
        return KV_AUTO if self.recipe.kv_dtype == "auto" else (self.recipe.kv_dtype,)

    def memory(self, encodings: Mapping[str, str], kv_dtype: KVDtype) -> MemoryPlan:
        """The run-time peak beside weights and KV."""
        recipe = msgspec.structs.replace(self.recipe, kv_dtype=kv_dtype)
        return plan_memory(self.graph.with_encodings(encodings), self.target, recipe)

    def workspace_range(self, kv_dtype: KVDtype) -> tuple[int, int]:
        """Workspace with every group at its smallest and at its largest option, sorted."""
        ends = (self.memory(self.extreme(largest, "resident_bytes"), kv_dtype).workspace_bytes for largest in (False, True))
        low, high = sorted(ends)
        return low, high

    def limits(self, kv_dtype: KVDtype, workspace: int) -> tuple[Limit, ...]:
        """The recipe's budgets, each with the bytes that no choice changes."""
        fixed = {
            "budget": (kv_bytes(self.slots(kv_dtype), self.recipe.batch) + workspace + self.target.overhead_bytes, "resident_bytes"),
            "weights_budget": (0, "encoded_bytes"),
            "max_artifact": (self.small_bytes, "encoded_bytes"),
        }
        return tuple(Limit(name, limit, *fixed[name]) for name, limit in limits_of(self.recipe).items())  # pyright: ignore[reportArgumentType]

    def ledger(self, encodings: Mapping[str, str], kv_dtype: KVDtype, memory: MemoryPlan) -> Ledger:
        """Where the bytes of this choice go."""
        groups = self.costs.plan(encodings)
        encoded, resident = sum(g.encoded_bytes for g in groups), sum(g.resident_bytes for g in groups)
        kv = kv_bytes(self.slots(kv_dtype), self.recipe.batch)
        limits: dict[BudgetName, int] = limits_of(self.recipe)  # pyright: ignore[reportAssignmentType]
        return Ledger(
            logical_parameters=self.costs.logical_parameters,
            encoded_weight_bytes=encoded,
            resident_weight_bytes=resident,
            kv_bytes=kv,
            workspace_bytes=memory.workspace_bytes,
            runtime_overhead_bytes=self.target.overhead_bytes,
            total_device_bytes=resident + kv + memory.workspace_bytes + self.target.overhead_bytes,
            artifact_bytes_estimate=encoded + self.small_bytes,
            budgets=limits,
        )

    def extreme(self, largest: bool, by: str = "encoded_bytes") -> dict[str, str]:
        """The encodings of the smallest or largest option of every group."""
        pick = max if largest else min
        return {name: pick(g.options, key=lambda o: getattr(o, by)).format for g in self.costs.groups for name in g.params}

    def lossless(self) -> dict[str, str]:
        """Every tensor in the smallest format that holds it exactly: as it is stored in the source."""
        dtypes, out = {p.name: p.dtype for p in self.graph.params}, {}
        for group in self.costs.groups:
            exact = [o for o in group.options if all(FORMATS[o.format].is_lossless_for(dtypes[n]) for n in group.params)]
            out.update(dict.fromkeys(group.params, min(exact, key=lambda o: o.encoded_bytes).format))
        return out

    def check(self) -> None:
        """InfeasibleError naming every budget that nothing meets."""
        kv = min(self.kv_choices(), key=lambda d: kv_bytes(self.slots(d), 1))
        check_feasible(self.costs, self.limits(kv, self.workspace_range(kv)[0]))


@dataclass(frozen=True, slots=True)
class Choice:
    """What the search settled on."""

    allocation: Allocation
    kv_dtype: KVDtype
    memory: MemoryPlan


def prepare(path: Path, recipe: Recipe) -> Prepared:
    """Read headers, canonicalise, lay out and cost everything. Errors: see module docstring."""
    graph, source, info = open_checkpoint(path)
    graph, records = run_pipeline(graph, import_pipeline(recipe.relayout))
    target = get_target(recipe.target)
    parameters = sum(p.size for p in graph.params)
    resolved = resolve(recipe, logical_parameters=parameters, context=info.context_length, candidates=target.candidates)
    costs = cost_table(graph, target, resolved.candidates)
    return Prepared(path, graph, source, info, resolved, target, costs, records, _small_bytes(graph, source))


def _small_bytes(graph: Graph, source: SourceCheckpoint) -> int:
    """A bound on what the artifact holds beside weight pages: JSON that grows with the graph, the page index, headers, tokenizer files."""
    tokenizer = sum(map(len, source.tokenizer_files().values()))
    pages = sum(p.size for p in graph.params) * 4 // (256 << 10) + len(graph.params) + 64
    return tokenizer + 400 * len(graph.nodes) + 1200 * len(graph.params) + 64 * pages + (64 << 10)


def choose(prepared: Prepared, table: ScoreTable) -> Choice:
    """The allocation and KV dtype with the least predicted KL under all budgets; `table` has scores.

    Workspace depends a little on the formats: where a choice needs more than was set aside for it, it is solved again with that much.
    """
    best: tuple[float, Choice] | None = None
    failure: InfeasibleError | None = None
    for kv_dtype in prepared.kv_choices():
        try:
            choice = _settled(prepared, table, kv_dtype)
        except InfeasibleError as e:
            failure = e
            continue
        total = choice.allocation.solve.objective + KV_KL[kv_dtype]
        if best is None or total < best[0]:
            best = (total, choice)
    if best is None:
        assert failure is not None
        raise failure
    return best[1]


def _settled(prepared: Prepared, table: ScoreTable, kv_dtype: KVDtype) -> Choice:
    workspace = prepared.workspace_range(kv_dtype)[0]
    while True:
        allocation = allocate(table, prepared.limits(kv_dtype, workspace))
        memory = prepared.memory(allocation.encodings, kv_dtype)
        if memory.workspace_bytes <= workspace:
            return Choice(allocation, kv_dtype, memory)
        workspace = memory.workspace_bytes


def feasible(prepared: Prepared) -> dict[str, tuple[int, int]]:
    """Smallest and largest figure of every budget's kind, whether asked for or not."""
    recipe = msgspec.structs.replace(prepared.recipe, budget=0, weights_budget=0, max_artifact=0)
    asked = replace(prepared, recipe=recipe)
    small, large = asked.kv_choices()[-1], asked.kv_choices()[0]
    low = asked.limits(small, asked.workspace_range(small)[0])
    high = asked.limits(large, asked.workspace_range(large)[1])
    return {a.name: (feasible_range(asked.costs, a)[0], feasible_range(asked.costs, b)[1]) for a, b in zip(low, high, strict=True)}
