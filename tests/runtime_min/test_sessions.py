"""Sessions and models over their whole life: broken off in the middle, closed, used by threads, sharing weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from thinlm.passes import import_pipeline, run_pipeline
from thinlm.runtime_min import SamplingParams, load
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model, ModelOptions, Session
from thinlm.schemas.errors import UsageError
from tiny import Dims, MemoryWeights, tiny_graph
from tiny_compiled import Recipe, build
from tiny_packed import Packed, encoded

DIMS = Dims(hidden=32, ffn=48, layers=2, heads=4, kv_heads=2, head_dim=8, vocab=61, windows=(9, 0))
GRAPH = encoded(run_pipeline(tiny_graph(DIMS), import_pipeline())[0], "int4-sym-g32/1")
WEIGHTS = Packed(GRAPH, MemoryWeights(run_pipeline(tiny_graph(DIMS), import_pipeline())[0]))


class Fault(Exception):
    """What a kernel might raise."""


class Faulty(TorchBackend):
    """Raises Fault at the `countdown`-th step from now on (never below 0)."""

    countdown = -1

    def kernel(self, op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
        fn = super().kernel(op, attrs)

        def counted(*args: Any, **more: Any) -> Any:
            self.countdown -= 1
            if self.countdown == 0:
                raise Fault
            return fn(*args, **more)

        return counted


def model(backend: TorchBackend | None = None, batch: int = 3, **changes: Any) -> Model:
    options = ModelOptions(context=40, vocab=61, block=8, prefill_chunk=8, batch=batch, kv_dtype="f16")
    return Model(GRAPH, WEIGHTS, backend or TorchBackend(), replace(options, **changes))


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 61, count)


ALONE = model()
OPERATIONS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 11), st.integers(0, 60)), min_size=1, max_size=25)


@settings(max_examples=25)
@given(OPERATIONS)
def test_interleaved_and_broken_off_sessions_equal_undisturbed_ones(operations: list[tuple[int, int, int]]) -> None:
    """(session, positions, step that fails; beyond a run's steps: none): the bits of each session run alone through what it has committed."""
    backend = Faulty()
    m = model(backend)
    sessions = [m.session() for _ in range(3)]
    done: list[list[tuple[np.ndarray, np.ndarray | None]]] = [[], [], []]
    for at, (number, count, fault) in enumerate(operations):
        session, tokens = sessions[number], ids(count, at)
        before = session.length
        if before + count > 40:
            with pytest.raises(UsageError, match="context"):
                session.append(tokens)
            session.close()
            sessions[number], done[number] = m.session(), []
            continue
        backend.countdown = fault
        try:
            done[number].append((tokens, session.append(tokens, position=before)))
        except Fault:
            stored = session.length - before  # whole chunks
            assert stored in (0, 8)
            done[number] += [(tokens[:stored], None)] if stored else []
        backend.countdown = -1
    for number, pieces in enumerate(done):
        with ALONE.session() as alone:
            for tokens, logits in pieces:
                expected = alone.append(tokens)
                assert logits is None or (logits == expected).all()
            tail = min(5, 40 - alone.length)
            if tail:
                assert (sessions[number].append(ids(tail), position=alone.length) == alone.append(ids(tail))).all()


USES: dict[str, Callable[[Session], object]] = {
    "append": lambda s: s.append([1]),
    "append_pieces": lambda s: s.append_pieces([1]),
    "advance": lambda s: s.advance([1]),
    "advance_all": lambda s: Session.advance_all([s], [1]),
    "stream": lambda s: next(s.stream([1], 3, SamplingParams())),
}
MODEL_USES: dict[str, Callable[[Model], object]] = {
    "forward": lambda m: m.forward([1]),
    "forward_pieces": lambda m: list(m.forward_pieces([1])),
    "trace": lambda m: m.trace([1]),
    "session": lambda m: m.session(),
    "generate": lambda m: m.generate([1], 2),
    "stream": lambda m: list(m.stream([1], 2)),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_session_refuses(use: str) -> None:
    m = model()
    with m.session() as session:
        session.append(ids(5))
    session.close()
    assert session.length == 5
    with pytest.raises(UsageError, match="session: it is closed"):
        USES[use](session)
    with m.session() as other:
        assert other.length == 0


@pytest.mark.parametrize("use", MODEL_USES)
@pytest.mark.parametrize("closed", ["itself", "its twin"])
def test_a_closed_model_refuses(use: str, closed: str) -> None:
    m = model()
    twin = m.with_kv(None)
    session, other = m.session(), twin.session()
    session.append(ids(3))
    (m if closed == "itself" else twin).close()
    with pytest.raises(UsageError, match="model: it is closed"):
        MODEL_USES[use](m)
    for s in (session, other):
        for use_session in USES.values():
            with pytest.raises(UsageError, match="closed"):
                list(use_session(s))  # pyright: ignore[reportArgumentType, reportCallIssue]
        s.close()
    m.close()
    twin.close()


def test_kv_encodings_share_weights_and_nothing_else() -> None:
    m = model(batch=1)
    exact = m.with_kv(None)
    with m.session() as one, exact.session() as two:
        half, whole = one.append(ids(30)), two.append(ids(30))
        for full in (m, exact):
            with pytest.raises(UsageError, match="batch"):
                full.session()
    assert (half != whole).any()
    assert (model().session().append(ids(30)) == half).all()
    assert (model(kv_dtype=None).session().append(ids(30)) == whole).all()
    assert (m.forward(ids(30)) != exact.forward(ids(30))).any()


def test_an_artifact_loaded_twice_is_two_models(tmp_path: Path) -> None:
    path = build(tmp_path, Recipe(matrices="int4-sym-g32/1", predicted=1 << 40))
    first, second = load(path), load(path)
    expected = first.forward(ids(20))
    assert (second.forward(ids(20)) == expected).all()
    assert first.identity == second.identity
    with first.session() as a, second.session() as b:
        assert (a.append(ids(20)) == b.append(ids(20))).all()
    first.close()
    assert (second.forward(ids(20)) == expected).all()


def test_a_session_in_step_with_itself_is_refused() -> None:
    session = model().session()
    with pytest.raises(UsageError, match="in use"):
        Session.advance_all([session, session], [1, 2])
    assert session.length == 0


def test_stopping_a_stream_gives_its_blocks_back() -> None:
    m = model(batch=1)
    for _ in range(3):
        for _ in m.stream(ids(12).tolist(), 20, ignore_eos=True):
            break
    assert len(m.generate(ids(5).tolist(), 4, ignore_eos=True)) == 4


def operations(m: Model, seed: int, count: int) -> list[bytes]:
    """Random use of one session at a time: every result's bytes."""
    rng = np.random.default_rng(seed)
    session, out = m.session(), []
    for _ in range(count):
        tokens = rng.integers(0, 61, rng.integers(1, 14))
        match rng.integers(0, 10):
            case 0:
                session.close()
                session = m.session()
            case 1:
                out.append(m.forward(tokens).tobytes())
            case 2 | 3 if session.length + len(tokens) <= 40:
                out.append(session.advance(tokens).tobytes())
            case _ if session.length + len(tokens) <= 40:
                out.append(session.append(tokens).tobytes())
            case _:
                with pytest.raises(UsageError, match="context"):
                    session.append(tokens)
                session.close()
                session = m.session()
    session.close()
    return out


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.full)])
def test_threads_with_a_session_each_get_what_they_would_alone(count: int) -> None:
    shared, results = model(batch=4), {}

    def work(seed: int) -> None:
        results[seed] = operations(shared, seed, count)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed in range(4):
        assert results.get(seed) == operations(ALONE, seed, count), f"thread {seed}"
    shared.session().close()
