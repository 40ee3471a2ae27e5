"""Finds the gated feed-forward blocks of a graph by their structure: down(act(gate(x)) * up(x)).

A block's channels (rows of gate and up, columns of down) can be stored in any order: the sum over them is the same up to rounding.
Not found, and left alone: blocks whose weights or values have another reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..schemas.graph import Graph, Node

ACTIVATIONS = frozenset({"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "softplus"})


@dataclass(frozen=True, slots=True)
class FFN:
    """A block by the names of its params; biases are "" where there is none. `name` is what the three share ("blk.3.ffn")."""

    name: str
    gate: str
    up: str
    down: str
    gate_bias: str
    up_bias: str
    channels: int


def find_ffns(graph: Graph) -> tuple[FFN, ...]:
    """All blocks, in graph order."""
    return tuple(_ffns(graph))


def _ffns(graph: Graph) -> Iterator[FFN]:
    made = {n.output: n for n in graph.nodes}
    readers = Counter(i for n in graph.nodes for i in n.inputs) + Counter(value for _, value in graph.outputs)
    shapes = {p.name: p.shape for p in graph.params}
    for down in graph.nodes:
        product = made.get(down.inputs[0]) if down.op == "linear" else None
        if product is None or product.op != "mul" or down.inputs[1] not in shapes:
            continue
        gate, up = _branches(product, made)
        if gate is None or up is None or gate.inputs[0] != up.inputs[0]:
            continue
        private = (product.output, *product.inputs, gate.output, up.output, *_weights(gate), *_weights(up), down.inputs[1])
        if any(readers[name] != 1 for name in private):
            continue
        names = (gate.inputs[1], up.inputs[1], down.inputs[1])
        shared = {name.rpartition(".")[0] for name in names}
        name = shared.pop() if len(shared) == 1 else "+".join(names)
        yield FFN(name, *names, _bias(gate), _bias(up), shapes[gate.inputs[1]][0])


def _branches(product: Node, made: dict[str, Node]) -> tuple[Node | None, Node | None]:
    """(gate linear, up linear) behind the two factors, None where a factor is something else."""
    factors = [made.get(name) for name in product.inputs]
    acts = [f for f in factors if f is not None and f.op in ACTIVATIONS]
    ups = [f for f in factors if f is not None and f.op == "linear"]
    if len(acts) != 1 or len(ups) != 1:
        return None, None
    gate = made.get(acts[0].inputs[0])
    return (gate if gate is not None and gate.op == "linear" else None), ups[0]


def _weights(linear: Node) -> tuple[str, ...]:
    return linear.inputs[1:]


def _bias(linear: Node) -> str:
    return linear.inputs[2] if len(linear.inputs) > 2 else ""
