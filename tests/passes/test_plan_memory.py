"""The planned peak against the measured one: never below it and within 2 %, for windows, batches, KV dtypes, formats, odd lengths.

Nor does any way of using a session need more: every position's logits at once, the last one's alone, pieces of odd lengths.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from thinlm.certify.checks.memory import memory_checks
from thinlm.certify.checks.torch_memory import StorageMeter
from thinlm.passes import import_pipeline, run_pipeline
from thinlm.passes.costs import cost_table
from thinlm.passes.plan_memory import plan_memory
from thinlm.passes.targets import get_target
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model, ModelOptions, Session
from thinlm.schemas.kv import kv_bytes, kv_slots
from thinlm.schemas.plan import MemoryPlan
from thinlm.schemas.recipe import Recipe
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_packed import Packed, encoded

CPU = get_target("cpu")
WIDE = Dims(hidden=256, ffn=704, layers=2, heads=4, kv_heads=2, head_dim=64, vocab=3000, windows=(0, 96), tied=True, bias=False)
DEEP = Dims(hidden=192, ffn=320, layers=3, heads=6, kv_heads=3, head_dim=32, vocab=900, windows=(0, 0, 0), tied=False, bias=True)

CASES = {
    "scores at the peak": (WIDE, "int4-sym-g64/1", Recipe(context=1024, kv_dtype="f16")),
    "f32 cache": (WIDE, "int8-sym-g128/1", Recipe(context=700, kv_dtype="f32")),
    "short context": (WIDE, "int4-aff-g32/1", Recipe(context=64, kv_dtype="f16")),
    "last chunk is short": (WIDE, "int3-sym-g64/1", Recipe(context=300, kv_dtype="bf16")),
    "batch": (DEEP, "int4-sym-g32/1", Recipe(context=512, kv_dtype="f16", batch=3)),
    "as stored": (DEEP, "f32/1", Recipe(context=256, kv_dtype="f32")),
    "floats": (WIDE, "bf16/1", Recipe(context=512, kv_dtype="f16", prefill_chunk=32)),
    "few positions in the last piece": (WIDE, "int6-sym-g64/1", Recipe(context=101, kv_dtype="f16")),
    "one position in the last piece": (WIDE, "int2-aff-g32/1", Recipe(context=65, kv_dtype="f16")),
    "a single position": (WIDE, "int4-sym-g64/1", Recipe(context=1, kv_dtype="f16")),
}
USES: dict[str, Callable[[Session, np.ndarray], object]] = {
    "append": lambda s, ids: s.append(ids),
    "append_pieces": lambda s, ids: [None for _ in s.append_pieces(ids)],
    "append in odd lengths": lambda s, ids: [len(s.append(ids[at : at + 37])) for at in range(0, len(ids), 37)],
    "append and hold": lambda s, ids: [s.append(ids[at : at + 50]) for at in range(0, len(ids), 50)],
    "advance": lambda s, ids: s.advance(ids),
    "advance one by one": lambda s, ids: [s.advance(ids[at : at + 1]) for at in range(min(9, len(ids)))],
}


@pytest.mark.parametrize(("dims", "matrices", "recipe"), CASES.values(), ids=list(CASES))
def test_the_plan_is_the_measured_peak(dims: Dims, matrices: str, recipe: Recipe) -> None:
    load, planned, plan = planned_model(dims, matrices, recipe)
    peak, _ = memory_checks(load, "torch_cpu", np.arange(200) % dims.vocab, planned)
    assert peak.value is not None
    assert peak.value <= planned <= 1.02 * peak.value, f"{planned / peak.value - 1:+.2%} at {plan.peak_node}: {plan.live}"
    assert sum(v.bytes for v in plan.live) == plan.workspace_bytes


@pytest.mark.parametrize(("dims", "matrices", "recipe"), CASES.values(), ids=list(CASES))
def test_no_use_of_a_session_needs_more_than_the_plan(dims: Dims, matrices: str, recipe: Recipe) -> None:
    load, planned, _ = planned_model(dims, matrices, recipe)
    assert recipe.context is not None
    ids = np.arange(recipe.context) % dims.vocab
    for name, use in USES.items():
        with StorageMeter() as meter:
            model = load()
            with model.session() as session:
                use(session, ids)
            peak = meter.peak
            model.close()
        assert peak <= planned, f"{name}: {peak / planned - 1:+.2%}"


def planned_model(dims: Dims, matrices: str, recipe: Recipe) -> tuple[Callable[[], Model], int, MemoryPlan]:
    """How to load it, the bytes planned in all, the plan of its workspace."""
    bare, _ = run_pipeline(tiny_graph(dims), import_pipeline())
    graph = encoded(bare, matrices)
    weights = Packed(graph, MemoryWeights(bare))
    assert recipe.context is not None
    assert recipe.kv_dtype != "auto"
    options = ModelOptions(context=recipe.context, vocab=dims.vocab, kv_dtype=recipe.kv_dtype, batch=recipe.batch, prefill_chunk=recipe.prefill_chunk)
    table = cost_table(bare, CPU, (matrices,))
    resident = sum(g.option(graph.param_table()[g.params[0]].encoding).resident_bytes for g in table.groups)
    kv = kv_bytes(kv_slots(graph, recipe.context, recipe.block, recipe.kv_dtype), recipe.batch)
    plan = plan_memory(graph, CPU, recipe)
    return lambda: Model(graph, weights, TorchBackend(), options), resident + kv + plan.workspace_bytes, plan


def test_chunks_are_bounded_by_windowed_blocks_and_context() -> None:
    graph = encoded(run_pipeline(tiny_graph(WIDE), import_pipeline())[0], "int4-sym-g64/1")
    assert plan_memory(graph, CPU, Recipe(context=1024, kv_dtype="f16", prefill_chunk=256)).prefill_chunk == 64
    assert plan_memory(graph, CPU, Recipe(context=10, kv_dtype="f16")).prefill_chunk == 10


def test_more_context_never_needs_less() -> None:
    graph = encoded(run_pipeline(tiny_graph(DEEP), import_pipeline())[0], "int4-sym-g64/1")
    sizes = [plan_memory(graph, CPU, Recipe(context=c, kv_dtype="f16")).workspace_bytes for c in (16, 64, 100, 128, 500, 1024)]
    assert sizes == sorted(sizes)
