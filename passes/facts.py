"""Facts that passes ensure and later passes or stages rely on; each has a check that yields what is broken.

A fact is a word in `Graph.facts`. The pipeline evaluates every fact that a graph claims, after each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..artifacts.formats import FORMATS
from ..schemas.graph import LOSSLESS_ROLES, Graph, choice_groups
from .simplify import simplify

CANONICAL = "canonical"  # nothing to simplify, values numbered in order
ENCODED = "encoded"  # every param has a known format, choice groups agree, lossless roles lose nothing


def _canonical(graph: Graph) -> Iterator[str]:
    simple = simplify(graph)
    if simple != graph:
        yield f"simplifying would still change it ({len(graph.nodes)} -> {len(simple.nodes)} nodes)"


def _encoded(graph: Graph) -> Iterator[str]:
    for p in graph.params:
        if p.encoding not in FORMATS:
            yield f"@{p.name}: encoding {p.encoding!r} is not a number format"
        elif p.role in LOSSLESS_ROLES and not FORMATS[p.encoding].is_lossless_for(p.dtype):
            yield f"@{p.name}: role {p.role} must be lossless, {p.encoding} does not hold {p.dtype}"
    table = graph.param_table()
    for group in choice_groups(graph):
        if len(found := sorted({table[name].encoding for name in group})) > 1:
            yield f"{', '.join(group)} must share a format, not {found}"


FACTS: dict[str, Callable[[Graph], Iterator[str]]] = {CANONICAL: _canonical, ENCODED: _encoded}


def broken_facts(graph: Graph) -> tuple[str, ...]:
    """What is wrong with each fact that `graph` claims, as `fact: problem`."""
    return tuple(f"{name}: {problem}" for name in graph.facts for problem in FACTS[name](graph))
