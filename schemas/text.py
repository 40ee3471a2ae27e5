"""The canonical text and JSON forms of a graph: `parse(print_graph(g)) == g`, `from_json(to_json(g)) == g`.

Text is what goldens, diffs, bug reports and `thinc inspect --graph` use; one line per definition. `%` marks inputs and values, `@` params,
`$` consts, `_` an absent optional input. The type after a node's `:` is for the reader and is checked when parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InputError
from .graph import AttrValue, Const, Graph, Input, Node, Param, Type
from .verify import infer

_TYPE = r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
_LINES = {
    "input": re.compile(rf"input %(?P<name>\S+) : {_TYPE}$"),
    "const": re.compile(r"const \$(?P<name>\S+) = (?P<values>\[.*\])$"),
    "param": re.compile(rf"param @(?P<name>\S+) : {_TYPE} role=(?P<role>\w+)(?: layer=(?P<layer>\d+))?(?: encoding=(?P<encoding>\S+))?$"),
    "output": re.compile(r"output (?P<name>\S+) = [%@$](?P<value>\S+)$"),
    "node": re.compile(r"%(?P<name>\S+) = (?P<op>\w+)\((?P<inputs>[^)]*)\)(?: \{(?P<attrs>.*)\})? : (?P<type>.+)$"),
}


def print_graph(graph: Graph) -> str:
    """The canonical text of a verified graph, newline-terminated."""
    types, _ = infer(graph)
    sigil = {x.name: s for s, part in (("$", graph.consts), ("@", graph.params)) for x in part}

    def ref(name: str) -> str:
        return f"{sigil.get(name, '%')}{name}" if name else "_"

    lines = [f"graph {graph.name} [{', '.join(graph.facts)}]"]
    lines += [f"input %{i.name} : {i.type}" for i in graph.inputs]
    lines += [f"const ${c.name} = {json.dumps(c.values)}" for c in graph.consts]
    lines += [_param_line(p) for p in graph.params]
    for n in graph.nodes:
        attrs = " {" + ", ".join(f"{k}={json.dumps(v)}" for k, v in n.attrs) + "}" if n.attrs else ""
        lines.append(f"%{n.output} = {n.op}({', '.join(map(ref, n.inputs))}){attrs} : {types.get(n.output, '?')}")
    lines += [f"output {name} = {ref(value)}" for name, value in graph.outputs]
    return "\n".join(lines) + "\n"


def _param_line(p: Param) -> str:
    layer = "" if p.layer is None else f" layer={p.layer}"
    encoding = f" encoding={p.encoding}" if p.encoding else ""
    return f"param @{p.name} : {Type(p.dtype, p.shape)} role={p.role}{layer}{encoding}"


def parse(text: str) -> Graph:
    """The graph that `text` prints; InputError names the first line that does not parse or whose stated type is wrong."""
    lines = text.splitlines()
    head = re.match(r"graph (\S+) \[(.*)\]$", lines[0]) if lines else None
    if head is None:
        raise InputError("graph text: line 1: expected 'graph NAME [FACTS]'")
    found: dict[str, list[Any]] = {kind: [] for kind in _LINES}
    stated: list[tuple[int, str, str]] = []
    for number, line in enumerate(lines[1:], 2):
        kind, match = next(((k, m) for k, r in _LINES.items() if (m := r.match(line))), ("", None))
        if match is None:
            raise InputError(f"graph text: line {number}: not a definition: {line[:80]!r}")
        try:
            found[kind].append(_READERS[kind](match.groupdict()))
        except ValueError as e:
            raise InputError(f"graph text: line {number}: {e}: {line[:80]!r}") from e
        if kind == "node":
            stated.append((number, match["name"], match["type"]))
    facts = tuple(f for f in head[2].split(", ") if f)
    graph = Graph(head[1], *(tuple(found[k]) for k in ("input", "const", "param", "node", "output")), facts)  # pyright: ignore[reportArgumentType]
    types, _ = infer(graph)
    for number, name, wrote in stated:
        if str(types.get(name, "?")) != wrote:
            raise InputError(f"graph text: line {number}: %{name} has type {types.get(name, '?')}, the text says {wrote}")
    return graph


def _dim(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _type(m: Mapping[str, str]) -> Type:
    return Type(m["dtype"], tuple(_dim(d) for d in m["shape"].split(", ") if d))


def _value(v: Any) -> AttrValue:
    return tuple(v) if isinstance(v, list) else v


def _attrs(text: str | None) -> tuple[tuple[str, AttrValue], ...]:
    out, decoder, at = [], json.JSONDecoder(), 0
    text = text or ""
    while at < len(text):
        key, _, _ = text[at:].partition("=")
        value, at = decoder.raw_decode(text, at + len(key) + 1)
        out.append((key, _value(value)))
        at += 2  # the ", " between attributes
    return tuple(out)


def _node(m: Mapping[str, str]) -> Node:
    inputs = tuple("" if i == "_" else i[1:] for i in m["inputs"].split(", ") if i)
    return Node(m["op"], inputs, m["name"], _attrs(m["attrs"]))


_READERS = {
    "input": lambda m: Input(m["name"], _type(m)),
    "const": lambda m: Const(m["name"], tuple(float(v) for v in json.loads(m["values"]))),
    "param": lambda m: Param(
        m["name"], _type(m).shape, m["dtype"], m["role"], None if m["layer"] is None else int(m["layer"]), m["encoding"] or ""
    ),
    "output": lambda m: (m["name"], m["value"]),
    "node": _node,
}


def to_json(graph: Graph) -> dict[str, Any]:
    """The JSON form: plain dicts and lists, `schema` first, no types (they are inferred)."""
    return {
        "schema": "thinc.graph/1",
        "name": graph.name,
        "facts": list(graph.facts),
        "inputs": [{"name": i.name, "dtype": i.type.dtype, "shape": list(i.type.shape)} for i in graph.inputs],
        "consts": [{"name": c.name, "values": list(c.values)} for c in graph.consts],
        "params": [
            {"name": p.name, "shape": list(p.shape), "dtype": p.dtype, "role": p.role, "layer": p.layer, "encoding": p.encoding} for p in graph.params
        ],
        "nodes": [
            {"op": n.op, "inputs": list(n.inputs), "output": n.output, "attrs": {k: list(v) if isinstance(v, tuple) else v for k, v in n.attrs}}
            for n in graph.nodes
        ],
        "outputs": [{"name": name, "value": value} for name, value in graph.outputs],
    }


def from_json(data: Mapping[str, Any]) -> Graph:
    """The graph behind `to_json`; InputError when the form is not exactly that. Run `verify` on the result."""
    try:
        if data["schema"] != "thinc.graph/1":
            raise InputError(f"graph.json: schema {data['schema']!r}, expected 'thinc.graph/1'")
        graph = Graph(
            data["name"],
            tuple(Input(i["name"], Type(i["dtype"], tuple(i["shape"]))) for i in data["inputs"]),
            tuple(Const(c["name"], tuple(float(v) for v in c["values"])) for c in data["consts"]),
            tuple(Param(p["name"], tuple(p["shape"]), p["dtype"], p["role"], p["layer"], p["encoding"]) for p in data["params"]),
            tuple(_json_node(n) for n in data["nodes"]),
            tuple((o["name"], o["value"]) for o in data["outputs"]),
            tuple(data["facts"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError(f"graph.json: not a graph ({type(e).__name__}: {e})") from e
    if to_json(graph) != data:
        raise InputError("graph.json: holds keys or values that the graph form does not have")
    return graph


def _json_node(n: Mapping[str, Any]) -> Node:
    items: Sequence[tuple[str, Any]] = sorted(n["attrs"].items())
    return Node(n["op"], tuple(n["inputs"]), n["output"], tuple((k, _value(v)) for k, v in items))
