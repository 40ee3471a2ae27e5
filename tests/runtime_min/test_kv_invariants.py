"""The cache under random use, against lists of keys in plain Python: texts opened, extended, broken off and closed in any order.

After every step all storage that no query may see is overwritten with NaN, so that a stale, foreign or half-written value can't be read
unnoticed: a read is compared bit for bit with what the list holds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from thinlm.runtime_min.backend import Backend
from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.kv import KVCache, Sequence
from thinlm.schemas.errors import UsageError
from thinlm.schemas.kv import KVSlot


class Broken(Exception):
    """What a kernel might raise."""


@dataclass
class Text:
    """One sequence and what it should hold: per slot the keys and values [T, heads, dim] as they were given."""

    sequence: Sequence
    keys: dict[int, list[np.ndarray]]
    values: dict[int, list[np.ndarray]] = field(default_factory=dict)
    open: bool = True

    @property
    def length(self) -> int:
        return len(next(iter(self.keys.values())))


def slot(number: int, heads: int, dims: tuple[int, int], window: int, geometry: tuple[int, int]) -> KVSlot:
    block, context = geometry
    positions = min(context, window + block) if window else context
    return KVSlot(
        slot=number, dtype="f32", heads=heads, key_dim=dims[0], value_dim=dims[1], window=window, block=block, blocks=-(-positions // block)
    )


class Cache(RuleBasedStateMachine):
    """Random use of one cache whose slots all differ."""

    backend: Backend = NumpyBackend()
    texts, closed = Bundle("texts"), Bundle("closed")

    @initialize(
        block=st.sampled_from([1, 2, 4, 7]),
        context=st.integers(12, 40) | st.integers(1, 8),
        batch=st.integers(1, 3),
        windows=st.lists(st.sampled_from([0, 1, 3, 8]), min_size=1, max_size=3),
    )
    def start(self, block: int, context: int, batch: int, windows: list[int]) -> None:
        self.context, self.batch, self.count = context, batch, 0
        self.slots = tuple(slot(3 * n, n + 1, (n + 2, 2 * n + 1), w, (block, context)) for n, w in enumerate(windows))
        self.cache = KVCache(self.backend, self.slots, context, batch)
        self.all: list[Text] = []
        self.poison()

    def fresh(self, heads: int, count: int, dim: int) -> np.ndarray:
        """[1, count, heads, dim] of numbers never used before (exact in float32)."""
        self.count += count * heads * dim
        return np.arange(self.count - count * heads * dim, self.count, dtype=np.float32).reshape(1, count, heads, dim)

    @rule(target=texts)
    def open(self) -> Any:
        live = [t for t in self.all if t.open]
        if len(live) == self.batch:
            with pytest.raises(UsageError, match="batch"):
                self.cache.open()
            return multiple()
        text = Text(self.cache.open(), {s.slot: [] for s in self.slots}, {s.slot: [] for s in self.slots})
        self.all.append(text)
        return text

    @rule(text=texts, count=st.integers(1, 8))
    def append(self, text: Text, count: int) -> None:
        self.store(text, count, broken_after=None)

    @rule(text=texts, count=st.integers(1, 8), after=st.integers(0, 3))
    def break_off(self, text: Text, count: int, after: int) -> None:
        self.store(text, count, broken_after=after)

    def store(self, text: Text, count: int, broken_after: int | None) -> None:
        count, length = min(count, self.cache.chunk_limit), text.length
        if not text.open or length + count > self.context:
            with pytest.raises(UsageError, match="closed" if not text.open else "context"), text.sequence.storing(count):
                pytest.fail("it was let in")
            return
        wanted = {}
        try:
            with text.sequence.storing(count):
                for n, s in enumerate(self.slots):
                    if n == broken_after:
                        raise Broken
                    wanted[s.slot] = self.extend(text, s, count)
                if broken_after is not None:
                    raise Broken
        except Broken:
            assert text.sequence.length == length
        else:
            for number, (k, v) in wanted.items():
                text.keys[number] += list(k[0])
                text.values[number] += list(v[0])
        self.poison()

    def extend(self, text: Text, s: KVSlot, count: int) -> tuple[np.ndarray, np.ndarray]:
        k, v = self.fresh(s.heads, count, s.key_dim), self.fresh(s.heads, count, s.value_dim)
        low = max(0, text.length - s.window + 1) if s.window else 0
        put = self.backend.put
        for given in ((put(k), put(v)), (None, None)):  # the second is a layer that shares the slot
            keys, values, first = text.sequence.extend(s.slot, *given)
            assert first == low
            np.testing.assert_array_equal(self.backend.read(keys)[0], np.array([*text.keys[s.slot][low:], *k[0]]))
            np.testing.assert_array_equal(self.backend.read(values)[0], np.array([*text.values[s.slot][low:], *v[0]]))
        return k, v

    @rule(text=consumes(texts), target=closed)
    def close(self, text: Text) -> Text:
        text.sequence.close()
        text.open = False
        self.poison()
        return text

    @rule(text=closed, count=st.integers(1, 8))
    def use_closed(self, text: Text, count: int) -> None:
        text.sequence.close()
        self.store(text, count, broken_after=None)

    @invariant()
    def every_block_has_one_place(self) -> None:
        for s in getattr(self, "slots", ()):
            pool = self.cache.pools()[s.slot]
            held = [block for t in self.all for block in t.sequence._tables.get(s.slot, ())]
            assert sorted([*held, *pool.free]) == list(range(self.batch * s.blocks)), "a block is lost, or in two places"
            assert sorted(held) == sorted(pool.owner)
            assert all(t.open or not t.sequence._tables for t in self.all)

    def poison(self) -> None:
        """NaN wherever no query of an open text can look."""
        for s in self.slots:
            pool = self.cache.pools()[s.slot]
            stale = np.ones(self.batch * s.capacity, bool)
            for text in (t for t in self.all if t.open):
                table = text.sequence._tables[s.slot]
                for p in range(max(0, text.length - s.window + 1) if s.window else 0, text.length):
                    stale[table[p // s.block % s.blocks] * s.block + p % s.block] = False
            where = np.flatnonzero(stale)
            for store, dim in ((pool.keys, s.key_dim), (pool.values, s.value_dim)):
                store.write(where, self.backend.put(np.full((1, len(where), s.heads, dim), np.nan, np.float32)))


class TorchCache(Cache):
    """The same with the backend that ships."""

    backend = TorchBackend()


Cache.TestCase.settings = TorchCache.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCache, TestTorchCache = Cache.TestCase, TorchCache.TestCase


def test_a_sequence_in_use_is_refused_to_others() -> None:
    cache = KVCache(NumpyBackend(), (slot(0, 1, (2, 2), 0, (4, 16)),), 16, 1)
    sequence = cache.open()
    with sequence.storing(2):
        with pytest.raises(UsageError, match="in use"), sequence.storing(1):
            pytest.fail("it was let in")
        with pytest.raises(UsageError, match="in use"):
            sequence.close()
    assert sequence.length == 2
    sequence.close()


def test_threads_share_a_pool() -> None:
    slots = (slot(0, 1, (1, 1), 0, (2, 12)), slot(1, 2, (3, 2), 3, (2, 12)))
    cache, failed = KVCache(NumpyBackend(), slots, 12, 4), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            sequence, base = cache.open(), float(rng.integers(1 << 20))
            while sequence.length < 12:
                length = sequence.length
                with sequence.storing(int(rng.integers(1, min(2, 12 - length) + 1))):
                    count = sequence._pending
                    for s in slots:
                        given = base + np.arange(length, length + count, dtype=np.float32)[None, :, None, None]
                        keys, _, low = sequence.extend(s.slot, np.tile(given, (s.heads, s.key_dim)), np.tile(given, (s.heads, s.value_dim)))
                        if not (keys[0, :, 0, 0] == base + np.arange(low, length + count)).all():
                            failed.append((seed, length))
            sequence.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert all(sorted(p.free) == list(range(4 * p.slot.blocks)) and not p.owner for p in cache.pools().values())
