"""The engine: a lowered program equals the interpreter, cached decode equals prefill at every split, and generation stops where it must."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.interp import evaluate
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.schemas.errors import UsageError
from tiny import Dims, MemoryWeights, tiny_graph

BACKENDS: dict[str, Callable[[], object]] = {"interp": NumpyBackend, "torch": TorchBackend}
CASES = {"tied": Dims(), "untied": Dims(tied=False, bias=False, windows=(3, 0, 5)), "wide": Dims(heads=6, kv_heads=6, windows=(0, 0, 0))}


def model(backend: str, dims: Dims = CASES["tied"], kind: str = "source", **options: object) -> Model:
    graph = tiny_graph(dims)
    given = {"context": 64, "vocab": dims.vocab, "block": 8, "prefill_chunk": 8, **options}
    return Model(graph, MemoryWeights(graph, kind=kind), BACKENDS[backend](), ModelOptions(**given))


def ids(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 53, count)


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 2e-5) -> bool:
    return bool(np.abs(a - b).max() <= tolerance * np.abs(b).max())


@pytest.mark.parametrize("kind", ["source", "artifact"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_trace_equals_interp(backend: str, case: str, kind: str) -> None:
    m = model(backend, CASES[case], kind)
    got, expected = m.trace(ids(33)), evaluate(m.graph, m.weights, ids(33)[None])
    assert set(got) == set(expected) == {"hidden.embed", *(f"hidden.{i}" for i in range(3)), "hidden.final", "logits"}
    assert all(close(got[n], expected[n][0]) for n in got)
    assert close(m.forward(ids(33)), expected["logits"][0])


@pytest.mark.parametrize("kv_dtype", [None, "f16", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cached_equals_prefill_at_every_split(backend: str, kv_dtype: str | None) -> None:
    m, text = model(backend, kv_dtype=kv_dtype), ids(40)
    whole = m.forward(text)
    tolerance = {None: 2e-5, "f16": 1e-3, "bf16": 8e-3}[kv_dtype]  # a last-bit difference may move a key to the next stored number
    for split in range(1, 40, 3 if backend == "interp" else 1):
        with m.session() as s:
            first, second = s.append(text[:split]), s.append(text[split:], position=split)
        assert close(np.concatenate([first, second]), whole, tolerance), split
    with m.session() as s:
        assert close(np.concatenate([s.append([t]) for t in text]), whole, tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
def test_advance_is_the_last_row_of_append(backend: str) -> None:
    m = model(backend)
    with m.session() as s:
        last = s.advance(ids(13))
    assert close(last, m.forward(ids(13))[-1])


@pytest.mark.parametrize("block", [4, 8, 64])
def test_blocks_change_nothing(block: int) -> None:
    assert model("torch", block=block, prefill_chunk=4).generate(ids(9), 40, ignore_eos=True) == model("torch").generate(ids(9), 40, ignore_eos=True)


def test_generate_is_greedy_and_stops() -> None:
    m = model("torch", context=20)
    text, new = list(ids(6)), []
    for _ in range(10):
        new.append(int(m.forward(text + new)[-1].argmax()))
    assert m.generate(text, 10, ignore_eos=True) == new
    stop = model("torch", context=20, eos=(new[3],))
    assert stop.generate(text, 10) == new[: new.index(new[3]) + 1]
    assert len(m.generate(text, 1000, ignore_eos=True)) == 20 - 6 + 1, "the context ends generation"
    assert m.generate(text, 0) == []
    drawn = [m.generate(text, 12, temperature=1.0, seed=seed) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_sampling_never_leaves_the_tokenizer() -> None:
    few = model("torch", vocab=3)
    assert set(few.generate(ids(4), 30, temperature=3.0, ignore_eos=True)) <= {0, 1, 2}


@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals(backend: str) -> None:
    m = model(backend, context=12)
    for bad, words in (([], "empty"), ([53], "outside"), ([-1], "outside"), (ids(13), "context: 13")):
        with pytest.raises(UsageError, match=words):
            m.forward(bad)
    with m.session() as s:
        s.append(ids(4))
        for position, words in ((5, "gap"), (3, "overlap"), (0, "overlap")):
            with pytest.raises(UsageError, match=words):
                s.append([1], position=position)
        with pytest.raises(UsageError, match="context: 13"):
            s.append(ids(9))
        assert s.length == 4
        s.append(ids(8))
        with pytest.raises(UsageError, match="batch"):
            m.session()
    with m.session() as again:
        assert again.length == 0
