"""relayout: any order of a feed-forward block's channels computes the same; blocks are found by structure; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from thinlm.artifacts.formats import get_format
from thinlm.passes import import_pipeline, run_pipeline
from thinlm.passes.ffn import find_ffns
from thinlm.passes.relayout import orders_of, permuted
from thinlm.runtime_min.interp import evaluate
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.errors import PassError
from thinlm.schemas.graph import Graph, Param
from thinlm.schemas.plan import FFNOrder
from thinlm.schemas.verify import checked
from tiny import Dims, MemoryWeights, tiny_graph

CHANNELS = 10


def integer_block(act: str = "relu", bias: bool = True, share: str = "") -> Graph:
    """embedding -> one gated block with biases -> logits; every op maps integers to integers. `share` reads a value once more."""
    b = GraphBuilder("ffn")

    def w(name: str, *shape: int, role: str) -> str:
        return b.param(Param(name, shape, "f32", role, 0))

    x = b.node("embedding", "ids", w("embed", 7, 4, role="embed"))
    biases = {r: (w(f"blk.0.ffn.{r}.bias", CHANNELS, role="bias"),) if bias else () for r in ("gate", "up")}
    gate = b.node("linear", x, w("blk.0.ffn.gate", CHANNELS, 4, role="gate"), *biases["gate"])
    up = b.node("linear", x, w("blk.0.ffn.up", CHANNELS, 4, role="up"), *biases["up"])
    active = b.node(act, gate)
    product = b.node("mul", up, active)
    y = b.node("linear", product, w("blk.0.ffn.down", 4, CHANNELS, role="down"))
    if share:
        b.output("hidden.0", {"gate": gate, "product": product, "weight": "blk.0.ffn.up"}[share])
    b.output("logits", b.node("linear", b.node("add", x, y), "embed"))
    return checked(b.finish())


class Integers(MemoryWeights):
    """Weights that are small integers."""

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__(graph)
        rng = np.random.default_rng(seed)
        self.arrays = {name: rng.integers(-5, 6, a.shape).astype(np.float32) for name, a in self.arrays.items()}


@given(st.permutations(range(CHANNELS)), st.booleans(), st.integers(0, 1000))
def test_any_order_is_exact_on_integers(order: list[int], bias: bool, seed: int) -> None:
    graph, _ = run_pipeline(integer_block(bias=bias), import_pipeline())
    weights, ids = Integers(graph, seed), np.arange(7)[None]
    moved = permuted(weights, graph, (("blk.0.ffn", tuple(order)),))
    before, after = (evaluate(graph, w, ids)["logits"] for w in (weights, moved))
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(moved.f32("blk.0.ffn.down"), weights.f32("blk.0.ffn.down")[:, order])
    if order != sorted(order):
        assert not np.array_equal(moved.f32("blk.0.ffn.gate"), weights.f32("blk.0.ffn.gate"))


@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_a_real_model_is_within_rounding(random) -> None:
    graph, _ = run_pipeline(tiny_graph(Dims(bias=False)), import_pipeline())
    weights, ids = MemoryWeights(graph), np.arange(12)[None]
    orders = tuple((f.name, tuple(random.sample(range(f.channels), f.channels))) for f in find_ffns(graph))
    assert [name for name, _ in orders] == ["blk.0.ffn", "blk.1.ffn", "blk.2.ffn"]
    before, after = (evaluate(graph, w, ids)["logits"] for w in (weights, permuted(weights, graph, orders)))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12 * np.abs(before).max())


def test_a_permuted_source_gives_its_own_bytes() -> None:
    graph = integer_block()
    weights, order = Integers(graph, 0), tuple(reversed(range(CHANNELS)))
    moved = permuted(weights, graph, (("blk.0.ffn", order),))
    for name in ("blk.0.ffn.gate", "blk.0.ffn.down", "blk.0.ffn.up.bias", "embed"):
        (slab,) = moved.slabs(name)
        decoded = get_format(moved.encoding(name)).decode(slab.raw, slab.col1).reshape(moved.shape(name))
        np.testing.assert_array_equal(decoded, moved.f32(name))
    assert (moved.kind, moved.identity) == (weights.kind, weights.identity)
    assert permuted(weights, graph, "identity") is weights


def test_the_record_names_every_block() -> None:
    graph = integer_block()
    assert orders_of(graph, "identity") == (FFNOrder(ffn="blk.0.ffn", order="identity"),)
    order = (1, 0, *range(2, CHANNELS))
    assert orders_of(graph, (("blk.0.ffn", order),)) == (FFNOrder(ffn="blk.0.ffn", order=order),)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ((("blk.9.ffn", (0,)),), "no feed-forward block 'blk.9.ffn'"),
        ((("blk.0.ffn", (0, 1)),), "no permutation of its 10 channels"),
        ((("blk.0.ffn", (0,) * CHANNELS),), "no permutation"),
    ],
)
def test_orders_that_do_not_fit(orders: tuple, message: str) -> None:
    with pytest.raises(PassError, match=message):
        run_pipeline(integer_block(), import_pipeline(orders))


@pytest.mark.parametrize("share", ["gate", "product", "weight"])
def test_blocks_with_other_readers_are_left_alone(share: str) -> None:
    assert find_ffns(integer_block(share=share)) == ()


def test_other_structures_are_no_blocks() -> None:
    assert find_ffns(integer_block(act="neg")) == ()
    assert len(find_ffns(integer_block(act="gelu_tanh"))) == 1
