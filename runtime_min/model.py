"""A model that runs: the interface that artifacts and sources share (design.md section 8).

`forward` and `trace` run a whole text at once, keys and values rounded as the cache would; `session` runs it piece by piece through paged
KV; `generate` and `stream` sample new tokens. All arrays are numpy; ids are plain ints. Refused (UsageError): empty input, ids outside the
vocabulary, more positions than the context, a gap or overlap in `append`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.graph import Graph
from ..schemas.kv import KVDtype, kv_slots
from .backend import Array, Backend
from .kv import KVCache, Sequence as KVSequence, Transient
from .program import Program
from .sample import SamplingParams, sample
from .weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """How a model is run: what the certificate covers. `kv_dtype` None stores keys and values unrounded (float32)."""

    context: int
    vocab: int  # ids below this may be sampled
    eos: tuple[int, ...] = ()
    batch: int = 1
    kv_dtype: KVDtype | None = None
    block: int = 64
    prefill_chunk: int = 64


class Model:
    """`graph` and its `weights`, resident on a backend."""

    def __init__(self, graph: Graph, weights: Weights, backend: Backend, options: ModelOptions) -> None:
        self.graph, self.weights, self.options = graph, weights, options
        self._backend = backend
        self._program = Program(graph, weights, backend)
        self._rows = next(p.shape[0] for p in graph.params if p.role == "embed")
        self._cache: KVCache | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """payload_root, or a digest of the source."""
        return self.weights.identity

    @property
    def kind(self) -> str:
        """"artifact" or "source"."""
        return self.weights.kind

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    def forward(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Logits float32 [T, V] of a whole text."""
        return self._whole(ids, ("logits",))["logits"]

    def trace(self, ids: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """All named outputs, float32: `logits` [T, V], `hidden.embed`, `hidden.0`.., `hidden.final` [T, H]."""
        return self._whole(ids, tuple(name for name, _ in self.graph.outputs))

    def _whole(self, ids: Sequence[int] | np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        tokens = self.check_ids(ids)
        if tokens.shape[1] > self.options.context:
            raise UsageError(f"context: {tokens.shape[1]} positions asked for, this model has {self.options.context}")
        out = self._program.run(tokens, 0, Transient(self._backend, self.options.kv_dtype), names)
        return {n: self.read(x) for n, x in out.items()}

    def check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Ids as int32 [1, T]; UsageError when empty or outside the embedding."""
        tokens = np.asarray(ids, np.int64).reshape(1, -1)
        if tokens.size == 0:
            raise UsageError("ids: empty; give at least one token")
        if tokens.min() < 0 or tokens.max() >= self._rows:
            worst = int(tokens.max() if tokens.max() >= self._rows else tokens.min())
            raise UsageError(f"ids: {worst} lies outside the vocabulary [0, {self._rows})")
        return tokens.astype(np.int32)

    def session(self) -> Session:
        """A new empty cached text; up to `batch` may be open at a time."""
        with self._lock:
            if self._cache is None:
                o = self.options
                slots = kv_slots(self.graph, o.context, o.block, o.kv_dtype or "f32")
                self._cache = KVCache(self._backend, slots, o.context, o.batch)
            return Session(self, self._program, self._cache, self._cache.open())

    def stream(
        self, ids: Sequence[int], max_new_tokens: int = 64, sampling: SamplingParams | None = None, ignore_eos: bool = False
    ) -> Iterator[int]:
        """New ids one by one, the end-of-sequence id included; stops after it, after `max_new_tokens` or at the context's end."""
        with self.session() as s:
            yield from s.stream(ids, max_new_tokens, sampling or SamplingParams(), ignore_eos)

    def generate(
        self, ids: Sequence[int], max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0, ignore_eos: bool = False
    ) -> list[int]:
        """New ids; greedy at temperature 0, otherwise sampled from the seed."""
        return list(self.stream(ids, max_new_tokens, SamplingParams(temperature=temperature, seed=seed), ignore_eos))

    def read(self, x: Array) -> np.ndarray:
        """The backend's [1, T, ...] as numpy float32 [T, ...]."""
        return self._backend.read(x)[0]

    def with_kv(self, dtype: KVDtype | None) -> Model:
        """The same resident weights under another KV encoding, with a cache of its own; closing either closes both."""
        other = copy(self)
        other.options, other._cache, other._lock = replace(self.options, kv_dtype=dtype), None, threading.Lock()
        return other

    def close(self) -> None:
        """Release the backend's memory."""
        self._cache = None
        self._backend.close()


class Session:
    """One text in the cache; a context manager that gives its blocks back."""

    def __init__(self, model: Model, program: Program, cache: KVCache, kv: KVSequence) -> None:
        self._model, self._program, self._kv = model, program, kv
        self._chunk = min(model.options.prefill_chunk, cache.chunk_limit)

    @property
    def length(self) -> int:
        """Positions stored."""
        return self._kv.length

    def append(self, ids: Sequence[int] | np.ndarray, position: int | None = None) -> np.ndarray:
        """Logits float32 [T, V] of `ids` at the next positions; `position`, when given, must be the next one (UsageError on a gap or overlap)."""
        return np.concatenate(list(self._append(ids, position, last_only=False)))

    def advance(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """As `append`, but only the last position's logits, float32 [V]."""
        (last,) = deque(self._append(ids, None, last_only=True), maxlen=1)  # a list would keep every piece's logits alive
        return last[-1]

    def _append(self, ids: Sequence[int] | np.ndarray, position: int | None, last_only: bool) -> Iterator[np.ndarray]:
        tokens = self._model.check_ids(ids)
        if position is not None and position != self.length:
            raise UsageError(f"append: position {position} leaves a {'gap' if position > self.length else 'overlap'}; the next is {self.length}")
        self._kv.check_room(tokens.shape[1])
        for start in range(0, tokens.shape[1], self._chunk):
            piece = tokens[:, start : start + self._chunk]
            self._kv.begin(piece.shape[1])
            out = self._program.run(piece, self._kv.length, self._kv, last_only=last_only)["logits"]
            self._kv.commit()
            yield self._model.read(out)

    def stream(self, ids: Sequence[int], max_new_tokens: int, sampling: SamplingParams, ignore_eos: bool = False) -> Iterator[int]:
        """Append `ids`, then sample on; see `Model.stream`."""
        options = self._model.options
        logits = self.advance(ids)
        for step in range(max_new_tokens):
            token = sample(logits[: options.vocab], sampling, step)
            yield token
            if (token in options.eos and not ignore_eos) or self.length >= options.context or step + 1 == max_new_tokens:
                return
            logits = self.advance([token])

    def close(self) -> None:
        """Give the cache blocks back."""
        self._kv.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
