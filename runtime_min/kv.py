"""The KV cache: blocks of positions from one pool per slot, handed to sequences, encoded as the plan says.

`KVCache` owns the storage; `Sequence` is one text's place in it. Invariants, checked here: a block has one owner; a freed block comes back
to its own slot's pool; positions are appended without gap or overlap, and count only once every slot has stored them; a sequence never
outgrows its context. What a query reads back is always what the cache stores, the newest positions included, so prefill in any chunks and
decode read the same numbers. A slot with a window reuses its oldest block once no query can see it (`KVSlot.blocks` leaves room for one
block more than the window). Sequences of one cache may run in threads of their own; one sequence is for one thread at a time.
Refused (UsageError): more sequences than the batch, more positions than the context, a closed sequence, one that is in use.

`Transient` serves whole-sequence runs without blocks, through the same encoding; with dtype None it stores nothing and rounds nothing.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.kv import KVDtype, KVSlot
from .backend import Array, Backend


class KV(Protocol):
    """What a program needs of a cache: append [1, T, heads, dim] to a slot (None reads only) and get back the visible keys and values.

    Returns keys and values [1, S, heads, dim], float32, and the position of the first of them.
    """

    def extend(self, slot: int, k: Array | None, v: Array | None) -> tuple[Array, Array, int]: ...


@dataclass(slots=True)
class _Pool:
    """Storage of one slot for all sequences: `keys` and `values` are flat stores over positions; block b holds [b * block, (b + 1) * block)."""

    slot: KVSlot
    keys: Any
    values: Any
    free: list[int]
    owner: dict[int, int] = field(default_factory=dict)

    def take(self, owner: int) -> int:
        assert self.free, f"KV slot {self.slot.slot} has no free block: the plan's figure is wrong"
        block = heapq.heappop(self.free)
        assert block not in self.owner, f"KV block {block} of slot {self.slot.slot} has two owners"
        self.owner[block] = owner
        return block

    def give(self, block: int, owner: int) -> None:
        found = self.owner.pop(block, None)
        assert found == owner, f"KV block {block} of slot {self.slot.slot} is freed by a stranger"
        heapq.heappush(self.free, block)


class KVCache:
    """Storage for `batch` sequences of `context` positions."""

    def __init__(self, backend: Backend, slots: tuple[KVSlot, ...], context: int, batch: int) -> None:
        self.context = context
        self.chunk_limit = min((s.block for s in slots if s.window), default=context)
        self._batch, self._count, self._live = batch, 0, 0
        self.lock = threading.Lock()  # guards pools, counts and which sequence is in use
        self._pools: dict[int, _Pool] = {}
        for s in slots:
            positions = batch * s.capacity
            keys = backend.alloc((positions, s.heads, s.key_dim), s.dtype)
            values = backend.alloc((positions, s.heads, s.value_dim), s.dtype)
            self._pools[s.slot] = _Pool(s, keys, values, list(range(batch * s.blocks)))

    def open(self) -> Sequence:
        """A new empty sequence; UsageError when `batch` sequences are open already."""
        with self.lock:
            if self._live == self._batch:
                raise UsageError(f"batch: {self._batch} sequences are open, there is room for no more; close one or compile with a larger --batch")
            self._live, self._count = self._live + 1, self._count + 1
            return Sequence(self, self._count)

    def pools(self) -> dict[int, _Pool]:
        """The pools by slot."""
        return self._pools

    def release(self, tables: dict[int, list[int]], owner: int) -> None:
        """A sequence has closed: its blocks go back. The lock is held."""
        for slot, table in tables.items():
            for block in table:
                self._pools[slot].give(block, owner)
        self._live -= 1


class Sequence:
    """One text's positions in a cache, of which `length` are stored; `with storing(n):` the next n are."""

    def __init__(self, cache: KVCache, owner: int) -> None:
        self._cache, self._owner = cache, owner
        self._tables: dict[int, list[int]] = {slot: [] for slot in cache.pools()}
        self.length = 0
        self._pending = 0
        self._open = True

    def check_room(self, count: int) -> None:
        """UsageError when closed, or unless `count` more positions fit the context."""
        if not self._open:
            raise UsageError("session: it is closed; open another")
        end = self.length + count
        if end > self._cache.context:
            raise UsageError(f"context: {end} positions asked for, the plan has room for {self._cache.context}; compile with a larger --context")

    @contextmanager
    def storing(self, count: int) -> Iterator[None]:
        """The next `count` positions are stored inside (`extend`, once a slot). An error inside leaves the sequence as it was before."""
        assert 0 < count <= self._cache.chunk_limit, f"{count} positions at once, the cache takes {self._cache.chunk_limit}"
        with self._cache.lock:
            self.check_room(count)
            self._require_idle()
            self._reserve(self.length + count)
            self._pending = count
        try:
            yield
            self.length += count
        finally:
            self._pending = 0

    def _require_idle(self) -> None:
        if self._pending:
            raise UsageError("session: it is in use already; give each thread a session of its own")

    def _reserve(self, end: int) -> None:
        for slot, pool in self._cache.pools().items():
            table = self._tables[slot]
            while len(table) < min(-(-end // pool.slot.block), pool.slot.blocks):
                table.append(pool.take(self._owner))

    def extend(self, slot: int, k: Array | None, v: Array | None) -> tuple[Array, Array, int]:
        """Store the announced positions and read back all that the first of them can see, up to the last; see `KV`."""
        assert self._pending, "nothing is being stored"
        pool = self._cache.pools()[slot]
        start, end = self.length, self.length + self._pending
        if k is not None:
            where = self._index(pool.slot, start, end)
            pool.keys.write(where, k)
            pool.values.write(where, v)
        low = max(0, start - pool.slot.window + 1) if pool.slot.window else 0
        where = self._index(pool.slot, low, end)
        return pool.keys.read(where), pool.values.read(where), low

    def _index(self, slot: KVSlot, low: int, high: int) -> slice | np.ndarray:
        """Flat positions of [low, high): a slice where blocks lie in order, else an index."""
        table, block = self._tables[slot.slot], slot.block
        blocks = [table[b % slot.blocks] for b in range(low // block, -(-high // block))]
        if all(b == blocks[0] + i for i, b in enumerate(blocks)):
            first = blocks[0] * block + low % block
            return slice(first, first + high - low)
        positions = np.arange(low, high)
        return np.asarray(blocks)[positions // block - low // block] * block + positions % block

    def close(self) -> None:
        """Give the blocks back; closing twice is allowed, UsageError while the sequence is in use."""
        with self._cache.lock:
            self._require_idle()
            if self._open:
                self._open = False
                self._cache.release(self._tables, self._owner)
                self._tables = {}


class Transient:
    """KV of one whole-sequence run: every key at once, rounded as `dtype` rounds (None: not at all)."""

    def __init__(self, backend: Backend, dtype: KVDtype | None) -> None:
        self._backend, self._dtype = backend, dtype
        self._held: dict[int, tuple[Array, Array]] = {}

    def extend(self, slot: int, k: Array | None, v: Array | None) -> tuple[Array, Array, int]:
        """See `KV`."""
        if k is not None:
            self._held[slot] = (self._round(k), self._round(v))
        return (*self._held[slot], 0)

    def _round(self, x: Array) -> Array:
        if self._dtype is None:
            return x
        store = self._backend.alloc(tuple(x.shape[1:]), self._dtype)
        store.write(slice(None), x)
        return store.read(slice(None))
