"""The interpreter over streamed weights: no matrix is held decoded, and the values are those of plain arrays."""

from __future__ import annotations

import numpy as np
import pytest

from thinlm.runtime_min import interp_weights
from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.interp import evaluate, logits_in_pieces
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.schemas.errors import InputError
from tiny import Dims, MemoryWeights, tiny_graph

CASES = {"tied": Dims(), "untied": Dims(tied=False, bias=False, vocab=301)}
IDS = np.random.default_rng(0).integers(0, 53, (2, 150))


class Frugal(MemoryWeights):
    """Gives vectors whole and matrices in parts; `largest` is the largest part so far."""

    largest = 0

    def f32(self, name: str) -> np.ndarray:
        assert self.arrays[name].ndim == 1, f"{name} was asked for whole"
        return self.arrays[name]

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        part = self.arrays[name][rows, cols].copy()
        self.largest = max(self.largest, len(part) if isinstance(rows, slice) else 0)
        return part


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_streamed_weights_give_the_values_of_arrays(case: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph(CASES[case])
    weights = Frugal(graph)
    whole = evaluate(graph, weights.arrays, IDS, dtype)
    monkeypatch.setattr(interp_weights, "BLOCK", 5 * 40 * np.dtype(dtype).itemsize)
    streamed = evaluate(graph, weights, IDS, dtype)
    assert 0 < weights.largest <= 5 * 40 // min(24, CASES[case].hidden)
    for name, value in whole.items():
        assert streamed[name].dtype == dtype
        np.testing.assert_allclose(streamed[name], value, rtol=0, atol=np.finfo(dtype).eps * 100 * np.abs(value).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_in_pieces_are_the_logits(case: str) -> None:
    graph = tiny_graph(CASES[case])
    weights = Frugal(graph)
    pieces = list(logits_in_pieces(graph, weights, IDS))
    assert len(pieces) == 3
    whole = evaluate(graph, weights.arrays, IDS)["logits"]
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole, rtol=0, atol=1e-12)


def test_the_interpreter_as_a_device_streams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph(CASES["tied"])
    weights = Frugal(graph)
    monkeypatch.setattr(interp_weights, "BLOCK", 1)
    got = Model(graph, weights, NumpyBackend(), ModelOptions(context=64, vocab=53)).forward(IDS[0, :40])
    assert weights.largest == 1
    np.testing.assert_allclose(got, evaluate(graph, weights.arrays, IDS[:1, :40])["logits"][0], atol=1e-5)


@pytest.mark.parametrize("bad", [-1, 53])
def test_ids_outside_the_table_are_refused(bad: int) -> None:
    graph = tiny_graph(CASES["tied"])
    with pytest.raises(InputError, match=r"ids must lie in \[0, 53\)"):
        evaluate(graph, Frugal(graph), np.array([[1, bad]]))
