"""Byte costs: the sum over groups is what the layouts write and what the runtime holds, for any choice of formats."""

from __future__ import annotations

import random

import pytest

from thinlm.artifacts.formats import FORMATS
from thinlm.artifacts.layouts import plan_pages
from thinlm.passes import import_pipeline, run_pipeline
from thinlm.passes.costs import cost_table, formats_of, stored_tensor
from thinlm.passes.targets import TARGETS, get_target
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.program import load_groups, merged_linears
from thinlm.schemas.errors import UsageError
from thinlm.schemas.graph import LOSSLESS_ROLES
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_packed import Packed

CPU = get_target("cpu")
GRAPHS = {
    "tied": run_pipeline(tiny_graph(Dims()), import_pipeline())[0],
    "untied, odd": run_pipeline(tiny_graph(Dims(hidden=72, ffn=300, vocab=5000, tied=False)), import_pipeline())[0],
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=list(GRAPHS))
@pytest.mark.parametrize("seed", range(5))
def test_bytes_are_those_of_the_layouts(graph, seed: int) -> None:
    table, rng = cost_table(graph, CPU), random.Random(seed)
    picks = [rng.choice(g.options) for g in table.groups]
    names = {name: o.format for g, o in zip(table.groups, picks, strict=True) for name in g.params}
    pages = plan_pages([stored_tensor(p, names[p.name]) for p in graph.params])
    assert sum(o.encoded_bytes for o in picks) == pages.page_bytes
    assert names.keys() == {p.name for p in graph.params}


@pytest.mark.parametrize("matrices", ["int4-sym-g32/1", "int3-aff-g64/1", "int6-sym-g128/1", "f32/1", "fp8-row/1"])
def test_resident_bytes_are_those_of_the_runtime(matrices: str) -> None:
    graph = GRAPHS["untied, odd"]
    table = cost_table(graph, CPU, (matrices,))
    names = {name: g.options[0].format for g in table.groups for name in g.params}  # the candidate, or what vectors are stored as
    loaded = graph.with_encodings(names)
    weights, backend = Packed(loaded, MemoryWeights(graph)), TorchBackend()
    params = loaded.param_table()
    held = 0
    for group in load_groups(loaded, merged_linears(loaded)):
        held += backend.load([params[n] for n in group], weights).nbytes
    assert sum(g.option(names[g.params[0]]).resident_bytes for g in table.groups) == held


def test_options_of_each_group() -> None:
    graph = GRAPHS["tied"]
    table, params = cost_table(graph, CPU), graph.param_table()
    assert table.logical_parameters == sum(p.size for p in graph.params)
    for group in table.groups:
        formats = [o.format for o in group.options]
        lossless = params[group.params[0]].role in LOSSLESS_ROLES
        assert formats == (["f32/1"] if lossless else [*CPU.candidates, "f32/1"])
        assert all(o.predicted_kl == 0 for o in group.options)
    assert [g.params for g in table.groups[:2]] == [("embed",), ("blk.0.attn.q", "blk.0.attn.k", "blk.0.attn.v")]
    assert {f.name for f in formats_of(table)} == {*CPU.candidates, "f32/1"}
    assert table.scored is False


def test_candidates_can_be_named() -> None:
    table = cost_table(GRAPHS["tied"], CPU, ("int8-sym-g32/1", "f32/1"))
    assert [o.format for o in table.groups[0].options] == ["int8-sym-g32/1", "f32/1"]
    with pytest.raises(UsageError, match="'int5/1' is unknown; valid names: bf16/1"):
        cost_table(GRAPHS["tied"], CPU, ("int5/1",))


def test_targets() -> None:
    with pytest.raises(UsageError, match="valid names: cpu"):
        get_target("tpu")
    for target in TARGETS.values():
        assert set(target.candidates) <= set(FORMATS)
        assert len(target.candidates) == len(set(target.candidates)) >= 8


@pytest.mark.parametrize("name", ["bf16/1", "int8-sym-g128/1", "int4-aff-g32/1"])
def test_untying_costs_exactly_the_head(name: str) -> None:
    """A tied embedding is counted once, in the file and on the device."""
    totals = {}
    for tied in (True, False):
        graph = tiny_graph(Dims(tied=tied))
        table = cost_table(graph, get_target("cpu"), (name, "f32/1"))
        chosen = {g.params: g.option(name if len(g.options) > 1 else g.options[0].format) for g in table.groups}
        totals[tied] = (sum(o.encoded_bytes for o in chosen.values()), sum(o.resident_bytes for o in chosen.values()))
        head = chosen.get(("head",))
    assert head is not None
    assert (totals[False][0] - totals[True][0], totals[False][1] - totals[True][1]) == (head.encoded_bytes, head.resident_bytes)
