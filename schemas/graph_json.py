"""The JSON form of a graph: `from_json(to_json(g)) == g`. It is `graph.json` of an artifact: no types in it, they are inferred.

In and out: plain dicts and lists. Refused (InputError): a missing or unknown key, a value of the wrong type (True is no integer), a number that
is not finite, another schema.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from .canonical import as_struct
from .errors import InputError
from .graph import AttrValue, Const, Graph, Input, Node, Param, Type

SCHEMA = "thinc.graph/1"


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the records below."""


class InputJson(_Form, frozen=True):
    """A run-time input."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class ConstJson(_Form, frozen=True):
    """A constant vector."""

    name: str
    values: tuple[float, ...]


class ParamJson(_Form, frozen=True):
    """A declared weight."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None
    encoding: str


class NodeJson(_Form, frozen=True):
    """An operation."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: dict[str, bool | int | float | str | tuple[int | str, ...]]


class OutputJson(_Form, frozen=True):
    """A public output."""

    name: str
    value: str


class GraphJson(_Form, frozen=True):
    """The document; `schemas/json/graph.schema.json` is made from it."""

    schema: Literal["thinc.graph/1"]
    name: str
    facts: tuple[str, ...]
    inputs: tuple[InputJson, ...]
    consts: tuple[ConstJson, ...]
    params: tuple[ParamJson, ...]
    nodes: tuple[NodeJson, ...]
    outputs: tuple[OutputJson, ...]


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
    form = as_struct(data, GraphJson, where="graph.json")
    try:
        return Graph(
            form.name,
            inputs=tuple(Input(i.name, Type(i.dtype, i.shape)) for i in form.inputs),
            consts=tuple(Const(c.name, tuple(map(finite, c.values))) for c in form.consts),
            params=tuple(Param(p.name, p.shape, p.dtype, p.role, p.layer, p.encoding) for p in form.params),
            nodes=tuple(Node(n.op, n.inputs, n.output, tuple((k, attr_value(n.attrs[k])) for k in sorted(n.attrs))) for n in form.nodes),
            outputs=tuple((o.name, o.value) for o in form.outputs),
            facts=form.facts,
        )
    except ValueError as e:
        raise InputError(f"graph.json: {e}") from e


def finite(v: float) -> float:
    """`v`; ValueError when it is NaN or infinite."""
    if not math.isfinite(v):
        raise ValueError(f"{v} is not finite")
    return v


def attr_value(v: Any) -> AttrValue:
    """A JSON value as an attribute: a number, bool, string, or a list of integers and strings as a tuple; ValueError for anything else."""
    if isinstance(v, list | tuple) and all(type(item) in (int, str) for item in v):
        return tuple(v)
    if isinstance(v, float):
        return finite(v)
    if not isinstance(v, int | str):
        raise ValueError(f"{str(v)[:40]} is no attribute value")
    return v
