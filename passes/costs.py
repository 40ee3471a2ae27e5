"""What every format of every choice group costs in bytes, from headers alone: the ScoreTable before any score.

In: a graph, a target, candidate formats. Out: one GroupScores per choice group, then one per remaining param (norms, biases) whose only
option is its stored dtype. Encoded bytes are those of the pages (padding included); resident bytes those that the target allocates, matrices
that it loads together counted together. Options of a choice group: the candidates, and the weights as stored, which lose nothing.
Refused: candidates that are no number formats (UsageError).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from ..artifacts.formats import FORMATS, Format
from ..artifacts.layouts import PageGroup, StoredTensor, plan_pages
from ..schemas.errors import UsageError
from ..schemas.graph import Graph, Param, choice_groups
from ..schemas.scores import GroupScores, Option, ScoreTable
from .targets import Target


def cost_table(graph: Graph, target: Target, candidates: Sequence[str] = ()) -> ScoreTable:
    """The unscored table; no `candidates` = the target's own."""
    if unknown := [name for name in candidates if name not in FORMATS]:
        raise UsageError(f"candidates: number format {unknown[0]!r} is unknown; valid names: {', '.join(FORMATS)}")
    names, table = tuple(candidates) or target.candidates, graph.param_table()
    groups = choice_groups(graph)
    chosen = {name for group in groups for name in group}
    rest = [p.name for p in graph.params if p.name not in chosen]
    loads = _loads(graph)
    scores = [_group(loads, target, [table[n] for n in group], names) for group in groups]
    scores += [_group(loads, target, [table[name]], ()) for name in rest]
    return ScoreTable(scored=False, stats="", logical_parameters=sum(p.size for p in graph.params), groups=tuple(scores))


def stored_tensor(param: Param, format_name: str) -> StoredTensor:
    """The layouts' view of a param."""
    return StoredTensor(param.name, param.shape, param.dtype, param.role, param.layer, FORMATS[format_name])


def pages_of(param: Param, format_name: str) -> PageGroup:
    """A param's pages as if it were alone. Slabs start at aligned offsets, so the pages of several tensors cost the sum of each."""
    return _pages_like(replace(param, name="alone", layer=0, encoding=""), format_name)


@cache
def _pages_like(param: Param, format_name: str) -> PageGroup:
    """Layers are alike: what matters is shape, dtype and role."""
    (group,) = plan_pages([stored_tensor(param, format_name)]).groups
    return group


def _group(loads: Mapping[str, str], target: Target, params: list[Param], candidates: Sequence[str]) -> GroupScores:
    matrices: dict[str, list[Param]] = {}
    for p in params:
        matrices.setdefault(loads[p.name], []).append(p)
    dtypes = {p.dtype for p in params}
    stored = dtypes.pop() if len(dtypes) == 1 else "f32"  # no narrower format holds two dtypes exactly
    options = (
        Option(
            format=name,
            encoded_bytes=sum(pages_of(p, name).total_bytes for p in params),
            resident_bytes=sum(_resident(target, name, together) for together in matrices.values()),
        )
        for name in dict.fromkeys((*candidates, f"{stored}/1"))
    )
    return GroupScores(params=tuple(p.name for p in params), options=tuple(options))


def _resident(target: Target, format_name: str, params: list[Param]) -> int:
    if len(params[0].shape) == 1:
        return target.vector_item_bytes * sum(p.size for p in params)
    pages = pages_of(params[0], format_name)
    side_by_side = pages.count if pages.slots[0].layout.axis == 1 else 1
    return target.resident_bytes(format_name, sum(p.shape[0] for p in params), params[0].shape[1], side_by_side)


def _loads(graph: Graph) -> dict[str, str]:
    """Param -> what the runtime loads it with: linears of one input form one matrix, but for weights that something else reads, too."""
    readers = Counter(i for n in graph.nodes for i in set(n.inputs))
    together = {p.name: f"@{p.name}" for p in graph.params}
    for node in graph.nodes:
        if node.op == "linear" and node.inputs[1] in together and readers[node.inputs[1]] == 1:
            together[node.inputs[1]] = node.inputs[0]
    return together


def formats_of(table: ScoreTable) -> tuple[Format, ...]:
    """Every format that the table offers, once."""
    return tuple(FORMATS[name] for name in dict.fromkeys(o.format for g in table.groups for o in g.options))
