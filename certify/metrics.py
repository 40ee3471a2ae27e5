"""How far two models' logits lie apart, position by position; pure functions, float64.

In: logits of the source and of the artifact, float32 or float64 [T, V], and how many ids the tokenizer has (columns beyond it are padding
and left out). Out: `Positions`, one number per position and metric.
1. cosine, raw and centred (each row's mean removed), as 1 - cosine = |a/|a| - b/|b||^2 / 2: 1e-12 is seen, not lost to cancellation. Two
   zero rows agree; a zero row against another is orthogonal to it.
2. KL(source || artifact) of the next-token distributions, nats.
3. top-1 agreement (ties go to the lower id), the source's margin between its two best logits, and the change of the probability of the
   source's best token.
Refused (NonFinite): a NaN or infinity anywhere, with its place. Refused (CertifyError): shapes that differ, or arrays that share memory -
a model compared with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np

from ..schemas.errors import CertifyError

_BLOCK = 1 << 18  # logits handled at a time: float64 temporaries stay in the cache (2 MiB each)


class NonFinite(CertifyError):
    """Logits hold a NaN or an infinity; a check that meets one fails."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Metrics of T positions, each float64[T] (top1 bool[T]); `deviation` is 1 - cosine."""

    deviation_raw: np.ndarray
    deviation_centred: np.ndarray
    kl: np.ndarray
    top1: np.ndarray
    margin: np.ndarray
    change: np.ndarray

    def __len__(self) -> int:
        return len(self.kl)

    @classmethod
    def join(cls, parts: Iterable[Positions]) -> Positions:
        """The positions of all parts, in order; an empty record for none."""
        kept = list(parts)
        return cls(*(np.concatenate([getattr(p, f.name) for p in kept] or [np.empty(0)]) for f in fields(cls)))


def compare(source: np.ndarray, got: np.ndarray, vocabulary: int, first: int = 0) -> Positions:
    """Positions first..T-1 of logits [T, V] against each other, over the ids below `vocabulary`."""
    if source.shape != got.shape or source.ndim != 2:
        raise CertifyError(f"logits of the source are {list(source.shape)}, of the artifact {list(got.shape)}; expected the same [T, V]")
    if np.shares_memory(source, got):
        raise CertifyError("the artifact's logits are the source's own array: the reference must not be the candidate")
    for name, logits in (("source", source), ("artifact", got)):
        require_finite(logits, name)
    width = min(vocabulary, source.shape[1])
    return Positions.join(_block(source[rows, :width], got[rows, :width]) for rows in _rows(first, len(source), width))


def require_finite(logits: np.ndarray, name: str) -> None:
    """NonFinite naming the first position and id that is no number."""
    finite = np.isfinite(logits)
    if not finite.all():
        position, column = np.argwhere(~finite)[0]
        raise NonFinite(f"{name}: logit {logits[position, column]} at position {position}, id {column}")


def _rows(first: int, last: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // width)
    return (slice(r, min(r + step, last)) for r in range(first, last, step))


def _block(source: np.ndarray, got: np.ndarray) -> Positions:
    a, b = source.astype(np.float64), got.astype(np.float64)
    rows = np.arange(len(a))
    best = a.argmax(-1)
    top = a[rows, best]
    second = np.partition(a, -2, axis=-1)[:, -2] if a.shape[1] > 1 else np.full(len(a), -np.inf)
    raw = _deviation(a, b)
    centred = _deviation(a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True))
    log_p, log_q = _log_softmax(a), _log_softmax(b)
    p = np.exp(log_p)
    kl = np.maximum(np.einsum("ij,ij->i", p, log_p - log_q), 0.0)
    change = np.exp(log_q[rows, best]) - p[rows, best]
    return Positions(raw, centred, kl, b.argmax(-1) == best, top - second, change)


def _deviation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """1 - cosine of the rows of a and b, without cancellation."""
    a, b = _unit(a), _unit(b)
    one_is_zero = a.any(-1) != b.any(-1)
    d = a - b
    return np.where(one_is_zero, 1.0, np.einsum("ij,ij->i", d, d) / 2)


def _unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; zero rows stay zero. Scaled by the largest entry first, so that squares neither overflow nor vanish."""
    largest = np.abs(x).max(-1, keepdims=True)
    x = x / np.where(largest == 0, 1, largest)
    length = np.sqrt(np.einsum("ij,ij->i", x, x))[:, None]
    return x / np.where(length == 0, 1, length)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
