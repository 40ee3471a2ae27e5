"""The head in pieces: where it begins, that pieces are the whole's bits, and that no more logits are held than the result and one piece."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from thinlm.certify.checks.torch_memory import StorageMeter
from thinlm.passes import import_pipeline, run_pipeline
from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.head import PIECE, WHOLE_PIECE, head_of
from thinlm.runtime_min.interp import evaluate
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.schemas.errors import UsageError
from thinlm.schemas.graph import Graph, Node
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_packed import Packed, encoded

WIDE = Dims(hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=700, windows=(48, 0))


def with_tail(*tail: tuple[str, tuple[str, ...], tuple]) -> Graph:
    """The tiny graph with nodes after its logits, each reading `logits` or the one before ("-")."""
    graph = tiny_graph(Dims())
    last, nodes = graph.output("logits"), list(graph.nodes)
    for at, (op, inputs, attrs) in enumerate(tail):
        nodes.append(Node(op, tuple(last if i == "-" else i for i in inputs), f"t{at}", attrs))
        last = f"t{at}"
    return replace(graph, nodes=tuple(nodes), outputs=tuple((n, last if n == "logits" else v) for n, v in graph.outputs))


PLAIN = tiny_graph(Dims())
ENDS_EARLY = replace(
    PLAIN, nodes=PLAIN.nodes[:-1], outputs=tuple((n, PLAIN.output("hidden.final" if n == "logits" else n)) for n, _ in PLAIN.outputs)
)
HEADS = {  # graph, nodes in the head, the output that it starts from
    "a linear": (PLAIN, 1, "hidden.final"),
    "capped and scaled": (with_tail(("scale", ("-",), (("by", 0.5),)), ("softcap", ("-",), (("cap", 3.0),))), 3, "hidden.final"),
    "mixes positions": (with_tail(("transpose", ("-",), (("perm", (0, 1, 2)),))), 0, "logits"),
    "reads the body": (with_tail(("linear", ("-", "head"), ()), ("add", ("-", PLAIN.output("hidden.0")), ())), 0, "logits"),
    "no hidden.final": (replace(PLAIN, outputs=tuple(o for o in PLAIN.outputs if o[0] != "hidden.final")), 0, "logits"),
    "another output inside": (replace(PLAIN, outputs=(*PLAIN.outputs, ("hidden.last", PLAIN.output("logits")))), 0, "logits"),
    "ends with hidden.final": (ENDS_EARLY, 0, "hidden.final"),
}


@pytest.mark.parametrize("case", HEADS)
def test_where_the_head_begins(case: str) -> None:
    graph, nodes, start = HEADS[case]
    head = head_of(graph)
    assert (len(head.outputs), head.start) == (nodes, graph.output(start))


@pytest.mark.parametrize("case", [c for c in HEADS if c != "reads the body"])
@pytest.mark.parametrize("backend", [NumpyBackend, TorchBackend])
def test_pieces_are_the_interpreters_logits(case: str, backend: type) -> None:
    graph = HEADS[case][0]
    weights, ids = MemoryWeights(graph), np.arange(70) % 53
    model = Model(graph, weights, backend(), ModelOptions(context=80, vocab=53))
    expected = evaluate(graph, weights, ids[None])
    got = model.trace(ids)
    assert set(got) == set(expected)
    pieces = list(model.forward_pieces(ids))
    assert [len(p) for p in pieces] == [64, 6] == [WHOLE_PIECE, 70 - WHOLE_PIECE]
    for logits in (got["logits"], model.forward(ids), np.concatenate(pieces), model.session().append(ids)):
        assert logits.dtype == np.float32
        assert np.abs(logits - expected["logits"][0]).max() <= 2e-5 * np.abs(expected["logits"]).max()


def models(matrices: str) -> Model:
    """A model of one format ("" for a source, dense float32)."""
    graph, _ = run_pipeline(tiny_graph(WIDE), import_pipeline())
    weights = MemoryWeights(graph)
    options = ModelOptions(context=512, vocab=WIDE.vocab, block=16, prefill_chunk=16)
    if not matrices:
        return Model(graph, weights, TorchBackend(), options)
    return Model(encoded(graph, matrices), Packed(encoded(graph, matrices), weights), TorchBackend(), options)


@pytest.mark.parametrize("matrices", ["int4-sym-g64/1", "int6-sym-g64/1", "int2-aff-g32/1", "int8-sym-g128/1", "bf16/1", "f32/1", "fp8-row/1"])
def test_a_piece_of_whole_tiles_has_the_bits_of_the_whole_product(matrices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = models(matrices), np.arange(208) % WIDE.vocab
    whole = {}
    for piece in (208, WHOLE_PIECE, PIECE):
        monkeypatch.setattr("thinlm.runtime_min.model.WHOLE_PIECE", piece)
        whole[piece] = model.forward(ids)
    assert (whole[208] == whole[WHOLE_PIECE]).all()
    assert (whole[208] == whole[PIECE]).all()


@pytest.mark.parametrize("matrices", ["", "int4-sym-g64/1"])
def test_a_session_hands_out_the_same_pieces_however_it_is_asked(matrices: str) -> None:
    model, ids = models(matrices), np.arange(75) % WIDE.vocab
    with model.session() as s:
        whole = s.append(ids)
    with model.session() as s:
        pieces = list(s.append_pieces(ids, position=0))
    assert [len(p) for p in pieces] == [16, 16, 16, 16, 11]
    assert (np.concatenate(pieces) == whole).all()
    with model.session() as s:
        assert s.append_pieces(ids).__next__().shape == (16, WIDE.vocab)
        assert s.length == 16, "only what was taken is appended"


def test_pieces_are_the_callers_own() -> None:
    model, ids = models("int4-sym-g64/1"), np.arange(40) % WIDE.vocab
    kept = list(model.forward_pieces(ids))
    assert all(p.flags.owndata and p.flags.writeable for p in kept)
    with model.session() as s:
        first, second = s.advance(ids), s.advance([1])
    assert first.flags.owndata and second.flags.owndata


def test_bad_requests_are_refused_when_asked_and_not_later() -> None:
    model = models("")
    for bad in ([], [WIDE.vocab], np.zeros(513, int)):
        with pytest.raises(UsageError):
            model.forward_pieces(bad)
    with model.session() as s:
        for bad, position in (([], 0), ([WIDE.vocab], 0), ([1], 1), (np.zeros(513, int), 0)):
            with pytest.raises(UsageError):
                s.append_pieces(bad, position)
        pieces = s.append_pieces(np.zeros(48, int))
        next(pieces)
        s.append([1])
        with pytest.raises(UsageError, match="no longer the next"):
            list(pieces)
        assert s.length == 17


def test_a_long_text_holds_its_result_and_one_piece() -> None:
    dims, count = replace(WIDE, vocab=30000, hidden=16, ffn=16, heads=1, kv_heads=1), 256
    graph, _ = run_pipeline(tiny_graph(dims), import_pipeline())
    encodings = encoded(graph, "int4-sym-g32/1")
    model = Model(encodings, Packed(encodings, MemoryWeights(graph)), TorchBackend(), ModelOptions(context=count, vocab=dims.vocab))
    ids = np.arange(count)
    with StorageMeter() as meter:
        model.forward(ids[:16])
        before, meter.peak = meter.live, 0
        tracemalloc.start()
        result = model.forward(ids)
        _, numpy_peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    piece = 4 * WHOLE_PIECE * dims.vocab
    assert numpy_peak < result.nbytes + 1e6
    assert meter.peak - before < piece + 3e6 < result.nbytes / 2, "one piece, beside it decoded weights"
