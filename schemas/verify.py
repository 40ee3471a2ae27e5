"""The verifier: every rule that a graph must keep, as a table; `verify` returns all violations, not the first.

A violation reads `node %v12 norm: weight [4096] != last dim [2048]`. Types are inferred on the way; a value whose type can't be
inferred is reported once and what depends on it is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .errors import VerifyError
from .graph import ROLES, Graph, Node, Type
from .ops import OPS, REQUIRED, OpError, attrs_of

Rule = Callable[[Graph], Iterator[str]]


def infer(graph: Graph) -> tuple[dict[str, Type], tuple[str, ...]]:
    """Types of all names, and the violations of op rules met on the way."""
    types: dict[str, Type] = {i.name: i.type for i in graph.inputs}
    types.update((c.name, Type("f64", (len(c.values),))) for c in graph.consts)
    types.update((p.name, Type(p.dtype, p.shape)) for p in graph.params)
    broken: list[str] = []
    for node in graph.nodes:
        problem = _shape_problem(node)
        if problem is None and all(i in types for i in node.inputs if i):
            try:
                types[node.output] = OPS[node.op].rule([types[i] for i in node.inputs if i], attrs_of(node))
            except OpError as e:
                problem = str(e)
        if problem is not None:
            broken.append(f"node %{node.output} {node.op}: {problem}")
    return types, tuple(broken)


def _shape_problem(node: Node) -> str | None:
    """Unknown op, wrong arity, or attributes of the wrong name, type or form."""
    op = OPS.get(node.op)
    if op is None:
        return f"unknown op; the table has {', '.join(sorted(OPS))}"
    required = sum(not i.endswith("?") for i in op.inputs)
    if not required <= len(node.inputs) <= len(op.inputs) or "" in node.inputs[:required] or node.inputs[-1] == "":
        return f"takes inputs ({', '.join(op.inputs)}), got {len(node.inputs)}"
    given = dict(node.attrs)
    if [k for k, _ in node.attrs] != sorted(given):
        return "attributes are not sorted and unique"
    for key, value in node.attrs:
        if key not in op.attrs:
            return f"unknown attribute {key}; it has {', '.join(op.attrs) or 'none'}"
        if type(value) is not op.attrs[key].type:
            return f"attribute {key} must be {op.attrs[key].type.__name__}, not {value!r}"
        if value == op.attrs[key].default:
            return f"attribute {key} equals its default and must be left out"
    missing = [k for k, a in op.attrs.items() if a.default is REQUIRED and k not in given]
    return f"attribute {missing[0]} is missing" if missing else None


def _ops(graph: Graph) -> Iterator[str]:
    yield from infer(graph)[1]


def _ssa(graph: Graph) -> Iterator[str]:
    names = [x.name for part in (graph.inputs, graph.consts, graph.params) for x in part] + [n.output for n in graph.nodes]
    yield from (f"name {n!r} is defined {c} times" for n, c in Counter(names).items() if c > 1)


def _order(graph: Graph) -> Iterator[str]:
    known = {x.name for part in (graph.inputs, graph.consts, graph.params) for x in part}
    for node in graph.nodes:
        yield from (f"node %{node.output} {node.op}: reads {i!r} before it is defined" for i in node.inputs if i and i not in known)
        known.add(node.output)
    yield from (f"output {name}: value {value!r} is not defined" for name, value in graph.outputs if value not in known)


def _outputs(graph: Graph) -> Iterator[str]:
    names = [name for name, _ in graph.outputs]
    yield from (f"output {n} is published {c} times" for n, c in Counter(names).items() if c > 1)
    if "logits" not in names:
        yield "output logits is missing"


def _used(graph: Graph) -> Iterator[str]:
    read = {i for n in graph.nodes for i in n.inputs} | {v for _, v in graph.outputs}
    for kind, part in (("param @", graph.params), ("const $", graph.consts)):
        yield from (f"{kind}{x.name} is never used" for x in part if x.name not in read)
    yield from (f"node %{n.output} {n.op}: its value is never used" for n in graph.nodes if n.output not in read)


def _params(graph: Graph) -> Iterator[str]:
    for p in graph.params:
        if p.role not in ROLES:
            yield f"param @{p.name}: role {p.role!r} is none of {', '.join(ROLES)}"
        if not p.shape or any(d < 1 for d in p.shape):
            yield f"param @{p.name}: shape {list(p.shape)} has no elements"


def _caches(graph: Graph) -> Iterator[str]:
    owners: Counter[object] = Counter()
    for node in graph.nodes:
        if node.op == "attention" and "cache" in dict(node.attrs):
            attrs = attrs_of(node)
            if attrs["owns"]:
                owners[attrs["cache"]] += 1
            elif not owners[attrs["cache"]]:
                yield f"node %{node.output} attention: reads KV slot {attrs['cache']} before its owner filled it"
    yield from (f"KV slot {slot} has {n} owners" for slot, n in owners.items() if n > 1)


RULES: tuple[Rule, ...] = (_ssa, _order, _ops, _outputs, _used, _params, _caches)


def verify(graph: Graph) -> tuple[str, ...]:
    """All violations, in rule order; empty when the graph is sound."""
    return tuple(v for rule in RULES for v in rule(graph))


def checked(graph: Graph) -> Graph:
    """The graph itself; raises VerifyError with all violations."""
    if violations := verify(graph):
        raise VerifyError(violations)
    return graph
