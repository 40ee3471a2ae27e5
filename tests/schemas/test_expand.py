"""Every composite equals its expansion on the interpreter, over pairwise combinations of everything that it can be given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from graphs import one_op, random_graph, random_ids, weights_of
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.expand import EXPAND, expand
from thinlm.schemas.graph import Graph
from thinlm.schemas.ops import OPS
from thinlm.schemas.verify import verify

POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [-1, -1, 0, 1, 2, 3], [7, 8, 9, 10, 11, 4095]])

FACTORS: dict[str, dict[str, list[Any]]] = {
    "softcap": {"cap": [0.5, 30.0], "dims": [(4,), (2, 3)]},
    "norm": {
        "kind": ["rms", "layer", "l2"],
        "eps": [1e-6, 0.5],
        "offset": [0.0, 1.0],
        "groups": [1, 2, 3],
        "w": [False, True],
        "b": [False, True],
        "dims": [(12,), (2, 6)],
    },
    "rope": {
        "freqs": [(1.0,), (1.0, 0.1, 0.01)],
        "dims": [(1, 6), (2, 7), (3, 8)],
        "scale": [1.0, 1.3],
        "interleaved": [False, True],
    },
    "attention": {
        "heads": [(4, 4), (4, 2), (6, 1)],
        "dims": [(4, 4), (6, 3), (2, 5)],
        "window": [0, 1, 3],
        "softcap": [0.0, 1.5, 30.0],
        "sinks": [False, True],
        "slopes": [False, True],
        "scale": [0.5, 1.0],
    },
}


def pairwise(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Rows so that every pair of levels of two factors occurs in one of them: the full product, less rows that show no new pair."""
    seen: set[tuple[Any, ...]] = set()
    rows = []
    for levels in product(*factors.values()):
        pairs = set(combinations(enumerate(map(str, levels)), 2))
        if not pairs <= seen:
            seen |= pairs
            rows.append(dict(zip(factors, levels, strict=True)))
    return rows


def graph_of(op: str, row: dict[str, Any]) -> Graph:
    """The row as a graph of one composite."""
    attrs = {k: v for k, v in row.items() if k in OPS[op].attrs}
    if op == "attention":
        (n, m), (d, dv) = row["heads"], row["dims"]
        extra = [("w", n) if row[name] else "" for name in ("sinks", "slopes")]
        return one_op(op, [(n, d), (m, d), (m, dv), "positions", *extra], {**attrs, "cache": 0})
    if op == "rope":
        return one_op(op, [row["dims"], "positions", ("c", *row["freqs"])], attrs)
    weights = [("w", row["dims"][-1]) if row.get(name) else "" for name in ("w", "b")]
    return one_op(op, [row["dims"], *weights], attrs)


CASES = [(op, row) for op, factors in FACTORS.items() for row in pairwise(factors)]


def composites(graph: Graph) -> Iterator[str]:
    yield from (n.op for n in graph.nodes if OPS[n.op].composite)


def test_every_composite_and_attribute_has_a_factor() -> None:
    assert FACTORS.keys() == EXPAND.keys() == {op.name for op in OPS.values() if op.composite}
    for op, factors in FACTORS.items():
        optional = {i.rstrip("?") for i in OPS[op].inputs if i.endswith("?")}
        assert OPS[op].attrs.keys() | optional <= factors.keys() | {"cache", "owns"}  # where KV lives is no part of the function


@pytest.mark.parametrize(("op", "row"), CASES, ids=[f"{op}-{'-'.join(map(str, row.values()))}" for op, row in CASES])
def test_expansion_equals_composite(op: str, row: dict[str, Any]) -> None:
    graph = graph_of(op, row)
    expanded = expand(graph)
    assert list(composites(graph)) == [op]
    assert list(composites(expanded)) == []
    assert verify(expanded) == ()
    weights, ids = weights_of(graph), random_ids(3, 6)
    got, expected = (evaluate(g, weights, ids, positions=POSITIONS)["out"] for g in (expanded, graph))
    assert got.shape == expected.shape
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * max(1.0, float(np.abs(expected).max())))


def test_shared_kv_expands_too() -> None:
    graph = next(g for g in map(random_graph, range(100)) if any(dict(n.attrs).get("owns") is False for n in g.nodes))
    assert list(composites(expand(graph))) == []


@given(st.integers(0, 10**6))
def test_random_graphs(seed: int) -> None:
    """Names, params and outputs stay, primitives are untouched, and expanding again changes nothing; odd names (x, x0, xx) don't clash."""
    graph = random_graph(seed)
    expanded = expand(graph)
    assert verify(expanded) == ()
    assert list(composites(expanded)) == []
    assert (expanded.inputs, expanded.consts, expanded.params, expanded.outputs) == (graph.inputs, graph.consts, graph.params, graph.outputs)
    assert {n for n in graph.nodes if not OPS[n.op].composite} <= set(expanded.nodes)
    assert {n.output for n in graph.nodes} <= {n.output for n in expanded.nodes}
    assert expand(expanded) == expanded


TAME = [op for op in OPS if op not in ("exp", "rsqrt", "square", "matmul")]


@given(st.integers(0, 10**6))
def test_random_graphs_compute_the_same(seed: int) -> None:
    graph = random_graph(seed, ops=TAME)
    weights, ids = weights_of(graph), random_ids(2, 4)
    with np.errstate(invalid="ignore"):  # sums over masks of -inf
        got, expected = evaluate(expand(graph), weights, ids), evaluate(graph, weights, ids)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-10)
