"""How far two models' logits lie apart, position by position; pure functions, float64.

In: logits of the source and of the artifact, float32 or float64 [T, V], and how many ids the tokenizer has (columns beyond it are padding
and left out). Out: `Positions`, one number per position and metric. `compare_pieces` takes the logits as they come, some positions at a
time, cut differently on both sides if need be: neither text's logits are ever held whole.
1. cosine, raw and centred (each row's mean removed), as 1 - cosine = |a/|a| - b/|b||^2 / 2: 1e-12 is seen, not lost to cancellation. Two
   zero rows agree; a zero row is orthogonal to any other.
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

_BLOCK = 1 << 16  # logits handled at a time, so that float64 temporaries (512 KiB each) stay in the cache


class NonFinite(CertifyError):
    """Logits hold a NaN or an infinity; a check that meets one fails."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Metrics of T positions, each float64[T] (top1: 1 or 0); `deviation` is 1 - cosine."""

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


class Rows:
    """Logits that come in pieces [P, V], taken any number of positions at a time; CertifyError when there are fewer."""

    def __init__(self, pieces: Iterable[np.ndarray]) -> None:
        self._pieces, self._rest = iter(pieces), np.empty((0, 0))

    def take(self, count: int) -> np.ndarray:
        """The next `count` positions."""
        parts = []
        while count > 0:
            if not self.more():
                raise CertifyError(f"logits of {count} positions are missing: the two sides have different numbers of them")
            parts.append(self._rest[:count])
            self._rest = self._rest[count:]
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def more(self) -> bool:
        """Is there another position?"""
        while not len(self._rest):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = piece
        return True


def compare_pieces(source: Iterable[np.ndarray], got: Iterable[np.ndarray], vocabulary: int, first: int = 0) -> Positions:
    """As `compare`, for logits that come in pieces [P, V]; CertifyError when one side has fewer positions than the other."""
    at, parts, rows = 0, list[Positions](), Rows(got)
    for piece in source:
        parts.append(compare(piece, rows.take(len(piece)), vocabulary, min(max(first - at, 0), len(piece)), at))
        at += len(piece)
    if rows.more():
        raise CertifyError(f"logits of the artifact go on after the source's {at} positions")
    return Positions.join(parts)


def compare(source: np.ndarray, got: np.ndarray, vocabulary: int, first: int = 0, start: int = 0) -> Positions:
    """Positions first..T-1 of logits [T, V] against each other, over the ids below `vocabulary`; errors count positions from `start`."""
    if source.shape != got.shape or source.ndim != 2:
        raise CertifyError(f"logits of the source are {list(source.shape)}, of the artifact {list(got.shape)}; expected the same [T, V]")
    if np.shares_memory(source, got):
        raise CertifyError("the artifact's logits are the source's own array: the reference must not be the candidate")
    for name, logits in (("source", source), ("artifact", got)):
        require_finite(logits, name, start)
    width = min(vocabulary, source.shape[1])
    return Positions.join(_block(source[rows, :width], got[rows, :width]) for rows in _rows(first, len(source), width))


def require_finite(logits: np.ndarray, name: str, start: int = 0) -> None:
    """NonFinite naming the first position and id that is no number."""
    finite = np.isfinite(logits)
    if not finite.all():
        position, column = np.argwhere(~finite)[0]
        raise NonFinite(f"{name}: logit {logits[position, column]} at position {start + position}, id {column}")


def _rows(first: int, last: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // width)
    return (slice(r, min(r + step, last)) for r in range(first, last, step))


def _block(source: np.ndarray, got: np.ndarray) -> Positions:
    a, b = source.astype(np.float64), got.astype(np.float64)
    mean_a, mean_b = _centre(a), _centre(b)  # softmax and argmax don't see an offset
    centred, raw = _deviations(a, b, mean_a, mean_b)
    best, rows = a.argmax(-1), np.arange(len(a))
    top1 = (b.argmax(-1) == best).astype(np.float64)
    p, sum_a, top_a = _exponentials(a)
    q, sum_b, top_b = _exponentials(b)
    change = q[rows, best] / sum_b - p[rows, best] / sum_a
    shift = (top_a - top_b) + (np.log(sum_a) - np.log(sum_b))
    kl = np.einsum("ij,ij->i", p, a - b) / sum_a - shift
    a[rows, best] = -np.inf
    return Positions(raw, centred, np.maximum(kl, 0.0), top1, top_a - a.max(-1), change)


def _centre(x: np.ndarray) -> np.ndarray:
    """Subtract the rows' means in place and return them."""
    mean = x.mean(-1)
    x -= mean[:, None]
    return mean


def _deviations(a: np.ndarray, b: np.ndarray, mean_a: np.ndarray, mean_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1 - cosine of centred rows and of the same rows with their means added back.

    A raw row is its centred part plus mean * 1, which are orthogonal; |x u - y v|^2 = (x - y)^2 + x y |u - v|^2 for unit u, v. So the raw
    figure follows from the centred one by sums of squares, without cancellation and without a second pass.
    """
    length_a, length_b = (np.sqrt(np.einsum("ij,ij->i", x, x)) for x in (a, b))
    whole_a, whole_b = (np.hypot(length, mean * np.sqrt(a.shape[1])) for length, mean in ((length_a, mean_a), (length_b, mean_b)))
    difference = a * _inverse(length_a)[:, None]
    difference -= b * _inverse(length_b)[:, None]
    apart = np.einsum("ij,ij->i", difference, difference)
    share_a, share_b = length_a * _inverse(whole_a), length_b * _inverse(whole_b)
    along = (mean_a * _inverse(whole_a) - mean_b * _inverse(whole_b)) ** 2 * a.shape[1]
    whole = (share_a - share_b) ** 2 + share_a * share_b * apart + along
    return _settled(apart / 2, length_a, length_b), _settled(whole / 2, whole_a, whole_b)


def _settled(deviation: np.ndarray, length_a: np.ndarray, length_b: np.ndarray) -> np.ndarray:
    """A zero row is orthogonal to all but another zero row."""
    return np.where((length_a == 0) != (length_b == 0), 1.0, deviation)


def _inverse(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, 0.0, 1 / np.where(x == 0, 1, x))


def _exponentials(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """exp(x - top), its sum, and top, the largest of each row."""
    top = x.max(-1)
    e = np.exp(x - top[:, None])
    return e, e.sum(-1), top
