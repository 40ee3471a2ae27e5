"""One text of a model, piece by piece through paged KV: `Session`, and what it shares with whole-text runs.

In: ids, plain ints, at the next positions. Out: their logits, numpy float32. Refused (UsageError): what `token_ids` says, a gap or overlap, more
positions than the context, a closed session, one that is in use.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from ..schemas.errors import UsageError
from ..schemas.kv import KVDtype
from .backend import Array
from .head import PIECE
from .kv import KVCache, Sequence as KVSequence
from .program import Program
from .sample import SamplingParams, sample


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


def token_ids(ids: Sequence[int] | np.ndarray, rows: int) -> np.ndarray:
    """Ids as int32 [1, T]; UsageError when empty, no whole numbers in one row, or outside the embedding."""
    tokens = np.asarray(ids)
    if tokens.size == 0:
        raise UsageError("ids: empty; give at least one token")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise UsageError(f"ids: {tokens.dtype} of shape {list(tokens.shape)}; give whole numbers in one row")
    if tokens.min() < 0 or tokens.max() >= rows:
        worst = int(tokens.max() if tokens.max() >= rows else tokens.min())
        raise UsageError(f"ids: {worst} lies outside the vocabulary [0, {rows})")
    return tokens.astype(np.int32)[None]


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

    def __init__(self, program: Program, options: ModelOptions, rows: int, cache: KVCache) -> None:
        """`rows` of the embedding; UsageError when `batch` sessions are open already."""
        self._program, self._options, self._rows = program, options, rows
        self._chunk = min(options.prefill_chunk, cache.chunk_limit)
        self._kv: KVSequence = cache.open()

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
            return next(self._program.logits(hidden[:, -1:], 1))[0].copy()

    @staticmethod
    def advance_all(sessions: Sequence[Session], ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """`advance` by one id each, for different sessions of one model in step: float32 [sessions, V]. Every weight is read once for all."""
        first = sessions[0]
        tokens = token_ids(ids, first._rows).T
        for session in sessions:
            session._kv.check_room(1)
        with ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session._kv.storing(1))
            hidden = first._program.lockstep(tokens, [s.length for s in sessions], [s._kv for s in sessions])
            return joined(first._program.logits(hidden.swapaxes(0, 1), PIECE), len(sessions))

    def _check(self, ids: Sequence[int] | np.ndarray, position: int | None) -> np.ndarray:
        tokens = token_ids(ids, self._rows)
        if position is not None and position != self.length:
            raise UsageError(f"append: position {position} leaves a {'gap' if position > self.length else 'overlap'}; the next is {self.length}")
        self._kv.check_room(tokens.shape[1])
        return tokens

    def _pieces(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        for chunk in self._chunks(tokens):
            yield from self._program.logits(self._body(chunk), PIECE)

    def _made(self, tokens: np.ndarray) -> Generator[np.ndarray, None, None]:
        """As `_pieces`, but a chunk counts after the last of its pieces. Closed or used up before anything else is done with the session."""
        for chunk in self._chunks(tokens):
            with self._kv.storing(chunk.shape[1]):
                yield from self._program.logits(self._program.body(chunk, self._kv.length, self._kv)[0], PIECE)

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
        options = self._options
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
