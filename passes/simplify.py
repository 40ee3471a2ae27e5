"""Removes what a graph does not need without changing any value: the rewrite behind `canonical`.

1. a node that returns its input (scale by 1, reshape to the same shape, ...) is replaced by that input; the types must agree
2. of two pure nodes with the same op, inputs and attributes, and of two equal constants, the first serves both
3. nodes, constants and params that no output needs are dropped
4. values are numbered v0, v1, .. in order
Named outputs keep their names. Adding 0 turns -0 into 0, which compares equal: shift by 0 counts as identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..schemas.graph import Graph, Node
from ..schemas.ops import attrs_of
from ..schemas.verify import infer

# op -> is this node the identity, given that its output has its input's type
IDENTITIES: dict[str, Callable[[Node], bool]] = {
    "scale": lambda n: attrs_of(n)["by"] == 1,
    "shift": lambda n: attrs_of(n)["by"] == 0,
    "transpose": lambda n: list(attrs_of(n)["perm"]) == sorted(attrs_of(n)["perm"]),  # pyright: ignore[reportArgumentType]
    "reshape": lambda n: True,
    "slice": lambda n: True,
    "repeat": lambda n: True,
}
IMPURE = frozenset({"attention"})  # it appends to its KV slot


def simplify(graph: Graph) -> Graph:
    """The simplified graph; simplifying it again changes nothing."""
    return _renumber(_drop_dead(_merge(graph)))


def _merge(graph: Graph) -> Graph:
    types, _ = infer(graph)
    same: dict[str, str] = {}
    seen: dict[object, str] = {}
    for const in graph.consts:
        same[const.name] = seen.setdefault(const.values, const.name)
    nodes = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(i, i) for i in node.inputs))
        key = (node.op, node.inputs, node.attrs)
        if node.op in IDENTITIES and types[node.output] == types[node.inputs[0]] and IDENTITIES[node.op](node):
            same[node.output] = node.inputs[0]
        elif node.op not in IMPURE and key in seen:
            same[node.output] = seen[key]
        else:
            seen[key] = node.output
            nodes.append(node)
    outputs = tuple((name, same.get(value, value)) for name, value in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _drop_dead(graph: Graph) -> Graph:
    needed = {value for _, value in graph.outputs}
    nodes = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            nodes.append(node)
            needed.update(node.inputs)
    return replace(
        graph,
        nodes=tuple(reversed(nodes)),
        consts=tuple(c for c in graph.consts if c.name in needed),
        params=tuple(p for p in graph.params if p.name in needed),
    )


def _renumber(graph: Graph) -> Graph:
    taken = {x.name for part in (graph.inputs, graph.consts, graph.params) for x in part}
    prefix = "v"
    while any(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in taken):
        prefix += "_"
    new = {node.output: f"{prefix}{i}" for i, node in enumerate(graph.nodes)}
    nodes = tuple(replace(n, output=new[n.output], inputs=tuple(new.get(i, i) for i in n.inputs)) for n in graph.nodes)
    return replace(graph, nodes=nodes, outputs=tuple((name, new.get(value, value)) for name, value in graph.outputs))
