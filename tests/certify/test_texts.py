"""Which documents are used, how they are cut, and how that is recorded."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from thinlm.certify.texts import PROMPT, SKIP, Sample, Text, beginnings, digest_of, domain_data, sample, text_windows
from thinlm.schemas.recipe import Recipe
from thinlm.schemas.texts import Document, documents_digest


def text(id: str, domain: str, count: int) -> Text:
    return Text(id, domain, hashlib.sha256(id.encode()).hexdigest(), np.arange(count))


TEXTS = [text("a0", "a", 100), text("a1", "a", 16), text("a2", "a", 17), text("b0", "b", 60), text("a3", "a", 30), text("c0", "c", 300)]


def test_documents_are_taken_in_turn_from_every_domain() -> None:
    assert [t.id for t in sample(TEXTS, Sample())] == ["a0", "b0", "c0", "a2", "a3"]  # a1 has no counting position
    assert [t.id for t in sample(TEXTS, Sample(documents=3))] == ["a0", "b0", "c0"]
    assert sample(TEXTS, Sample(window=SKIP)) == ()
    assert [len(t.ids) for t in sample(TEXTS, Sample(documents=3, tokens=50))] == [50, 50, 50]


@pytest.mark.parametrize(("count", "window", "lengths"), [(100, 512, [100]), (100, 40, [40, 40, 20]), (96, 40, [40, 40]), (97, 40, [40, 40, 17])])
def test_windows_share_nothing_and_have_a_counting_position(count: int, window: int, lengths: list[int]) -> None:
    windows = list(text_windows(text("x", "x", count), Sample(window=window)))
    assert [len(w) for w in windows] == lengths
    np.testing.assert_array_equal(np.concatenate(windows), np.arange(sum(lengths)))


def test_domains_are_recorded() -> None:
    rows = domain_data(sample(TEXTS, Sample(window=64)), Sample(window=64))
    assert [(r.domain, r.documents, r.tokens, r.positions) for r in rows] == [
        ("a", 3, 100 + 17 + 30, (64 - 16) + (36 - 16) + 1 + 14),
        ("b", 1, 60, 44),
        ("c", 1, 300, 4 * 48 + 28),
    ]


def test_a_sample_fits_the_context() -> None:
    assert Sample().within(100) == Sample(window=100)
    assert Sample().within(4096) == Sample()


@pytest.mark.parametrize(
    ("tokens", "documents", "each"), [(16384, 32, 512), (20000, 32, 625), (4096, 32, 128), (512, 8, 64), (200, 3, 66), (64, 2, 32)]
)
def test_a_sample_of_some_tokens(tokens: int, documents: int, each: int) -> None:
    size = Sample.of(tokens)
    assert (size.documents, size.tokens) == (documents, each)
    assert size.documents * size.tokens <= tokens


def test_the_default_sample_is_that_of_the_default_recipe() -> None:
    assert Sample.of(Recipe().certificate_tokens) == Sample()


def test_digest_is_that_of_the_documents() -> None:
    documents = [Document.of(t.id, id=t.id, domain="d", source="s") for t in TEXTS]
    assert digest_of(TEXTS) == documents_digest(documents)


def test_beginnings() -> None:
    assert [len(t.ids) for t in beginnings(TEXTS[:2])] == [PROMPT, 16]
