"""A builder for graphs: names values, drops default attributes, keeps definitions in order. Used by frontends and by `expand`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .graph import AttrValue, Const, Graph, Input, Node, Param, Type
from .ops import OPS

IDS = Input("ids", Type("i32", ("B", "T")))
POSITIONS = Input("positions", Type("i32", ("B", "T")))


@dataclass(slots=True)
class GraphBuilder:
    """Collects a graph's parts; every adding method returns the name to use as an input of later nodes."""

    name: str
    inputs: tuple[Input, ...] = (IDS, POSITIONS)
    consts: dict[str, Const] = field(default_factory=dict)
    params: dict[str, Param] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    prefix: str = "v"

    def const(self, name: str, values: Iterable[float]) -> str:
        """Declare a constant once, numpy's floats included; the same name must keep the same values."""
        values = tuple(map(float, values))
        known = self.consts.setdefault(name, Const(name, values))
        assert known.values == values, f"const {name} declared twice with other values"
        return name

    def param(self, param: Param) -> str:
        """Declare a weight once; declaring it again (a tied head) must agree."""
        known = self.params.setdefault(param.name, param)
        assert known == param, f"param {param.name} declared twice"
        return param.name

    def node(self, op: str, *inputs: str, name: str = "", **attrs: AttrValue) -> str:
        """Append a node; attributes equal to their default are left out; the output is `name`, or `prefix` and a running number."""
        table = OPS[op].attrs
        kept = tuple(sorted((k, v) for k, v in attrs.items() if k not in table or v != table[k].default))
        while inputs and inputs[-1] == "":
            inputs = inputs[:-1]
        output = name or f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, output, kept))
        return output

    def output(self, name: str, value: str) -> str:
        """Publish `value` under `name`; returns the value."""
        self.outputs.append((name, value))
        return value

    def finish(self) -> Graph:
        """The frozen graph; run `verify` on it."""
        return Graph(self.name, self.inputs, tuple(self.consts.values()), tuple(self.params.values()), tuple(self.nodes), tuple(self.outputs))
