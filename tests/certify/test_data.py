"""The shipped texts: licences, digests, disjoint splits, enough of every domain; and damaged files are refused."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from importlib import resources
from typing import get_args

import pytest

from thinlm.certify import data
from thinlm.certify.data import Domain, Entry, cut, load_documents, load_prompts
from thinlm.schemas.errors import CertifyError
from thinlm.schemas.texts import documents_digest, overlaps

LICENCES = {
    "PSF-2.0", "PostgreSQL", "BSD-3-Clause", "MIT", "ISC", "Apache-2.0", "MIT OR Apache-2.0", "BSL-1.0",
    "LicenseRef-WordNet-3.0", "LicenseRef-public-domain",
}  # fmt: skip
CALIBRATION, CERTIFICATION = load_documents("calibration"), load_documents("certification")
DOCUMENTS = (*CALIBRATION, *CERTIFICATION)


def test_every_document_is_what_the_index_says() -> None:
    assert [d.id for d in DOCUMENTS if hashlib.sha256(d.text.encode()).hexdigest() != d.sha256] == []
    assert len({d.id for d in DOCUMENTS}) == len(DOCUMENTS) == 147
    assert documents_digest(CALIBRATION) != documents_digest(CERTIFICATION)
    assert load_documents("calibration") == CALIBRATION


def test_every_document_has_an_allowed_licence_and_a_notice() -> None:
    assert {d.licence for d in DOCUMENTS} <= LICENCES
    notice = resources.files("thinlm.certify.data").joinpath("NOTICE.txt").read_text(encoding="utf-8")
    named = {d.source for d in DOCUMENTS} | {d.licence for d in DOCUMENTS} - {"MIT OR Apache-2.0"}
    assert [name for name in named if name.removeprefix("npm:") not in notice] == []
    grants = (
        "Redistribution and use in source",
        "Permission is hereby granted, free of charge, to any person obtaining",
        "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2",
        "THE UNIVERSITY OF CALIFORNIA",
    )
    assert [text for text in (*grants, "Boost Software License - Version 1.0", "WordNet 3.0 Copyright 2006") if text not in notice] == []


def test_paths_belong_to_packages_not_machines() -> None:
    paths = [d.id.partition(":")[2].partition(":")[2] or d.id for d in DOCUMENTS]
    assert [path for path in paths if path.startswith(("/", "x/", "usr/")) or "site-packages/torch" in path] == []


def test_the_splits_share_nothing() -> None:
    files = [{re.sub(r"#part\d+$", "", d.id) for d in split} for split in (CALIBRATION, CERTIFICATION)]
    assert files[0] & files[1] == set()
    assert overlaps(CALIBRATION, CERTIFICATION) == ()
    assert [o for split in (CALIBRATION, CERTIFICATION) for o in overlaps(split, split) if o.a != o.b] == []


@pytest.mark.parametrize(("split", "documents", "per_domain"), [(CALIBRATION, 64, 12), (CERTIFICATION, 48, 8)])
def test_there_is_enough_of_every_domain(split: tuple, documents: int, per_domain: int) -> None:
    count = Counter(d.domain for d in split)
    assert set(count) == set(get_args(Domain))
    assert min(count.values()) >= per_domain
    assert len(split) >= documents
    characters = {domain: sum(len(d.text) for d in split if d.domain == domain) for domain in count}
    assert min(characters.values()) > 40_000
    assert min(len(d.text) for d in split) >= 1000  # hundreds of tokens: enough past the first 16 positions


def test_prompts() -> None:
    prompts = load_prompts()
    assert len({p.id for p in prompts}) == len(prompts) >= 16
    assert Counter(p.kind for p in prompts).keys() == {"chat", "code", "prose", "multilingual"}
    assert min(Counter(p.kind for p in prompts).values()) >= 5
    assert len({p.text for p in prompts}) == len(prompts)


ENTRY = {"source": "s", "path": "p", "domain": "code", "licence": "MIT", "split": "calibration"}


def entries(*texts: bytes) -> tuple[Entry, ...]:
    return tuple(Entry(**ENTRY, bytes=len(text), sha256=hashlib.sha256(text).hexdigest()) for text in texts)  # pyright: ignore[reportArgumentType]


def test_cut() -> None:
    index = entries("é".encode(), b"two\n")
    assert [d.text for d in cut("é\n\n\ntwo\n\n".encode(), index, "calibration")] == ["é", "two\n"]


@pytest.mark.parametrize("raw", [b"one\n\n\ntwp\n", b"one\n\n\ntwo", b"one\n\n\ntwo\nthree\n", b"one\n\n two\n", b"one\n\r\ntwo\n", b""])
def test_damaged_texts_are_refused(raw: bytes) -> None:
    with pytest.raises(CertifyError, match="install thinlm again"):
        cut(raw, entries(b"one", b"two"), "calibration")


def test_the_other_split_is_refused() -> None:
    with pytest.raises(CertifyError, match=r"is not what certification\.json lists"):
        cut(b"one\n", entries(b"one"), "certification")


def test_missing_and_malformed_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_bytes", lambda name: b'{"prompts": [{"id": "a", "kind": "poem", "text": "x"}]}')
    with pytest.raises(CertifyError, match=r"prompts\.json: Invalid enum value 'poem'"):
        load_prompts()
    monkeypatch.undo()
    with pytest.raises(CertifyError, match=r"nowhere\.txt is missing"):
        data._bytes("nowhere.txt")
