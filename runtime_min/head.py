"""Where a graph's head begins: the position-wise steps from `hidden.final` to the logits, run over a few positions at a time.

In: a graph. Out: `Head`. All before it is the *body*, which fills the KV cache and needs every position; logits of a long text are much larger
than anything in the body, so the head is run over pieces of positions. A graph whose last stretch is not position-wise, or reads
anything else of the body, has an empty head: its logits are made whole and handed out in pieces all the same.

Pieces are whole tiles of the CPU's products: such a piece has the bits of the product of all positions (tested), a last piece of other size
may differ from it in the last bits. Measured for 512 positions on one core, a 31M model: pieces of 16 cost 0.10 s more than the whole
product's 0.07 s, of 64 0.02 s more; the planned peak grows by 0.3 % with 16, 3.9 % with 64.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schemas.graph import Graph

PIECE = 16  # positions whose logits a session makes at a time, under a memory plan
WHOLE_PIECE = 64  # and a run over a whole text, which no plan covers
POSITION_WISE = frozenset({"linear", "add", "sub", "mul", "neg", "tanh", "sigmoid", "scale", "shift", "softcap", "norm"})


@dataclass(frozen=True, slots=True)
class Head:
    """The head reads value `start`; `outputs` are its nodes' outputs."""

    start: str
    outputs: frozenset[str]


def head_of(graph: Graph) -> Head:
    """The head of `graph`; see module docstring."""
    named = dict(graph.outputs)
    logits, final = named["logits"], named.get("hidden.final", "")
    inside: set[str] = set()
    for node in graph.nodes:
        if (final and final in node.inputs) or inside & set(node.inputs):
            inside.add(node.output)
    held = {p.name for p in graph.params} | {c.name for c in graph.consts} | {final, ""}
    simple = all(n.op in POSITION_WISE and set(n.inputs) <= held | inside for n in graph.nodes if n.output in inside)
    split = simple and logits in inside | {final} and not inside & {value for name, value in named.items() if name != "logits"}
    return Head(final, frozenset(inside)) if split else Head(logits, frozenset())
