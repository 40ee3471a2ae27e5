"""The JSON form of a graph: `from_json(to_json(g)) == g`. It is `graph.json` of an artifact: no types in it, they are inferred.

In and out: plain dicts and lists. Refused (InputError): a missing or unknown key, a value of the wrong type (True is no integer), a number that
is not finite, another schema. A whole number where an op's attribute is a float becomes one: JSON writers may drop ".0".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .errors import InputError
from .graph import AttrValue, Const, Graph, Input, Node, Param, Type
from .ops import OPS

SCHEMA = "thinc.graph/1"


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the records below."""


class _Input(_Form, frozen=True):
    name: str
    dtype: str
    shape: tuple[int | str, ...]


class _Const(_Form, frozen=True):
    name: str
    values: tuple[float, ...]


class _Param(_Form, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None
    encoding: str


class _Node(_Form, frozen=True):
    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: dict[str, bool | int | float | str | tuple[int | str, ...]]


class _Output(_Form, frozen=True):
    name: str
    value: str


class GraphJson(_Form, frozen=True):
    """The document; `schemas/json/graph.schema.json` is made from it."""

    schema: Literal["thinc.graph/1"]
    name: str
    facts: tuple[str, ...]
    inputs: tuple[_Input, ...]
    consts: tuple[_Const, ...]
    params: tuple[_Param, ...]
    nodes: tuple[_Node, ...]
    outputs: tuple[_Output, ...]


def to_json(graph: Graph) -> dict[str, Any]:
    """The JSON form: plain dicts and lists."""
    return {
        "schema": SCHEMA,
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


def from_json(data: Any) -> Graph:
    """The graph behind `to_json`; InputError when the form is not exactly that. Run `verify` on the result."""
    try:
        form = msgspec.convert(data, GraphJson)
        nodes = tuple(Node(n.op, n.inputs, n.output, tuple(sorted(_attrs(n).items()))) for n in form.nodes)
        consts = tuple(Const(c.name, tuple(map(_finite, c.values))) for c in form.consts)
    except (msgspec.ValidationError, ValueError, OverflowError) as e:
        raise InputError(f"graph.json: not a graph: {e}") from e
    return Graph(
        form.name,
        tuple(Input(i.name, Type(i.dtype, i.shape)) for i in form.inputs),
        consts,
        tuple(Param(p.name, p.shape, p.dtype, p.role, p.layer, p.encoding) for p in form.params),
        nodes,
        tuple((o.name, o.value) for o in form.outputs),
        form.facts,
    )


def _attrs(n: _Node) -> Mapping[str, AttrValue]:
    table = OPS[n.op].attrs if n.op in OPS else {}
    floats = {k for k, a in table.items() if a.type is float}
    return {k: float(v) if k in floats and type(v) is int else attr_value(v) for k, v in n.attrs.items()}


def _finite(v: float) -> float:
    if not math.isfinite(v):
        raise ValueError(f"{v} is not finite")
    return v


def attr_value(v: Any) -> AttrValue:
    """A JSON value as an attribute: a number, bool, string, or a list of integers and strings as a tuple; ValueError for anything else."""
    if isinstance(v, list | tuple) and all(type(item) in (int, str) for item in v):
        return tuple(v)
    if isinstance(v, float):
        return _finite(v)
    if not isinstance(v, int | str):
        raise ValueError(f"{str(v)[:40]} is no attribute value")
    return v
