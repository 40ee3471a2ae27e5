"""The canonical text of a graph: `parse(print_graph(g)) == g` for every verified graph.

It is what goldens, diffs, bug reports and `thinc inspect --graph` use; one line per definition. `%` marks inputs and values, `@` params,
`$` consts, `_` an absent optional input. The type after a node's `:` is for the reader, and checked when parsed. `parse` refuses (InputError)
every text that is not exactly what `print_graph` gives for the graph it describes. The JSON form is in `graph_json.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from .errors import InputError
from .graph import AttrValue, Const, Graph, Input, Node, Param, Type
from .graph_json import attr_value, finite, from_json, to_json
from .verify import infer

__all__ = ["from_json", "parse", "print_graph", "to_json"]

_HEAD = re.compile(r"graph (?P<name>\S+) \[(?P<facts>.*)\]$")
_TYPE = r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
_LINES = {
    "input": re.compile(rf"input %(?P<name>\S+) : {_TYPE}$"),
    "const": re.compile(r"const \$(?P<name>\S+) = (?P<values>\[.*\])$"),
    "param": re.compile(rf"param @(?P<name>\S+) : {_TYPE} role=(?P<role>\w+)(?: layer=(?P<layer>\d+))?(?: encoding=(?P<encoding>\S+))?$"),
    "node": re.compile(r"%(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})? : (?P<type>.+)$"),
    "output": re.compile(r"output (?P<name>\S+) = [%@$](?P<value>\S+)$"),
}


def print_graph(graph: Graph) -> str:
    """The canonical text of a verified graph, newline-terminated."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    types, _ = infer(graph)
    sigil = {x.name: s for s, part in (("$", graph.consts), ("@", graph.params)) for x in part}

    def ref(name: str) -> str:
        return f"{sigil.get(name, '%')}{name}" if name else "_"

    yield f"graph {graph.name} [{', '.join(graph.facts)}]"
    yield from (f"input %{i.name} : {i.type}" for i in graph.inputs)
    yield from (f"const ${c.name} = {json.dumps(c.values)}" for c in graph.consts)
    yield from map(_param_line, graph.params)
    for n in graph.nodes:
        attrs = " {" + ", ".join(f"{k}={json.dumps(v)}" for k, v in n.attrs) + "}" if n.attrs else ""
        yield f"%{n.output} = {n.op}({', '.join(map(ref, n.inputs))}){attrs} : {types.get(n.output, '?')}"
    yield from (f"output {name} = {ref(value)}" for name, value in graph.outputs)


def _param_line(p: Param) -> str:
    layer = "" if p.layer is None else f" layer={p.layer}"
    encoding = f" encoding={p.encoding}" if p.encoding else ""
    return f"param @{p.name} : {Type(p.dtype, p.shape)} role={p.role}{layer}{encoding}"


def parse(text: str) -> Graph:
    """The graph that `text` prints; InputError names the first line that is not canonical. Run `verify` on the result."""
    lines = text.split("\n")
    head = _HEAD.match(lines[0])
    if head is None or lines.pop() != "":
        raise InputError("graph text: must start with 'graph NAME [FACTS]' and end with a newline")
    found: dict[str, list[Any]] = {kind: [] for kind in _LINES}
    for number, line in enumerate(lines[1:], 2):
        kind, match = next(((k, m) for k, r in _LINES.items() if (m := r.match(line))), ("", None))
        if match is None:
            raise InputError(f"graph text: line {number}: not a definition: {line[:80]!r}")
        try:
            found[kind].append(_READERS[kind](match.groupdict()))
        except (ValueError, RecursionError) as e:  # RecursionError: json's answer to thousands of brackets
            raise InputError(f"graph text: line {number}: {str(e)[:120]}: {line[:80]!r}") from e
    graph = Graph(
        head["name"],
        inputs=tuple(found["input"]),
        consts=tuple(found["const"]),
        params=tuple(found["param"]),
        nodes=tuple(found["node"]),
        outputs=tuple(found["output"]),
        facts=tuple(f for f in head["facts"].split(", ") if f),
    )
    for number, (got, canonical) in enumerate(zip_longest(lines, _lines(graph), fillvalue=""), 1):
        if got != canonical:
            raise InputError(f"graph text: line {number}: reads {got[:200]!r}, its canonical form is {canonical[:200]!r}")
    return graph


def _type(m: Mapping[str, str]) -> Type:
    dims = [d for d in m["shape"].split(", ") if d]
    return Type(m["dtype"], tuple(int(d) if d.lstrip("-").isdigit() else d for d in dims))


def _param(m: Mapping[str, str]) -> Param:
    shape = tuple(d for d in _type(m).shape if isinstance(d, int))
    return Param(m["name"], shape, m["dtype"], m["role"], None if m["layer"] is None else int(m["layer"]), m["encoding"] or "")


def _attrs(text: str | None) -> Iterator[tuple[str, AttrValue]]:
    decoder, at, text = json.JSONDecoder(), 0, text or ""
    while at < len(text):
        key, _, _ = text[at:].partition("=")
        value, at = decoder.raw_decode(text, at + len(key) + 1)
        yield key, attr_value(value)
        at += len(", ")


def _node(m: Mapping[str, str]) -> Node:
    inputs = tuple("" if i == "_" else i[1:] for i in m["inputs"].split(", ") if i)
    return Node(m["op"], inputs, m["name"], tuple(_attrs(m["attrs"])))


def _const(m: Mapping[str, str]) -> Const:
    return Const(m["name"], tuple(finite(float(v)) for v in m["values"][1:-1].split(", ") if v))


_READERS = {
    "input": lambda m: Input(m["name"], _type(m)),
    "const": _const,
    "param": _param,
    "node": _node,
    "output": lambda m: (m["name"], m["value"]),
}
