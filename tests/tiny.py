"""A tiny decoder for tests of the runtime: grouped queries, windows, biases, qk norms, tied or untied head; and weights held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from thinlm.artifacts.formats import get_format
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.encoding import Slab
from thinlm.schemas.graph import Graph, Param
from thinlm.schemas.verify import checked


@dataclass(frozen=True)
class Dims:
    """Sizes of the tiny model."""

    hidden: int = 24
    ffn: int = 40
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 10
    vocab: int = 53
    windows: tuple[int, ...] = (0, 7, 0)
    tied: bool = True
    bias: bool = True


def tiny_graph(d: Dims) -> Graph:
    """The graph; outputs as frontends name them."""
    b = GraphBuilder("tiny")

    def matrix(name: str, rows: int, cols: int, role: str, layer: int | None = None) -> str:
        return b.param(Param(name, (rows, cols), "f32", role, layer))

    def vector(name: str, size: int, role: str, layer: int | None = None) -> str:
        return b.param(Param(name, (size,), "f32", role, layer))

    freqs = b.const("rope", tuple(10000.0 ** (-2 * i / d.head_dim) for i in range(d.head_dim // 2)))
    embed = matrix("embed", d.vocab, d.hidden, "embed")
    x = b.output("hidden.embed", b.node("embedding", "ids", embed))
    for i in range(d.layers):
        p = f"blk.{i}"
        h = b.node("norm", x, vector(f"{p}.attn_norm", d.hidden, "norm", i), eps=1e-5)
        heads = {}
        for role, n in (("q", d.heads), ("k", d.kv_heads), ("v", d.kv_heads)):
            w = matrix(f"{p}.attn.{role}", n * d.head_dim, d.hidden, role, i)
            bias = (vector(f"{p}.attn.{role}.bias", n * d.head_dim, "bias", i),) if d.bias else ()
            y = b.node("reshape", b.node("linear", h, w, *bias), shape=("B", "T", n, d.head_dim))
            if role != "v":
                y = b.node("norm", y, vector(f"{p}.attn.{role}_norm", d.head_dim, "norm", i), eps=1e-5, offset=1.0)
                y = b.node("rope", y, "positions", freqs)
            heads[role] = y
        a = b.node("attention", heads["q"], heads["k"], heads["v"], "positions", scale=d.head_dim**-0.5, cache=i, window=d.windows[i])
        a = b.node("reshape", a, shape=("B", "T", d.heads * d.head_dim))
        x = b.node("add", x, b.node("linear", a, matrix(f"{p}.attn.o", d.hidden, d.heads * d.head_dim, "o", i)))
        h = b.node("norm", x, vector(f"{p}.ffn_norm", d.hidden, "norm", i), eps=1e-5)
        gate = b.node("silu", b.node("linear", h, matrix(f"{p}.ffn.gate", d.ffn, d.hidden, "gate", i)))
        up = b.node("linear", h, matrix(f"{p}.ffn.up", d.ffn, d.hidden, "up", i))
        down = b.node("linear", b.node("mul", gate, up), matrix(f"{p}.ffn.down", d.hidden, d.ffn, "down", i))
        x = b.output(f"hidden.{i}", b.node("add", x, down))
    x = b.output("hidden.final", b.node("norm", x, vector("final_norm", d.hidden, "norm"), eps=1e-5))
    b.output("logits", b.node("linear", x, embed if d.tied else matrix("head", d.vocab, d.hidden, "head")))
    return checked(b.finish())


class MemoryWeights:
    """Weights of `graph` drawn from a seed, stored as f32/1; `kind` and `identity` as asked for."""

    def __init__(self, graph: Graph, seed: int = 0, kind: str = "source", identity: str = "memory") -> None:
        rng = np.random.default_rng(seed)
        self.kind, self.identity = kind, identity
        self.arrays = {}
        for p in graph.params:
            spread = 0.2 if len(p.shape) == 1 else p.shape[1] ** -0.5
            self.arrays[p.name] = ((p.role == "norm") + rng.normal(0, spread, p.shape)).astype(np.float32)

    def encoding(self, name: str) -> str:
        """Always plain float32."""
        return "f32/1"

    def shape(self, name: str) -> tuple[int, ...]:
        """The array's shape."""
        return self.arrays[name].shape

    def slabs(self, name: str) -> Iterator[Slab]:
        """One slab of the whole matrix."""
        w = np.atleast_2d(self.arrays[name])
        part = get_format("f32/1").spec.parts[0].name
        yield Slab(0, w.shape[0], 0, w.shape[1], get_format("f32/1").pack({part: w}))

    def f32(self, name: str) -> np.ndarray:
        """The array."""
        return self.arrays[name]

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """A part of the matrix."""
        w = self.f32(name)
        return w.reshape(-1, w.shape[-1])[rows, cols].copy()
