"""A model that runs: the interface that artifacts and sources share (design.md section 8).

`forward` and `trace` run a whole text at once, keys and values rounded as the cache would; `session` runs it piece by piece through paged
KV; `generate` and `stream` sample new tokens. All arrays are numpy; ids are plain ints. Logits are made a few positions at a time (`head.py`):
the device never holds more, and `forward_pieces` and `append_pieces` hand them out like that.
Refused (UsageError): empty input, ids outside the vocabulary, more positions than the context, a gap or overlap in `append`, anything closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.graph import Graph
from ..schemas.kv import KVDtype, kv_slots
from .backend import Backend
from .head import WHOLE_PIECE
from .kv import KVCache, Transient
from .program import Program
from .sample import SamplingParams
from .session import ModelOptions, Session, joined, token_ids
from .weights import Weights


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
        tokens = self._text(ids)
        return joined(self._whole(tokens), tokens.shape[1])

    def forward_pieces(self, ids: Sequence[int] | np.ndarray) -> Iterator[np.ndarray]:
        """As `forward`, a few positions at a time: float32 [P, V], P at most WHOLE_PIECE; together they are [T, V]."""
        return map(np.copy, self._whole(self._text(ids)))

    def trace(self, ids: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """All named outputs, float32: `logits` [T, V], `hidden.embed`, `hidden.0`.., `hidden.final` [T, H]."""
        tokens = self._text(ids)
        names = tuple(name for name, _ in self.graph.outputs if name != "logits")
        hidden, kept = self._program.body(tokens, 0, self._transient(), names)
        return {"logits": joined(self._program.logits(hidden, WHOLE_PIECE), tokens.shape[1]), **{n: self._program.read(x) for n, x in kept.items()}}

    def _text(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        tokens = token_ids(ids, self._rows)
        if tokens.shape[1] > self.options.context:
            raise UsageError(f"context: {tokens.shape[1]} positions asked for, this model has {self.options.context}")
        return tokens

    def _transient(self) -> Transient:
        return Transient(self._backend, self.options.kv_dtype)

    def _whole(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        yield from self._program.logits(self._program.body(tokens, 0, self._transient())[0], WHOLE_PIECE)

    def session(self) -> Session:
        """A new empty cached text; up to `batch` may be open at a time."""
        self._program.require_open()
        with self._lock:
            if self._cache is None:
                o = self.options
                slots = kv_slots(self.graph, o.context, o.block, o.kv_dtype or "f32")
                self._cache = KVCache(self._backend, slots, o.context, o.batch)
            return Session(self._program, self.options, self._rows, self._cache)

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

    def with_kv(self, dtype: KVDtype | None) -> Model:
        """The same resident weights under another KV encoding; see `running`."""
        return self.running(replace(self.options, kv_dtype=dtype))

    def running(self, options: ModelOptions) -> Model:
        """The same resident weights, run in another way, with a cache of its own; closing either closes both."""
        other = copy(self)
        other.options, other._cache, other._lock = options, None, threading.Lock()
        return other

    def close(self) -> None:
        """Release the weights and the backend's memory; closing twice is allowed."""
        self._cache = None
        self._program.close()
        self._backend.close()
