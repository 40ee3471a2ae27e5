"""Token ids of texts, and which of them a certificate uses.

In: documents as token ids (`Text`), in a fixed order. Out: a sample of them and their windows.
1. `sample` takes documents in turn from every domain, so that a small sample has all of them; documents that are too short for one
   counting position are left out.
2. A document is cut into windows of `window` ids that share no token; in each, positions from `skip` on count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ..schemas.certificate import DomainData
from ..schemas.texts import windows

SKIP = 16  # positions at the start of a window, where there is little context (design.md section 3)
WINDOW = 512
DOCUMENTS = 32
FEWEST = 64  # ids of a document when few are asked for
PROMPT = 48  # ids of a document that a greedy continuation starts from


@dataclass(frozen=True, slots=True)
class Text:
    """A document or prompt as token ids int32 [n]; `sha256` is its text's digest."""

    id: str
    domain: str
    sha256: str
    ids: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How much text is used: at most `documents` of them, each cut to `tokens` ids, in windows of `window` ids."""

    documents: int = DOCUMENTS
    tokens: int = WINDOW
    window: int = WINDOW

    @classmethod
    def of(cls, tokens: int) -> Sample:
        """At most `tokens` ids in all: fewer documents where they would be shorter than FEWEST ids, two at least."""
        documents = min(DOCUMENTS, max(2, tokens // FEWEST))
        return Sample(documents=documents, tokens=tokens // documents)

    def within(self, context: int) -> Sample:
        """The same sample for a model of `context` positions."""
        return Sample(documents=self.documents, tokens=self.tokens, window=min(self.window, context))


SAMPLE = Sample()


def sample(texts: Iterable[Text], size: Sample) -> tuple[Text, ...]:
    """The documents that are used, in turn from every domain, each cut to `size.tokens` ids."""
    usable = [text for text in texts if min(len(text.ids), size.tokens, size.window) > SKIP]
    domains: dict[str, list[Text]] = {}
    for text in usable:
        domains.setdefault(text.domain, []).append(text)
    in_turn = [text for row in zip_longest(*domains.values()) for text in row if text is not None]
    return tuple(Text(t.id, t.domain, t.sha256, t.ids[: size.tokens]) for t in in_turn[: size.documents])


def text_windows(text: Text, size: Sample) -> Iterator[np.ndarray]:
    """The windows of one document that have a counting position: int64 [<= window]."""
    for _, ids in windows([text.ids.tolist()], size.window, SKIP + 1):
        yield np.asarray(ids)


def beginnings(texts: Iterable[Text]) -> tuple[Text, ...]:
    """The first ids of every document, as prompts."""
    return tuple(Text(t.id, t.domain, t.sha256, t.ids[:PROMPT]) for t in texts)


def digest_of(texts: Iterable[Text]) -> str:
    """SHA-256 over the texts' own digests in their order, as `schemas.texts.documents_digest`."""
    return hashlib.sha256("".join(f"{t.sha256}\n" for t in texts).encode("ascii")).hexdigest()


def domain_data(texts: Iterable[Text], size: Sample) -> tuple[DomainData, ...]:
    """How much text every domain has, by name."""
    rows: dict[str, DomainData] = {}
    for text in texts:
        old = rows.get(text.domain, DomainData(domain=text.domain, documents=0, tokens=0, positions=0))
        lengths = [len(w) for w in text_windows(text, size)]
        tokens, positions = old.tokens + sum(lengths), old.positions + sum(lengths) - SKIP * len(lengths)
        rows[text.domain] = DomainData(domain=text.domain, documents=old.documents + 1, tokens=tokens, positions=positions)
    return tuple(rows[name] for name in sorted(rows))
