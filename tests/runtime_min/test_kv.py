"""The paged cache: who owns a block, what a query reads back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from thinlm.runtime_min.backends.numpy_ref import NumpyBackend
from thinlm.runtime_min.kv import KVCache, Transient
from thinlm.schemas.errors import UsageError
from thinlm.schemas.kv import KVDtype, KVSlot

BACKEND = NumpyBackend()


def slot(number: int = 0, window: int = 0, block: int = 4, context: int = 32, dtype: KVDtype = "f32") -> KVSlot:
    positions = min(context, window + block) if window else context
    return KVSlot(slot=number, dtype=dtype, heads=1, key_dim=2, value_dim=3, window=window, block=block, blocks=-(-positions // block))


def tokens(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values that name their position: [1, T, 1, dim]."""
    p = np.arange(start, start + count, dtype=np.float32)[None, :, None, None]
    return np.repeat(p, 2, -1), np.repeat(p + 0.5, 3, -1)


@given(st.sampled_from([0, 1, 3, 8]), st.sampled_from([1, 2, 4]), st.lists(st.integers(1, 4), max_size=12))
def test_reads_back_what_the_window_shows(window: int, block: int, pieces: list[int]) -> None:
    cache = KVCache(BACKEND, (slot(0, window, block, 64), slot(1, 0, block, 64)), 64, 1)
    sequence = cache.open()
    for wanted in pieces:
        count = min(wanted, cache.chunk_limit)
        with sequence.storing(count):
            for number, w in ((0, window), (1, 0)):
                keys, values, low = sequence.extend(number, *tokens(sequence.length, count))
                assert low == (max(0, sequence.length - w + 1) if w else 0)
                expected = np.arange(low, sequence.length + count, dtype=np.float32)
                assert (keys[0, :, 0, 0] == expected).all() and (values[0, :, 0, 2] == expected + 0.5).all()
    sequence.close()
    assert all(not p.owner for p in cache.pools().values())


def test_sequences_share_no_block_and_freed_blocks_return() -> None:
    cache = KVCache(BACKEND, (slot(context=8),), 8, 2)
    one, two = cache.open(), cache.open()
    for _ in range(2):
        for s, base in ((one, 0), (two, 100)):
            with s.storing(4):
                s.extend(0, *tokens(base + s.length, 4))
    pool = cache.pools()[0]
    assert sorted(pool.owner) == [0, 1, 2, 3] and len(set(pool.owner.values())) == 2
    with pytest.raises(UsageError, match="batch"):
        cache.open()
    one.close()
    three = cache.open()
    with three.storing(4):
        keys, _, _ = three.extend(0, *tokens(7, 4))
    assert keys[0, 0, 0, 0] == 7
    pool.free.insert(0, min(pool.owner))
    with pytest.raises(AssertionError, match="two owners"):
        pool.take(9)
    with pytest.raises(AssertionError, match="stranger"):
        pool.give(sorted(pool.owner)[0], 12345)


def test_context_is_a_hard_limit() -> None:
    sequence = KVCache(BACKEND, (slot(context=8),), 8, 1).open()
    with sequence.storing(8):
        sequence.extend(0, *tokens(0, 8))
    with pytest.raises(UsageError, match="context: 9"), sequence.storing(1):
        pass


@pytest.mark.parametrize(("dtype", "rounded"), [("f32", 1 + 2**-12), ("f16", 1.0), ("bf16", 1.0)])
def test_the_newest_position_is_read_back_as_stored(dtype: KVDtype, rounded: float) -> None:
    k = np.full((1, 1, 1, 2), 1 + 2**-12, np.float32)
    v = np.zeros((1, 1, 1, 3), np.float32)
    sequence = KVCache(BACKEND, (slot(dtype=dtype),), 32, 1).open()
    with sequence.storing(1):
        assert sequence.extend(0, k, v)[0].flat[0] == np.float32(rounded)
    transient = Transient(BACKEND, dtype)
    assert transient.extend(0, k, v)[0].flat[0] == np.float32(rounded)
    assert transient.extend(0, None, None)[0].flat[0] == np.float32(rounded)
    assert Transient(BACKEND, None).extend(0, k, v)[0] is k
