"""A graph cut into segments of about a layer each, so that one segment's weights and a boundary's values are all that has to be in memory.

In: a graph. Out: segments in order. A segment starts where a node reads a weight of another layer than the nodes before it, and the last
one after `hidden.final`: it works position by position and holds the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes. `reads`: values computed before that they use; `makes`: values computed here that later segments use."""

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def segments(graph: Graph) -> tuple[Segment, ...]:
    """All nodes of `graph`, in order."""
    groups = _groups(graph)
    readers: dict[str, int] = {}
    for at, nodes in enumerate(groups):
        readers.update((name, at) for node in nodes for name in node.inputs)
    computed: set[str] = set()
    out = []
    for at, nodes in enumerate(groups):
        here = [node.output for node in nodes]
        used = {name for node in nodes for name in node.inputs}
        makes = tuple(name for name in here if readers.get(name, -1) > at)
        out.append(Segment(tuple(nodes), tuple(sorted(used & computed)), makes))
        computed.update(here)
    return tuple(out)


def _groups(graph: Graph) -> list[list[Node]]:
    params, final = graph.param_table(), graph.output("hidden.final")
    groups: list[list[Node]] = []
    layer: object = object()
    for node in graph.nodes:
        mine = [params[i].layer for i in node.inputs if i in params]
        if not groups or (mine and mine[0] != layer) or groups[-1][-1].output == final:
            groups.append([])
            layer = mine[0] if mine else layer
        groups[-1].append(node)
    return groups
