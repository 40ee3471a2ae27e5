"""A model that runs: the interface that artifacts and sources share (design.md section 8).

`forward` and `trace` run a whole text at once, keys and values rounded as the cache would; `session` runs it piece by piece through paged
KV; `generate` and `stream` sample new tokens. All arrays are numpy; ids are plain ints. Logits are made a few positions at a time (`head.py`):
the device never holds more, and `forward_pieces` and `append_pieces` hand them out like that.
Refused (UsageError): empty input, ids outside the vocabulary, more positions than the context, a gap or overlap in `append`, anything closed.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.graph import Graph
from ..schemas.kv import KVDtype, kv_slots
from .backend import Array, Backend
from .head import PIECE, WHOLE_PIECE
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

    def __post_init__(self) -> None:
        """Raises UsageError naming the size that is below 1."""
        for name in ("context", "vocab", "batch", "block", "prefill_chunk"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"{name}: {value} must be at least 1")


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
        return {"logits": joined(self.logits(hidden, WHOLE_PIECE), tokens.shape[1]), **{n: self.read(x) for n, x in kept.items()}}

    def _text(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        tokens = self.check_ids(ids)
        if tokens.shape[1] > self.options.context:
            raise UsageError(f"context: {tokens.shape[1]} positions asked for, this model has {self.options.context}")
        return tokens

    def _transient(self) -> Transient:
        return Transient(self._backend, self.options.kv_dtype)

    def _whole(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        yield from self.logits(self._program.body(tokens, 0, self._transient())[0], WHOLE_PIECE)

    def logits(self, hidden: Array, piece: int) -> Iterator[np.ndarray]:
        """Logits of the body's result, `piece` positions at a time; they may be the backend's own memory."""
        for at in range(0, hidden.shape[1], piece):
            yield self.read(self._program.head(hidden[:, at : at + piece]))

    def check_ids(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Ids as int32 [1, T]; UsageError when empty, no whole numbers in one row, or outside the embedding."""
        tokens = np.asarray(ids)
        if tokens.size == 0:
            raise UsageError("ids: empty; give at least one token")
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise UsageError(f"ids: {tokens.dtype} of shape {list(tokens.shape)}; give whole numbers in one row")
        if tokens.min() < 0 or tokens.max() >= self._rows:
            worst = int(tokens.max() if tokens.max() >= self._rows else tokens.min())
            raise UsageError(f"ids: {worst} lies outside the vocabulary [0, {self._rows})")
        return tokens.astype(np.int32)[None]

    def session(self) -> Session:
        """A new empty cached text; up to `batch` may be open at a time."""
        self._program.require_open()
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


def joined(pieces: Iterator[np.ndarray], count: int) -> np.ndarray:
    """`count` positions that come in pieces, in one array; no piece is held beside the next."""
    first = next(pieces)
    out = np.empty((count, first.shape[1]), np.float32)
    out[: (at := len(first))] = first
    del first
    for piece in pieces:
        out[at : (at := at + len(piece))] = piece
        del piece
    return out


class Session:
    """One text in the cache; a context manager that gives its blocks back."""

    def __init__(self, model: Model, program: Program, cache: KVCache, kv: KVSequence) -> None:
        self._model, self._program, self._kv = model, program, kv
        self._chunk = min(model.options.prefill_chunk, cache.chunk_limit)

    @property
    def length(self) -> int:
        """Positions stored."""
        return self._kv.length

    @property
    def chunk(self) -> int:
        """Positions that are run at a time."""
        return self._chunk

    def append(self, ids: Sequence[int] | np.ndarray, position: int | None = None) -> np.ndarray:
        """Logits float32 [T, V] of `ids` at the next positions; `position`, when given, must be the next one (UsageError on a gap or overlap).

        A chunk counts once its logits are made: an error part-way, here or in `advance`, leaves those before it, and `length` tells.
        """
        tokens = self._check(ids, position)
        with closing(self._made(tokens)) as pieces:
            return joined(pieces, tokens.shape[1])

    def append_pieces(self, ids: Sequence[int] | np.ndarray, position: int | None = None) -> Iterator[np.ndarray]:
        """As `append`, a few positions at a time. A chunk of `ids` is appended, and counts, when the first of its pieces is taken."""
        return map(np.copy, self._pieces(self._check(ids, position)))

    def advance(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """As `append`, but only the last position's logits, float32 [V]."""
        tokens = self._check(ids, None)
        last = (tokens.shape[1] - 1) // self._chunk * self._chunk
        for chunk in self._chunks(tokens[:, :last]):
            self._body(chunk)
        with self._kv.storing(tokens.shape[1] - last):
            hidden = self._program.body(tokens[:, last:], self._kv.length, self._kv)[0]
            return next(self._model.logits(hidden[:, -1:], 1))[0].copy()

    @staticmethod
    def advance_all(sessions: Sequence[Session], ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """`advance` by one id each, for different sessions of one model in step: float32 [sessions, V]. Every weight is read once for all."""
        first = sessions[0]
        tokens = first._model.check_ids(ids).T
        for session in sessions:
            session._kv.check_room(1)
        with ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session._kv.storing(1))
            hidden = first._program.lockstep(tokens, [s.length for s in sessions], [s._kv for s in sessions])
            return joined(first._model.logits(hidden.swapaxes(0, 1), PIECE), len(sessions))

    def _check(self, ids: Sequence[int] | np.ndarray, position: int | None) -> np.ndarray:
        tokens = self._model.check_ids(ids)
        if position is not None and position != self.length:
            raise UsageError(f"append: position {position} leaves a {'gap' if position > self.length else 'overlap'}; the next is {self.length}")
        self._kv.check_room(tokens.shape[1])
        return tokens

    def _pieces(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        for chunk in self._chunks(tokens):
            yield from self._model.logits(self._body(chunk), PIECE)

    def _made(self, tokens: np.ndarray) -> Generator[np.ndarray, None, None]:
        """As `_pieces`, but a chunk counts after the last of its pieces. Closed or used up before anything else is done with the session."""
        for chunk in self._chunks(tokens):
            with self._kv.storing(chunk.shape[1]):
                yield from self._model.logits(self._program.body(chunk, self._kv.length, self._kv)[0], PIECE)

    def _chunks(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Chunks to be run at the next positions, one after another."""
        start = self.length
        for at in range(0, tokens.shape[1], self._chunk):
            if self.length != start + at:
                raise UsageError(f"append: position {start + at} is no longer the next, {self.length} is: the session was used between two pieces")
            yield tokens[:, at : at + self._chunk]

    def _body(self, chunk: np.ndarray) -> Array:
        """Store one chunk; what the head reads."""
        with self._kv.storing(chunk.shape[1]):
            return self._program.body(chunk, self._kv.length, self._kv)[0]

    def stream(self, ids: Sequence[int], max_new_tokens: int, sampling: SamplingParams, ignore_eos: bool = False) -> Iterator[int]:
        """Append `ids`, then sample on; see `Model.stream`. UsageError for a negative `max_new_tokens`; 0 makes none and appends nothing."""
        if max_new_tokens < 0:
            raise UsageError(f"max_new_tokens: {max_new_tokens} must be at least 0")
        if max_new_tokens == 0:
            return
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
