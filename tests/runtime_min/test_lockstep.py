"""Several texts in step give what each gives alone, whatever their lengths and wherever they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.lockstep import continue_texts
from thinlm.runtime_min.model import Model, ModelOptions, Session
from thinlm.schemas.errors import UsageError
from tiny import Dims, MemoryWeights, tiny_graph

BACKENDS: dict[str, Callable[[], Any]] = {"interp": NumpyBackend, "torch": TorchBackend}
CASES = {"tied": Dims(), "windows": Dims(tied=False, bias=False, windows=(3, 0, 5))}
TEXTS = tuple(np.random.default_rng(n).integers(0, 53, size).tolist() for n, size in enumerate((9, 1, 30, 17)))


def model(backend: str = "torch", case: str = "tied", kind: str = "artifact", **options: object) -> Model:
    graph = tiny_graph(CASES[case])
    given = {"context": 48, "vocab": 53, "block": 8, "prefill_chunk": 8, **options}
    return Model(graph, MemoryWeights(graph, kind=kind), BACKENDS[backend](), ModelOptions(**given))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["source", "artifact"])
def test_equals_each_text_alone(backend: str, case: str, kind: str) -> None:
    """More than the context has room for: every text ends where it would alone."""
    m = model(backend, case, kind)
    alone = [m.generate(text, 40) for text in TEXTS]
    assert [len(a) for a in alone] == [40, 40, 19, 32]
    assert continue_texts(m, TEXTS, 40) == alone
    assert continue_texts(m, TEXTS, 3) == [a[:3] for a in alone]


def test_texts_end_at_their_own_ends() -> None:
    m = model(case="windows")
    free = [m.generate(text, 12) for text in TEXTS]
    stop = free[0][2]
    ended = m.running(replace(m.options, eos=(stop,)))
    got = continue_texts(ended, TEXTS, 12)
    assert got == [ended.generate(text, 12) for text in TEXTS]
    assert got[0] == free[0][: free[0].index(stop) + 1]
    assert max(map(len, got)) == 12, "the others go on"


def test_logits_are_those_of_each_session() -> None:
    m = model(batch=4, kv_dtype="f16")
    with m.session() as a, m.session() as b, m.session() as lone:
        a.advance(TEXTS[0])
        b.advance(TEXTS[2])
        lone.advance(TEXTS[2])
        for step in range(12):
            got = Session.advance_all([a, b], [step, step + 1])
            np.testing.assert_allclose(got[1], lone.advance([step + 1]), atol=2e-5)
        assert (a.length, b.length) == (21, 42)


def test_refused() -> None:
    m = model(batch=2)
    with pytest.raises(UsageError, match="outside the vocabulary"):
        continue_texts(m, [[1], [53]], 2)
    with pytest.raises(UsageError, match="empty"):
        continue_texts(m, [[1], []], 2)
    with pytest.raises(UsageError, match="context"):
        continue_texts(m, [[1] * 49], 2)
    with m.session() as a, m.session() as b:
        a.advance([1] * 48)
        b.advance([1])
        with pytest.raises(UsageError, match="context: 49 positions"):
            Session.advance_all([a, b], [1, 1])
        assert (a.length, b.length) == (48, 1), "none of them moved"
    assert continue_texts(m, [], 5) == []
    assert continue_texts(m, TEXTS, 0) == [[]] * 4
