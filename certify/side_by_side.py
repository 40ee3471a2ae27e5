"""How many texts are measured side by side: as many as the processor has work for and the memory room.

In: the graph, positions of a text, the bytes of memory that the whole process may take (None: no limit). Out: a number of workers, one at least. The
figures don't depend on it. What a worker holds is estimated from the graph, from above: activations of one text, its attention scores and keys
and values in float32, a few pieces of logits of both models, and decoded weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from ..runtime_min.head import WHOLE_PIECE, head_of
from ..runtime_min.targets import SCRATCH
from ..schemas.graph import Graph
from ..schemas.verify import infer

WORKERS = 2
PROCESS_BYTES = 400 << 20  # Python, torch and the tokenizer take 180 MB; the rest is what a C allocator doesn't give back
TOGETHER = 16  # prompts that are continued in step at most
F32, COPIES = 4, 4  # of the largest value of each kind that exist at a time

T = TypeVar("T")


def workers_within(graph: Graph, positions: int, max_ram: int | None) -> int:
    """How many texts of `positions` fit side by side."""
    if max_ram is None:
        return WORKERS
    return max(1, min(WORKERS, (max_ram - PROCESS_BYTES) // worker_bytes(graph, positions)))


def worker_bytes(graph: Graph, positions: int) -> int:
    """Bytes that measuring one text of `positions` takes at a time."""
    types, _ = infer(graph)
    head = head_of(graph)

    def width(name: str) -> int:
        size = 1
        for d in types[name].shape:
            size *= d if isinstance(d, int) else 1
        return size

    values = [width(n.output) for n in graph.nodes if n.output not in head.outputs]
    attention = [n for n in graph.nodes if n.op == "attention"]
    scores = max((types[n.inputs[0]].shape[2] for n in attention), default=0)
    kv = sum(width(n.inputs[1]) + width(n.inputs[2]) for n in attention)
    assert isinstance(scores, int)
    logits = min(WHOLE_PIECE, positions) * width(graph.output("logits"))
    return F32 * (COPIES * (positions * max(values) + positions * positions * scores + 2 * logits) + positions * kv) + COPIES * SCRATCH


def batches(items: Sequence[T], workers: int) -> list[Sequence[T]]:
    """`items` in runs of about equal length, one per worker, or more where a run would be longer than TOGETHER."""
    count = min(len(items), max(workers, -(-len(items) // TOGETHER)))
    edges = [len(items) * n // count for n in range(count + 1)] if count else []
    return [items[a:b] for a, b in pairwise(edges)]
