"""Shipped texts: what calibrates a compile, what certifies it, and the prompts for greedy runs.

Out: `Document`s in a fixed order, read from this package and checked against their index, and `Prompt`s.
`NAME.txt` holds the documents of one split one after another, three line feeds between two; `NAME.json` lists them with source,
path, domain, SPDX licence, split, length and SHA-256, by domain and then in turn from every source, so that the first few of a
domain are varied. The splits share no source file. Long prose is cut at chapters, so
`#part1` and `#part2` of one file are neighbours, not independent samples. Licence notices: NOTICE.txt.
Refused (CertifyError): files that are not as their index says.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Literal, TypeVar

import msgspec

from ...schemas.errors import CertifyError
from ...schemas.texts import Document

Split = Literal["calibration", "certification"]
Domain = Literal["code", "docs", "prose", "reference"]
SEPARATOR = b"\n\n\n"

T = TypeVar("T", bound=msgspec.Struct)


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One document as its split's index lists it."""

    source: str
    path: str
    domain: Domain
    licence: str
    split: Split
    bytes: int
    sha256: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt. kind "chat": `text` is the user's message after an optional system message; any other kind: text to continue."""

    id: str
    kind: Literal["chat", "code", "prose", "multilingual"]
    text: str
    system: str = ""


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    documents: tuple[Entry, ...]


class _Prompts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompts: tuple[Prompt, ...]


def load_documents(split: Split) -> tuple[Document, ...]:
    """The documents of one split, in index order; their ids are `source:path`. Raises CertifyError when the shipped files are damaged."""
    entries = _read(f"{split}.json", _Index).documents
    return cut(_bytes(f"{split}.txt"), entries, split)


def load_prompts() -> tuple[Prompt, ...]:
    """The shipped prompts, in file order."""
    return _read("prompts.json", _Prompts).prompts


def cut(raw: bytes, entries: tuple[Entry, ...], split: Split) -> tuple[Document, ...]:
    """The documents that `entries` find in the bytes of one split's text file."""
    documents, position = [], 0
    for entry in entries:
        body = raw[position : position + entry.bytes]
        position += entry.bytes + len(SEPARATOR)
        if entry.split != split or hashlib.sha256(body).hexdigest() != entry.sha256:
            raise CertifyError(f"shipped text {split}.txt: {entry.source}:{entry.path} is not what {split}.json lists; install thinlm again")
        name = f"{entry.source}:{entry.path}"
        documents.append(Document(name, entry.domain, body.decode("utf-8"), entry.sha256, entry.source, entry.licence))
    if raw != SEPARATOR.join(d.text.encode("utf-8") for d in documents) + b"\n":
        raise CertifyError(f"shipped text {split}.txt holds bytes that {split}.json does not list; install thinlm again")
    return tuple(documents)


def _read(name: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(_bytes(name), type=kind)
    except msgspec.DecodeError as error:
        raise CertifyError(f"shipped {name}: {error}; install thinlm again") from error


def _bytes(name: str) -> bytes:
    try:
        return resources.files(__name__).joinpath(name).read_bytes()
    except OSError as error:
        raise CertifyError(f"shipped {name} is missing: {error}; install thinlm again") from error
