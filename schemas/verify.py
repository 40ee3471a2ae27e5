"""The verifier: every rule that a graph must keep, as a table; `verify` returns all violations, not the first.

A violation reads `node %v12 norm: weight [4096] != last dim [2048]`. Types are inferred on the way; a value whose type can't be
inferred is reported once and what depends on it is left alone. Graphs come from files too: whatever the fields hold (of their declared
Python types), the answer is a list of violations, never another exception.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from .build import IDS, POSITIONS
from .errors import VerifyError
from .graph import DTYPES, ROLES, Graph, Node, Type
from .op_types import OpError, text
from .ops import INTEGER_INPUTS, OPS, REQUIRED, Attr, attrs_of

Rule = Callable[[Graph], Iterator[str]]

_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_ENCODING = re.compile(r"[A-Za-z0-9_.\-]+/[0-9]+|")


@lru_cache(maxsize=16)
def infer(graph: Graph) -> tuple[Mapping[str, Type], tuple[str, ...]]:
    """Types of all names, and the violations of op rules met on the way."""
    types: dict[str, Type] = {i.name: i.type for i in graph.inputs}
    types.update((c.name, Type("f64", (len(c.values),))) for c in graph.consts)
    types.update((p.name, Type(p.dtype, p.shape)) for p in graph.params)
    broken: list[str] = []
    for node in graph.nodes:
        problem = _form_problem(node)
        if problem is None and all(i in types for i in node.inputs if i):
            try:
                _check_operands(node, types)
                types[node.output] = OPS[node.op].rule([types[i] for i in node.inputs if i], attrs_of(node))
            except OpError as e:
                problem = str(e)
        if problem is not None:
            broken.append(f"node %{node.output} {node.op}: {problem}")
    return MappingProxyType(types), tuple(broken)


def _form_problem(node: Node) -> str | None:
    """Unknown op, wrong arity, or attributes of the wrong name, type or form."""
    op = OPS.get(node.op)
    if op is None:
        return f"unknown op; the table has {', '.join(sorted(OPS))}"
    required = sum(not i.endswith("?") for i in op.inputs)
    if not required <= len(node.inputs) <= len(op.inputs) or "" in node.inputs[:required] or node.inputs[-1] == "":
        return f"takes inputs ({', '.join(op.inputs)}), got ({', '.join(i or '_' for i in node.inputs)})"
    given = dict(node.attrs)
    if [k for k, _ in node.attrs] != sorted(given):
        return "attributes are not sorted and unique"
    for key, value in node.attrs:
        if key not in op.attrs:
            return f"unknown attribute {key}; it has {', '.join(op.attrs) or 'none'}"
        if not _is_value(op.attrs[key], value):
            return f"attribute {key} must be {_kind(op.attrs[key])}, not {value!r}"
        if value == op.attrs[key].default:
            return f"attribute {key} equals its default and must be left out"
    missing = [k for k, a in op.attrs.items() if a.default is REQUIRED and k not in given]
    return f"attribute {missing[0]} is missing" if missing else None


def _is_value(attr: Attr, value: object) -> bool:
    """Exactly of the attribute's type (True is no int), finite, tuples with items of theirs."""
    if isinstance(value, tuple) and attr.type is tuple:
        return all(type(item) in attr.items for item in value)
    return type(value) is attr.type and not (isinstance(value, float) and not math.isfinite(value))


def _kind(attr: Attr) -> str:
    if attr.type is tuple:
        return f"a list of {' and '.join(t.__name__ for t in attr.items)}"
    return "a finite float" if attr.type is float else attr.type.__name__


def _check_operands(node: Node, types: Mapping[str, Type]) -> None:
    """OpError unless every input has axes, none empty, and is an integer exactly where the table says so."""
    for wanted, name in zip(OPS[node.op].inputs, node.inputs, strict=False):
        if not name:
            continue
        t, integer, label = types[name], wanted in INTEGER_INPUTS, wanted.rstrip("?")
        if integer != (t.dtype == "i32"):
            raise OpError(f"{label} must be {'i32' if integer else 'real'}, not {t}")
        if not t.shape or any(isinstance(d, int) and d < 1 for d in t.shape):
            raise OpError(f"{label} {t} has no elements")


def _names(graph: Graph) -> Iterator[str]:
    names = [graph.name, *(x.name for part in (graph.inputs, graph.consts, graph.params) for x in part)]
    names += [*(n.output for n in graph.nodes), *(name for name, _ in graph.outputs), *graph.facts]
    yield from (f"name {n!r} must be of letters, digits, '_', '.' and '-'" for n in names if not _NAME.fullmatch(n))


def _ssa(graph: Graph) -> Iterator[str]:
    names = [x.name for part in (graph.inputs, graph.consts, graph.params) for x in part] + [n.output for n in graph.nodes]
    yield from (f"name {n!r} is defined {c} times" for n, c in Counter(names).items() if c > 1)


def _inputs(graph: Graph) -> Iterator[str]:
    if graph.inputs != (IDS, POSITIONS):
        got = ", ".join(f"%{i.name} : {i.type}" for i in graph.inputs)
        yield f"inputs must be %ids : {IDS.type}, %positions : {POSITIONS.type}, not {got or 'none'}"


def _consts(graph: Graph) -> Iterator[str]:
    for c in graph.consts:
        if not c.values or not all(map(math.isfinite, c.values)):
            yield f"const ${c.name}: must be finite numbers, at least one"


def _params(graph: Graph) -> Iterator[str]:
    for p in graph.params:
        if p.role not in ROLES:
            yield f"param @{p.name}: role {p.role!r} is none of {', '.join(ROLES)}"
        if p.dtype not in DTYPES:
            yield f"param @{p.name}: dtype {p.dtype!r} is none of {', '.join(DTYPES)}"
        if not p.shape or any(d < 1 for d in p.shape):
            yield f"param @{p.name}: shape {text(p.shape)} has no elements"
        if p.layer is not None and p.layer < 0:
            yield f"param @{p.name}: layer {p.layer} must be >= 0"
        if not _ENCODING.fullmatch(p.encoding):
            yield f"param @{p.name}: encoding {p.encoding!r} is no NAME/VERSION"


def _order(graph: Graph) -> Iterator[str]:
    known = {x.name for part in (graph.inputs, graph.consts, graph.params) for x in part}
    for node in graph.nodes:
        yield from (f"node %{node.output} {node.op}: reads {i!r} before it is defined" for i in node.inputs if i and i not in known)
        known.add(node.output)
    yield from (f"output {name}: value {value!r} is not defined" for name, value in graph.outputs if value not in known)


def _ops(graph: Graph) -> Iterator[str]:
    yield from infer(graph)[1]


def _outputs(graph: Graph) -> Iterator[str]:
    counts = Counter(name for name, _ in graph.outputs)
    yield from (f"output {n} is published {c} times" for n, c in counts.items() if c > 1)
    if "logits" not in counts:
        yield "output logits is missing"
    elif (t := infer(graph)[0].get(dict(graph.outputs)["logits"])) and (t.dtype != "f32" or t.shape[:-1] != IDS.type.shape):
        yield f"output logits must be f32[B, T, V], not {t}"


def _used(graph: Graph) -> Iterator[str]:
    read = {i for n in graph.nodes for i in n.inputs} | {v for _, v in graph.outputs}
    for kind, part in (("param @", graph.params), ("const $", graph.consts)):
        yield from (f"{kind}{x.name} is never used" for x in part if x.name not in read)
    yield from (f"node %{n.output} {n.op}: its value is never used" for n in graph.nodes if n.output not in read)


def _caches(graph: Graph) -> Iterator[str]:
    owners: dict[object, Node] = {}
    for node in graph.nodes:
        if node.op != "attention" or _form_problem(node):
            continue
        attrs = attrs_of(node)
        owner = owners.get(attrs["cache"])
        where = f"node %{node.output} attention: KV slot {attrs['cache']}"
        if attrs["owns"]:
            owners[attrs["cache"]] = node
            if owner:
                yield f"{where} is owned by %{owner.output} already"
        elif owner is None:
            yield f"{where} is read before its owner filled it"
        elif node.inputs[1:4] != owner.inputs[1:4] or attrs["window"] != attrs_of(owner)["window"]:
            yield f"{where} holds the k, v, positions and window of %{owner.output}, not these"


RULES: tuple[Rule, ...] = (_names, _ssa, _inputs, _consts, _params, _order, _ops, _outputs, _used, _caches)


def verify(graph: Graph) -> tuple[str, ...]:
    """All violations, in rule order; empty when the graph is sound."""
    return tuple(v for rule in RULES for v in rule(graph))


def checked(graph: Graph) -> Graph:
    """The graph itself; raises VerifyError with all violations."""
    if violations := verify(graph):
        raise VerifyError(violations)
    return graph
