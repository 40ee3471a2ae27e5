"""The semantic IR: what a model computes, never how.

A graph is immutable (frozen dataclasses with tuple fields), so a pass can't damage its input. Weights are declared (`Param`), never arrays.
All names - inputs, consts, params, node outputs - live in one namespace, each defined once (SSA).

Shapes: `B` sequences, `T` tokens of each in this call, other dims are numbers. Activations are `f32[B, T, H]`, heads `f32[B, T, N, D]`;
`f32` means "real": the interpreter computes it in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

Dim = int | str
AttrValue = int | float | bool | str | tuple[int | str, ...]

DTYPES = ("bf16", "f16", "f32")  # how a source stores a weight; each has the number format `<dtype>/1`
# What a weight does; decides which formats it may take (LOSSLESS_ROLES) and how it is paged (FFN_ROLES).
ROLES = ("embed", "head", "q", "k", "v", "o", "gate", "up", "down", "norm", "bias")
LOSSLESS_ROLES = frozenset({"norm", "bias"})
FFN_ROLES = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Type:
    """dtype (`f32`, `i32`) and shape of a value; `str()` gives `f32[B, T, 256]`."""

    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """A run-time input of the graph: `ids` and `positions`, both `i32[B, T]`."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Const:
    """A vector of float64 numbers that the frontend computed (rope frequencies)."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """A declared weight: `shape` is `[out, in]` for matrices; `dtype` as stored in the source; `encoding` a number format's name or empty."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None = None
    encoding: str = ""

    @property
    def size(self) -> int:
        """Number of logical weights."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation with one output. `inputs` are names, `""` for an absent optional; `attrs` holds the non-default ones, sorted by key."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: tuple[tuple[str, AttrValue], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole model; `outputs` maps public names (`logits`, `hidden.0`) to values, `facts` are what the passes have ensured."""

    name: str
    inputs: tuple[Input, ...]
    consts: tuple[Const, ...]
    params: tuple[Param, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...]
    facts: tuple[str, ...] = ()

    def param_table(self) -> dict[str, Param]:
        """Params by name."""
        return {p.name: p for p in self.params}

    def output(self, name: str) -> str:
        """The value behind a public output name; KeyError when there is none."""
        return dict(self.outputs)[name]

    def with_encodings(self, encodings: Mapping[str, str]) -> Graph:
        """The same graph with `encodings[param name]` recorded; KeyError on a name that is no param."""
        unknown = set(encodings) - {p.name for p in self.params}
        if unknown:
            raise KeyError(f"no such params: {sorted(unknown)[:3]}")
        return replace(self, params=tuple(replace(p, encoding=encodings.get(p.name, p.encoding)) for p in self.params))


def uses(graph: Graph, name: str) -> Iterator[Node]:
    """Nodes that read `name`, in order."""
    return (n for n in graph.nodes if name in n.inputs)


def choice_groups(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Params that must share a format, in order of first use.

    Linears that read the same value (q/k/v; gate/up) form one group; a tied embedding is one param and therefore one group with itself.
    Params of lossless roles are left out: they have no choice.
    """
    params, parent = graph.param_table(), {}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    first_reader: dict[str, str] = {}
    for node in graph.nodes:
        weights = [i for i in node.inputs if i in params and params[i].role not in LOSSLESS_ROLES]
        for w in weights:
            parent.setdefault(w, w)
            if node.op == "linear":
                parent[root(w)] = root(first_reader.setdefault(node.inputs[0], w))
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(root(name), []).append(name)
    return tuple(tuple(g) for g in groups.values())
