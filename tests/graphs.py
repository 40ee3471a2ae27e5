"""Graphs for tests: random ones over the whole op table, one-op graphs, and weights for any graph.

`random_graph(seed)` is verified and, over the seeds, uses every op, attribute, optional input and shared KV; its values are tame enough to
evaluate. `one_op(op, inputs, attrs)` wraps a single op so that the verifier, printer and interpreter take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.graph import Dim, Graph, Input, Node, Param, Type
from thinlm.schemas.op_types import OpError
from thinlm.schemas.ops import INTEGER_INPUTS, OPS, attrs_of
from thinlm.schemas.verify import checked, infer

VOCAB = 11
LETTERS = [*"abcxyzABCXYZ0189_.-"]


def weights_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """float64 arrays for every param; 0.1 to 1 in size, so that norms and products stay well conditioned."""
    rng = np.random.default_rng(seed)
    return {p.name: rng.uniform(0.1, 1, p.shape) * rng.choice([-1.0, 1.0], p.shape) for p in graph.params}


def random_ids(batch: int, tokens: int, seed: int = 0) -> np.ndarray:
    """i64[batch, tokens] below VOCAB."""
    return np.random.default_rng(seed).integers(0, VOCAB, (batch, tokens))


def one_op(op: str, inputs: Sequence[Sequence[Any] | str], attrs: dict[str, Any], raw: bool = False) -> Graph:
    """`%out = op(inputs)`, verified; or `raw`: not verified, default attributes kept.

    An input is "ids", "positions", "" (absent), the dims of an activation after [B, T], a weight ("w", rows, cols) or ("w", size), or a
    constant ("c", value, ...).
    """
    b = GraphBuilder("one-op")
    names = []
    for i, given in enumerate(inputs):
        if isinstance(given, str):
            names.append(given)
        elif given and given[0] == "w":
            names.append(b.param(Param(f"p{i}", tuple(given[1:]), "f32", "norm")))
        elif given and given[0] == "c":
            names.append(b.const(f"c{i}", tuple(given[1:])))
        else:
            table = b.param(Param(f"table{i}", (VOCAB, int(np.prod(given))), "f32", "embed"))
            names.append(b.node("reshape", b.node("embedding", "ids", table), shape=("B", "T", *given)))
    b.output("logits", b.node("embedding", "ids", b.param(Param("embed", (VOCAB, 3), "f32", "embed"))))
    b.output("out", "out")
    if raw:
        b.nodes.append(Node(op, tuple(names), "out", tuple(sorted(attrs.items()))))
        return b.finish()
    b.node(op, *names, name="out", **attrs)
    return checked(b.finish())


def small_graph() -> Graph:
    """A sound graph with a bit of everything that a text or document can hold."""
    b = GraphBuilder("small")
    embed = b.param(Param("embed", (11, 8), "bf16", "embed", None, "int4-sym-g64/1"))
    b.const("freqs", (1.0, 0.01))
    h = b.output("hidden.0", b.node("embedding", "ids", embed, name="h"))
    n = b.node("norm", h, b.param(Param("norm", (8,), "f32", "norm", 0)), name="n", eps=1e-5, kind="layer")
    x = b.node("reshape", n, shape=("B", "T", 2, 4))
    q = b.node("rope", x, "positions", "freqs", name="q", scale=0.5, interleaved=True)
    sinks = b.param(Param("sinks", (2,), "f32", "bias", 0))
    a = b.node("attention", q, q, q, "positions", "", sinks, name="a", scale=0.5, cache=0, window=3, softcap=0.0)
    y = b.node("slice", b.node("reshape", a, shape=("B", "T", 8)), start=0, stop=8)
    b.output("table", embed)
    b.output("logits", b.node("linear", y, embed))
    graph = b.finish()
    return checked(Graph(graph.name, graph.inputs, graph.consts, graph.params, graph.nodes, graph.outputs, ("checked", "folded.2")))


def random_graph(seed: int, nodes: int = 16, ops: Sequence[str] = tuple(OPS)) -> Graph:
    """A verified graph of up to `nodes` random ops out of `ops` on top of a few fixed ones; odd but legal names and attributes."""
    maker = _Maker(seed)
    for _ in range(nodes):
        maker.try_op(str(maker.rng.choice(ops)))
    return maker.finish()


class _Maker:
    """Keeps a pool of typed values and adds ops that the rules accept."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder(self.name())
        self.pool: dict[str, Type] = {}
        self.kv: list[Node] = []
        for dims in ((12,), (4, 6), (2, 6), (2, 4)):
            x = self.node("embedding", ("ids", self.param((VOCAB, int(np.prod(dims))), "embed")), {})
            self.node("reshape", (x,), {"shape": ("B", "T", *dims)})

    def name(self) -> str:
        """A legal name that is not taken."""
        while True:
            name = "".join(self.rng.choice(LETTERS, self.rng.integers(1, 7)))
            if not hasattr(self, "b") or name not in {"ids", "positions", *self.b.params, *self.b.consts, *(n.output for n in self.b.nodes)}:
                return name

    def param(self, shape: Sequence[Dim], role: str = "norm") -> str:
        """A new weight."""
        layer = [None, 0, 3][self.rng.integers(3)]
        dtype, encoding = str(self.rng.choice(["bf16", "f16", "f32"])), str(self.rng.choice(["", "int4-sym-g64/1"]))
        return self.b.param(Param(self.name(), tuple(int(d) for d in shape), dtype, role, layer, encoding))

    def node(self, op: str, inputs: Sequence[str], attrs: dict[str, Any]) -> str:
        """Append a node and infer its type; OpError when the rules refuse it."""
        out = self.b.node(op, *inputs, name=self.name(), **attrs)
        values = tuple(Input(name, t) for name, t in self.pool.items())
        parts = (self.b.inputs + values, tuple(self.b.consts.values()), tuple(self.b.params.values()))
        types, broken = infer(Graph("", *parts, (self.b.nodes[-1],), ()))
        if broken:
            self.b.nodes.pop()
            raise OpError(broken[0])
        self.pool[out] = types[out]
        if op == "attention":
            self.kv.append(self.b.nodes[-1])
        return out

    def try_op(self, op: str) -> None:
        """One random node of `op`, if the rules accept the draw; what was declared for a refused one is dropped again."""
        params, consts = dict(self.b.params), dict(self.b.consts)
        try:
            attrs = self.attrs(op)
            inputs = self.inputs(op)
            if op == "attention" and self.kv and self.rng.integers(2):
                owner = self.kv[0]
                inputs = (inputs[0], *owner.inputs[1:4], *inputs[4:])
                attrs |= {k: attrs_of(owner)[k] for k in ("cache", "window")} | {"owns": False}
            self.node(op, inputs, attrs)
        except OpError:
            self.b.params, self.b.consts = params, consts

    def inputs(self, op: str) -> tuple[str, ...]:
        """Values, weights and constants that mostly fit."""
        x, out = "", []
        for slot in OPS[op].inputs:
            if slot in INTEGER_INPUTS:
                out.append(slot)
            elif slot.endswith("?") and self.rng.integers(2):
                out.append("")
            elif x and (shape := self.weight_shape(op, slot.rstrip("?"), self.pool[x].shape)):
                out.append(self.param(shape))
            elif slot == "freqs":
                out.append(self.b.const(self.name(), tuple(self.rng.uniform(0, 1, self.rng.integers(1, 4)))))
            else:
                fits = self.candidates(op, slot, out)
                out.append(str(self.rng.choice(fits)) if fits else self.param((VOCAB, 5), "embed"))
                x = x or out[-1]
        return tuple(out)

    def candidates(self, op: str, slot: str, chosen: Sequence[str]) -> list[str]:
        """Values that may go into `slot` after the `chosen` inputs."""
        shapes = {v: t.shape for v, t in self.pool.items()}
        heads = {v: shape for v, shape in shapes.items() if len(shape) == 4 and shape[:2] == ("B", "T")}
        match op, slot:
            case ("rope", _) | ("attention", "q"):
                return list(heads)
            case "attention", "k":
                q = heads[chosen[0]]
                return [v for v, k in heads.items() if k[3] == q[3] and int(q[2]) % int(k[2]) == 0]
            case "attention", "v":
                return [v for v, shape in heads.items() if shape[:3] == heads[chosen[1]][:3]]
            case "concat", "b":
                return [v for v, shape in shapes.items() if shape == shapes[chosen[0]]]
            case _, "table":
                return []
        return list(shapes)

    def weight_shape(self, op: str, slot: str, x: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """The shape of the weight in this place, None for a value."""
        table = {
            ("linear", "w"): (5, x[-1]),
            ("linear", "bias"): (5,),
            ("matmul", "b"): (x[-1], 3),
            ("norm", "w"): x[-1:],
            ("norm", "b"): x[-1:],
            ("softmax_sink", "sink"): (1,),
            ("attention", "sinks"): x[2:3],
            ("attention", "slopes"): x[2:3],
        }
        shape = table.get((op, slot))
        if op in ("add", "sub", "mul") and slot == "b" and self.rng.integers(2):
            shape = x[-1:]
        return shape if shape and all(isinstance(d, int) for d in shape) else None

    def attrs(self, op: str) -> dict[str, Any]:
        """Random attributes; axis, perm and shape are for values of rank 3 and 4."""
        rng = self.rng
        draw = {
            "by": lambda: float(rng.uniform(-2, 2)),
            "cap": lambda: float(rng.uniform(1, 50)),
            "axis": lambda: -int(rng.integers(1, 4)),
            "start": lambda: int(rng.integers(0, 3)),
            "stop": lambda: int(rng.integers(1, 7)),
            "step": lambda: int(rng.integers(1, 3)),
            "times": lambda: int(rng.integers(1, 4)),
            "perm": lambda: tuple(int(i) for i in rng.permutation(rng.integers(3, 5))),
            "shape": lambda: ("B", "T", *(int(d) for d in rng.choice([1, 2, 3, 4, 6, 8, 12, 24], rng.integers(1, 3)))),
            "window": lambda: int(rng.choice([0, 1, 3])),
            "kind": lambda: str(rng.choice(["rms", "layer", "l2"])),
            "eps": lambda: float(rng.choice([1e-6, 1e-5, 0.1])),
            "offset": lambda: float(rng.choice([0.0, 1.0])),
            "groups": lambda: int(rng.integers(1, 4)),
            "scale": lambda: float(rng.uniform(0.1, 2)),
            "interleaved": lambda: bool(rng.integers(2)),
            "softcap": lambda: float(rng.choice([0.0, 30.0])),
            "cache": lambda: len(self.kv),
            "owns": lambda: True,
        }
        return {key: draw[key]() for key in OPS[op].attrs}

    def finish(self) -> Graph:
        """Publish every value that nothing reads, and logits."""
        x = self.node("embedding", ("ids", self.param((VOCAB, 4), "embed")), {})
        read = {i for n in self.b.nodes for i in n.inputs}
        for v in self.pool:
            if v not in read:
                self.b.output("logits" if v == x else f"{self.name()}.{len(self.b.outputs)}", v)
        return checked(self.b.finish())
