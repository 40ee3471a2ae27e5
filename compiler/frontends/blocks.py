"""Builds the graph of a decoder-only transformer from a typed `Config`; what the families share.

One layer, in order (dashed parts by config):
  n = norm(h); q, k, v = linear(n) [+ bias]; [q, k = norm per head]; rope; causal attention [window]; o [+ bias]; [norm]; h += o
  n = norm(h); down(act(gate(n)) * up(n)); [norm]; h += down
In: `Config` and the stored dtype of each slot. Out: a Graph with canonical slots (`embed`, `blk.3.attn.q`, `blk.3.ffn.down`, ...) and the
outputs hidden.embed, hidden.0 .., hidden.final, logits. With `tied` the head reads `embed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...schemas.build import GraphBuilder
from ...schemas.graph import Graph, Param
from .rope import Rope

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}  # config value -> op
ABSENT = "absent"  # dtype of a slot that the checkpoint lacks; such a graph is never handed on


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that shapes the graph. `windows` and `ropes` have one entry per layer; window 0 sees all earlier positions."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    act: str  # op name
    tied: bool
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]
    attn_scale: float
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # also normalise what attention and MLP add
    norm_offset: float = 0.0  # weight is w + offset
    embed_scale: float = 1.0
    logit_softcap: float = 0.0  # 0 = none

    @property
    def layers(self) -> int:
        return len(self.windows)


def build(config: Config, name: str, dtypes: Mapping[str, str]) -> Graph:
    """The graph; a slot without an entry in `dtypes` gets dtype ABSENT. Not verified."""
    return _Decoder(config, dtypes, GraphBuilder(name)).graph()


@dataclass(slots=True)
class _Decoder:
    config: Config
    dtypes: Mapping[str, str]
    b: GraphBuilder
    layer: int | None = None
    ropes: dict[Rope, str] = field(default_factory=dict)

    def graph(self) -> Graph:
        c, b = self.config, self.b
        embed = self.weight("embed", (c.vocab, c.hidden), "embed")
        h = self.scaled(b.node("embedding", "ids", embed), c.embed_scale)
        b.output("hidden.embed", h)
        for self.layer in range(c.layers):
            h = self.add(h, self.attention(self.norm(h, self.slot("attn_norm"), c.hidden)), "attn_post_norm")
            h = self.add(h, self.mlp(self.norm(h, self.slot("ffn_norm"), c.hidden)), "ffn_post_norm")
            b.output(f"hidden.{self.layer}", h)
        self.layer = None
        h = b.output("hidden.final", self.norm(h, "final_norm", c.hidden))
        logits = b.node("linear", h, embed if c.tied else self.weight("head", (c.vocab, c.hidden), "head"))
        b.output("logits", b.node("softcap", logits, cap=c.logit_softcap) if c.logit_softcap else logits)
        return b.finish()

    def slot(self, name: str) -> str:
        return f"blk.{self.layer}.{name}"

    def weight(self, slot: str, shape: tuple[int, ...], role: str) -> str:
        return self.b.param(Param(slot, shape, self.dtypes.get(slot, ABSENT), role, self.layer))

    def linear(self, x: str, name: str, sizes: tuple[int, int], bias: bool) -> str:
        """`sizes` is (out, in); the role is the last part of the name."""
        slot = self.slot(name)
        w = self.weight(slot, sizes, name.rsplit(".", 1)[1])
        return self.b.node("linear", x, w, self.weight(f"{slot}.bias", sizes[:1], "bias") if bias else "")

    def norm(self, x: str, slot: str, size: int) -> str:
        return self.b.node("norm", x, self.weight(slot, (size,), "norm"), eps=self.config.eps, offset=self.config.norm_offset)

    def scaled(self, x: str, by: float) -> str:
        return x if by == 1.0 else self.b.node("scale", x, by=by)

    def add(self, h: str, branch: str, post_norm: str) -> str:
        if self.config.post_norms:
            branch = self.norm(branch, self.slot(post_norm), self.config.hidden)
        return self.b.node("add", h, branch)

    def attention(self, x: str) -> str:
        c, b, layer = self.config, self.b, self.layer
        assert layer is not None
        widths = {"q": c.heads, "k": c.kv_heads, "v": c.kv_heads}
        q, k, v = (self.linear(x, f"attn.{n}", (w * c.head_dim, c.hidden), c.qkv_bias) for n, w in widths.items())
        q, k, v = (b.node("reshape", y, shape=("B", "T", w, c.head_dim)) for y, w in zip((q, k, v), widths.values(), strict=True))
        if c.qk_norm:
            q, k = (self.norm(y, self.slot(f"attn.{n}_norm"), c.head_dim) for y, n in ((q, "q"), (k, "k")))
        q, k = self.rotated(q, c.ropes[layer]), self.rotated(k, c.ropes[layer])
        y = b.node("attention", q, k, v, "positions", scale=c.attn_scale, window=c.windows[layer], cache=layer)
        y = b.node("reshape", y, shape=("B", "T", c.heads * c.head_dim))
        return self.linear(y, "attn.o", (c.hidden, c.heads * c.head_dim), c.o_bias)

    def rotated(self, x: str, rope: Rope) -> str:
        freqs = self.b.const(self.ropes.setdefault(rope, f"rope.{len(self.ropes)}"), rope.freqs)
        return self.b.node("rope", x, "positions", freqs, scale=rope.scale)

    def mlp(self, x: str) -> str:
        c, b = self.config, self.b
        gate, up = (self.linear(x, f"ffn.{n}", (c.intermediate, c.hidden), c.mlp_bias) for n in ("gate", "up"))
        return self.linear(b.node("mul", b.node(c.act, gate), up), "ffn.down", (c.hidden, c.intermediate), c.mlp_bias)
