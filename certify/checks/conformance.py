"""CONFORMANCE: the shipping backend computes what the graph says, on the artifact's own decoded weights.

1. `backend_cosine`: whole texts against the float64 interpreter, the worst centred or raw cosine of any position. The interpreter rounds no
   keys and values, so a half-precision KV encoding is inside this figure.
2. `backend_deviation`: the same as 1 - cosine with keys and values not rounded by the backend either: its arithmetic alone.
3. `cache_cosine`: cached decode against prefill through the same KV encoding, in several chunkings: everything at once; one token at a time
   around every block boundary, window edge and wrap; ragged pieces; pieces that cross a boundary; and, for a batch, two texts in turn.
4. `cache_deviation`: the same as 1 - cosine with keys and values not rounded: rounding amplifies last bits and would hide a stale key.
Texts are long enough to leave every attention window and reuse its first block, where the context and `LONGEST` allow that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise

import numpy as np

from ...runtime_min.interp import logits_in_pieces
from ...runtime_min.model import Model
from ...schemas.certificate import Check
from ...schemas.graph import Graph
from ...schemas.ops import attrs_of
from ..metrics import Positions, Rows, compare, compare_pieces

METRICS = ("backend_cosine", "backend_deviation", "cache_cosine", "cache_deviation")
LONGEST = 2048  # tokens; a longer window is left to the runtime's own tests
SHORTEST = 96
TEXTS = 2

EXACT = ("edges", "ragged")  # chunkings that are also run with keys and values not rounded
_RAGGED = (1, 2, 3, 5, 7, 11, 13, 17)


def text_length(graph: Graph, context: int, block: int) -> int:
    """Tokens that leave every window of `graph` and reuse its first block, and cross two block boundaries."""
    need = max([SHORTEST, 2 * block + 3, *(w + 2 * block + 3 for w in _windows(graph))])
    return min(need, context, LONGEST)


def texts_of(ids: np.ndarray, length: int) -> np.ndarray:
    """TEXTS different texts int64 [TEXTS, length] from a run of ids, repeated when it is too short."""
    return np.resize(ids.astype(np.int64), (TEXTS, length))


def backend_checks(model: Model, texts: np.ndarray, vocabulary: int) -> tuple[Check, ...]:
    """The model's own backend against the interpreter, over texts [n, T]."""
    how = f"reference=interp-float64,tokens={texts.shape[1]}"
    exact = _exact(model)
    ways = (model,) if exact is model else (model, exact)
    rows = [[Rows(way.forward_pieces(ids)) for ids in texts] for way in ways]
    found: list[list[list[Positions]]] = [[[] for _ in texts] for _ in ways]
    at = 0
    for wanted in logits_in_pieces(model.graph, model.weights, texts):
        for n, mine in enumerate(rows):
            for m, (want, row) in enumerate(zip(wanted, mine, strict=True)):
                found[n][m].append(compare(want, row.take(len(want)), vocabulary, start=at))
        at += wanted.shape[1]
    measured = [Positions.join(part for parts in of_texts for part in parts) for of_texts in found]
    return _cosine("backend_cosine", how, measured[0]), _deviation("backend_deviation", f"{how},kv=f32", measured[-1])


def cache_checks(model: Model, texts: np.ndarray, vocabulary: int) -> tuple[Check, ...]:
    """Every chunking of the first text, and two texts in turn, against prefill."""
    ids, block, exact = texts[0], model.options.block, _exact(model)

    def compared(way: Model, sizes: Sequence[int]) -> Positions:
        return compare_pieces(way.forward_pieces(ids), _cached(way, ids, sizes), vocabulary)

    edges = sorted({*range(block, len(ids), block), *(w for w in _windows(model.graph) if w < len(ids))})
    checks = []
    for name, sizes in chunkings(len(ids), block, edges).items():
        how = f"chunks={name},block={block},tokens={len(ids)}"
        shipped = compared(model, sizes)
        checks.append(_cosine("cache_cosine", how, shipped))
        if name in EXACT:
            checks.append(_deviation("cache_deviation", f"{how},kv=f32", shipped if exact is model else compared(exact, sizes)))
    if model.options.batch > 1:
        checks.append(_in_turn(model, texts, vocabulary))
    return tuple(checks)


def chunkings(length: int, block: int, edges: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Sizes of consecutive pieces that make `length`, by name. `edges` are the positions to go around one token at a time."""
    singles = {p for edge in edges for p in range(edge - 2, edge + 2)} & set(range(length))
    cuts = sorted({0, length} | singles | {p + 1 for p in singles})
    return {
        "whole": (length,),
        "edges": tuple(b - a for a, b in pairwise(cuts)),
        "ragged": tuple(_clipped(cycle(_RAGGED), length)),
        "across": tuple(_clipped(cycle((block + 1, block - 1, 1)), length)),
    }


def _clipped(sizes: Iterator[int], length: int) -> Iterator[int]:
    while length > 0:
        size = min(next(sizes), length)
        if size > 0:
            yield size
        length -= size


def _cached(model: Model, ids: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    start = 0
    with model.session() as session:
        for size in sizes:
            yield from session.append_pieces(ids[start : start + size])
            start += size


def _exact(model: Model) -> Model:
    """The same model with keys and values not rounded: the model itself where it stores float32."""
    return model if model.options.kv_dtype in (None, "f32") else model.with_kv(None)


def _in_turn(model: Model, texts: np.ndarray, vocabulary: int) -> Check:
    """Two open sessions, one piece each in turn: blocks of one text must never show in the other."""
    size, parts = model.options.block - 1 or 1, ([], [])
    wanted = [Rows(model.forward_pieces(ids)) for ids in texts]
    with model.session() as first, model.session() as second:
        for start in range(0, texts.shape[1], size):
            for session, ids, rows, mine in zip((first, second), texts, wanted, parts, strict=True):
                got = session.append(ids[start : start + size])
                mine.append(compare(rows.take(len(got)), got, vocabulary, start=start))
    return _cosine("cache_cosine", f"chunks=in-turn,block={model.options.block},tokens={texts.shape[1]}", Positions.join(parts[0] + parts[1]))


def _cosine(metric: str, parameters: str, positions: Positions) -> Check:
    """The smallest cosine of any position."""
    deviation, at, detail = _worst(positions)
    return Check(metric=metric, name=f"{metric}[worst,{parameters}]", value=1 - deviation[at], n=len(positions), detail=detail)


def _deviation(metric: str, parameters: str, positions: Positions) -> Check:
    """The largest 1 - cosine of any position."""
    deviation, at, detail = _worst(positions)
    return Check(metric=metric, name=f"{metric}[worst,{parameters}]", value=deviation[at], n=len(positions), detail=detail)


def _worst(positions: Positions) -> tuple[np.ndarray, int, str]:
    """Raw or centred deviation, whichever is larger, where it is largest, and that in words."""
    deviation = np.maximum(positions.deviation_raw, positions.deviation_centred)
    at = int(deviation.argmax())
    return deviation, at, f"1 - cosine is at most {deviation[at]:.3g} (position {at}), on average {deviation.mean():.3g}"


def _windows(graph: Graph) -> set[int]:
    """The attention windows of a graph, without 0 (no window)."""
    found = {attrs_of(node)["window"] for node in graph.nodes if node.op == "attention"}
    return {w for w in found if isinstance(w, int) and w > 0}
