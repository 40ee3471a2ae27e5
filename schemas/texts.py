"""Texts that a compile or a certificate reads: documents, their token windows, and whether two sets of them overlap.

In: UTF-8 text with its origin (`Document`), or token ids of documents. Out: digests, non-overlapping windows, `Overlap` records.
Two documents overlap when
1. their normalised texts (NFC, runs of white space as one space, case folded) are equal, or
2. at least 40 % of the 8-word shingles of the one that has fewer occur in the other, and it has at least 16 of them.
Shingles are compared by 64-bit hash: honest texts collide never, crafted ones can only cause a refusal. Nothing here is refused.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

SHINGLE_WORDS = 8
NEAR = 0.4  # what the builder of the shipped corpus used across its splits, too
MIN_SHINGLES = 16  # fewer say little: two licence headers or "see also" lines would be called duplicates

_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `id` is unique in its set, `sha256` is that of the text's UTF-8 bytes, `licence` an SPDX expression ("" = unknown)."""

    id: str
    domain: str
    text: str
    sha256: str
    source: str
    licence: str

    @classmethod
    def of(cls, text: str, *, id: str, domain: str, source: str, licence: str = "") -> Document:
        """A document with its digest computed from `text`."""
        return cls(id, domain, text, hashlib.sha256(text.encode("utf-8")).hexdigest(), source, licence)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Document `a` of one set and `b` of another say the same; `containment` is 1.0 when equal, else the share of common shingles."""

    a: str
    b: str
    kind: Literal["equal", "near"]
    containment: float


def documents_digest(documents: Iterable[Document]) -> str:
    """SHA-256 (hex) over the documents' own digests in their order: what a build key or certificate records of a text set."""
    return hashlib.sha256("".join(f"{d.sha256}\n" for d in documents).encode("ascii")).hexdigest()


def windows(ids_per_document: Iterable[Sequence[int]], length: int, min_length: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Non-overlapping token windows, none across two documents: (document index, at most `length` ids).

    The last window of a document is shorter than `length` and left out when shorter than `min_length`. ValueError for lengths
    that make no windows.
    """
    if not 1 <= min_length <= length:
        raise ValueError(f"windows need 1 <= min_length <= length, got min_length={min_length}, length={length}")
    for index, ids in enumerate(ids_per_document):
        for start in range(0, len(ids) - min_length + 1, length):
            yield index, tuple(ids[start : start + length])


def normalised(text: str) -> str:
    """The form in which texts are compared: NFC, case folded, every run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def overlaps(a: Sequence[Document], b: Sequence[Document]) -> tuple[Overlap, ...]:
    """Every pair from `a` x `b` that the module's rule calls overlapping, in the order of `a`, then `b`."""
    words: dict[str, int] = {}
    right = [normalised(document.text) for document in b]
    same: dict[str, list[int]] = {}
    for j, text in enumerate(right):
        same.setdefault(text, []).append(j)
    table = [_shingles(text, words) for text in right]
    sizes = np.array([len(s) for s in table], np.int64)
    index, owner = np.concatenate([*table, np.empty(0, np.uint64)]), np.repeat(np.arange(len(b)), sizes)
    order = np.argsort(index, kind="stable")
    index, owner = index[order], owner[order]
    found: list[Overlap] = []
    for document in a:
        text = normalised(document.text)
        mine = _shingles(text, words)
        shared, fewest = _common(mine, index, owner, len(b)), np.minimum(sizes, len(mine))
        near = {int(j) for j in np.flatnonzero((fewest >= MIN_SHINGLES) & (shared >= NEAR * fewest))}
        equal = set(same.get(text, ()))
        found += [
            Overlap(document.id, b[j].id, "equal", 1.0) if j in equal else Overlap(document.id, b[j].id, "near", float(shared[j] / fewest[j]))
            for j in sorted(near | equal)
        ]
    return tuple(found)


def _common(mine: np.ndarray, index: np.ndarray, owner: np.ndarray, documents: int) -> np.ndarray:
    """How many of the distinct shingles `mine` each document holds, from the sorted (shingle, owner) table: int64[documents]."""
    low = np.searchsorted(index, mine, "left")
    hits = np.searchsorted(index, mine, "right") - low
    first = np.repeat(low - (np.cumsum(hits) - hits), hits)  # row k of the hits is first[k] + k
    return np.bincount(owner[first + np.arange(len(first))], minlength=documents)


def _shingles(text: str, words: dict[str, int]) -> np.ndarray:
    """Distinct 64-bit hashes of the runs of 8 words in normalised text: sorted uint64[n]. `words` numbers the words seen so far."""
    ids = _mixed(np.array([words.setdefault(word, len(words) + 1) for word in text.split(" ")], np.uint64))
    count = len(ids) - SHINGLE_WORDS + 1
    if count < 1:
        return np.empty(0, np.uint64)
    total = np.zeros(count, np.uint64)
    for k in range(SHINGLE_WORDS):  # uint64 arithmetic wraps: a polynomial over mixed word numbers
        total = total * np.uint64(_M1) + ids[k : k + count]
    return np.unique(_mixed(total))


def _mixed(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser over uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_M1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_M2)
    return x ^ (x >> np.uint64(31))
