"""Windows tile documents, and overlap follows its stated rule, checked against plain sets of words."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from thinlm.schemas.texts import MIN_SHINGLES, NEAR, SHINGLE_WORDS, Document, documents_digest, normalised, overlaps, windows


def document(text: str, name: str = "d") -> Document:
    return Document.of(text, id=name, domain="prose", source="test")


def words(count: int, start: int = 0) -> str:
    return " ".join(f"w{i}" for i in range(start, start + count))


@given(st.lists(st.lists(st.integers(0, 9), max_size=40), max_size=5), st.integers(1, 12), st.integers(1, 12))
def test_windows_tile_every_document(ids: list[list[int]], a: int, b: int) -> None:
    low, length = min(a, b), max(a, b)
    found = list(windows(ids, length, low))
    assert all(low <= len(window) <= length for _, window in found)
    for index, whole in enumerate(ids):
        joined = [token for i, window in found if i == index for token in window]
        assert joined == whole[: len(joined)]
        assert len(whole) - len(joined) < low
        assert all(len(window) == length for i, window in found[:-1] if i == index and found[found.index((i, window)) + 1][0] == index)


@pytest.mark.parametrize(("length", "low"), [(0, 0), (4, 0), (4, 5), (-1, 1)])
def test_windows_that_make_no_sense(length: int, low: int) -> None:
    with pytest.raises(ValueError, match="min_length"):
        list(windows([[1, 2, 3]], length, low))


def plain(a: str, b: str) -> tuple[str, float] | None:
    """The rule of the module, on sets of tuples of words."""
    left, right = normalised(a), normalised(b)
    if left == right:
        return "equal", 1.0
    sets = []
    for text in (left, right):
        split = text.split(" ")
        sets.append({tuple(split[i : i + SHINGLE_WORDS]) for i in range(len(split) - SHINGLE_WORDS + 1)})
    fewest = min(map(len, sets))
    share = len(sets[0] & sets[1]) / fewest if fewest else 0.0
    return ("near", share) if fewest >= MIN_SHINGLES and share >= NEAR else None


TEXT = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=4).map(lambda runs: " ".join(words(n, start) for start, n in runs))


@given(st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=4))
def test_overlaps_follow_the_rule(a: list[str], b: list[str]) -> None:
    found = overlaps([document(t, f"a{i}") for i, t in enumerate(a)], [document(t, f"b{j}") for j, t in enumerate(b)])
    expected = [(f"a{i}", f"b{j}", *hit) for i, x in enumerate(a) for j, y in enumerate(b) if (hit := plain(x, y))]
    assert [(o.a, o.b, o.kind, o.containment) for o in found] == [(x, y, kind, pytest.approx(share)) for x, y, kind, share in expected]


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        ("Same  text\n", "same text", "equal"),
        ("é", "e\u0301", "equal"),
        (words(100), words(100, 50) + " tail", "near"),
        (words(100), words(100, 70), None),
        (words(300), words(60, 100), "near"),  # a part of a longer text
        (words(20), words(20) + " more", None),  # fewer shingles than say anything
    ],
)
def test_overlap_by_hand(a: str, b: str, kind: str | None) -> None:
    assert [o.kind for o in overlaps([document(a)], [document(b)])] == ([kind] if kind else [])


def test_digests() -> None:
    one, two = document("one"), document("two")
    assert one.sha256 == hashlib.sha256(b"one").hexdigest()
    assert documents_digest([one, two]) != documents_digest([two, one])
    assert documents_digest([one, two]) == documents_digest([document("one", "x"), document("two", "y")])
