"""Per-position metrics against their plain definitions, where cancellation bites, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from thinlm.certify.metrics import NonFinite, Positions, compare, compare_pieces
from thinlm.schemas.errors import CertifyError


def logits(seed: int, t: int = 7, v: int = 50, scale: float = 4.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(1, scale, (t, v))).astype(np.float32)


def plain(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """One position by the textbook definitions."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()

    def cosine(x: np.ndarray, y: np.ndarray) -> float:
        return float(x @ y / math.sqrt(float(x @ x) * float(y @ y)))

    top = int(a.argmax())
    return {
        "deviation_raw": 1 - cosine(a, b),
        "deviation_centred": 1 - cosine(a - a.mean(), b - b.mean()),
        "kl": float((p * np.log(p / q)).sum()),
        "top1": float(top == int(b.argmax())),
        "margin": float(a[top] - np.sort(a)[-2]),
        "change": float(q[top] - p[top]),
    }


@given(st.integers(0, 10_000), st.integers(2, 70))
def test_equals_the_definitions(seed: int, v: int) -> None:
    a, b = logits(seed, 4, v), logits(seed, 4, v) + logits(seed + 1, 4, v, 0.7)
    got = compare(a, b, v)
    for position in range(4):
        for name, value in plain(a[position], b[position]).items():
            assert float(getattr(got, name)[position]) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_blocks_join_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = logits(0, 33), logits(1, 33)
    whole = compare(a, b, 50)
    monkeypatch.setattr("thinlm.certify.metrics._BLOCK", 100)
    parts = compare(a, b, 50)
    assert len(parts) == 33
    for name in Positions.__slots__:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("deviation", [1e-14, 1e-12, 1e-9, 1e-4])
def test_tiny_deviations_are_seen(deviation: float) -> None:
    """Two unit vectors at a known angle: 1 - a.b computed directly would be off by 1e-16 / deviation."""
    angle = math.acos(1 - deviation) if deviation > 1e-6 else math.sqrt(2 * deviation)
    a = np.zeros((1, 6))
    a[0, :2] = (3, -3)
    b = np.zeros((1, 6))
    b[0, :2] = np.array([3, -3]) * math.cos(angle)
    b[0, 2:4] = np.array([3, -3]) * math.sin(angle)
    got = compare(a, b, 6)
    assert got.deviation_raw[0] == pytest.approx(deviation, rel=1e-5)
    assert got.deviation_centred[0] == pytest.approx(deviation, rel=1e-5)


def test_equal_models_do_not_deviate() -> None:
    a = logits(3)
    got = compare(a, a.copy(), 50)
    assert got.top1.all()
    assert not (got.deviation_raw.any() or got.deviation_centred.any() or got.kl.any() or got.change.any())


def test_centred_ignores_an_offset_that_raw_sees() -> None:
    a = logits(4).astype(np.float64)
    got = compare(a, a + 5, 50)
    assert got.deviation_centred.max() < 1e-15 < 1e-3 < got.deviation_raw.min()
    assert got.kl.max() < 1e-12


def test_ids_beyond_the_tokenizer_are_left_out() -> None:
    a, b = logits(5), logits(5) + logits(6, scale=0.1)
    wild = b.copy()
    wild[:, 40:] = 1e4
    np.testing.assert_array_equal(compare(a, wild, 40).kl, compare(a[:, :40].copy(), b[:, :40].copy(), 40).kl)
    assert not compare(a, wild, 50).top1.any()


def test_first_positions_are_left_out() -> None:
    a, b = logits(7), logits(8)
    np.testing.assert_array_equal(compare(a, b, 50, first=5).kl, compare(a, b, 50).kl[5:])
    assert len(compare(a, b, 50, first=7)) == 0


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_does_not_matter(scale: float) -> None:
    a, b = logits(9).astype(np.float64), logits(10).astype(np.float64)
    np.testing.assert_allclose(compare(a * scale, b * scale, 50).deviation_raw, compare(a, b, 50).deviation_raw, rtol=1e-12)


def test_zero_rows() -> None:
    zero, one = np.zeros((1, 4)), np.array([[1.0, 2, 3, 4]])
    assert compare(zero, zero.copy(), 4).deviation_raw[0] == 0
    assert compare(zero, one, 4).deviation_raw[0] == compare(one, zero, 4).deviation_centred[0] == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("who", ["source", "artifact"])
def test_non_finite_is_named(bad: float, who: str) -> None:
    a, b = logits(11), logits(12)
    (a if who == "source" else b)[3, 44] = bad
    with pytest.raises(NonFinite, match=rf"{who}: logit .* at position 3, id 44"):
        compare(a, b, 40)  # also where the id is beyond the tokenizer


def test_an_array_compared_with_itself_is_refused() -> None:
    a = logits(13)
    for other in (a, a[:], a.view()):
        with pytest.raises(CertifyError, match="must not be the candidate"):
            compare(a, other, 50)


def test_shapes_must_agree() -> None:
    with pytest.raises(CertifyError, match=r"\[7, 50\].*\[7, 49\]"):
        compare(logits(0), logits(0, v=49), 50)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 12))
def test_pieces_give_the_figures_of_the_whole(cuts_a: list[int], cuts_b: list[int], first: int) -> None:
    """However the two sides are cut."""
    a, b = logits(0, 20), logits(1, 20)
    whole = compare(a, b, 40, first)
    parts = compare_pieces(cut(a, cuts_a), cut(b, cuts_b), 40, first)
    assert len(parts) == 20 - first
    for name in Positions.__slots__:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def cut(x: np.ndarray, sizes: list[int]) -> Iterator[np.ndarray]:
    """x in pieces of these sizes, again and again."""
    for size in cycle(sizes):
        if not len(x):
            return
        yield x[:size]
        x = x[size:]


def test_pieces_that_do_not_match_are_refused() -> None:
    a, b = logits(0, 20), logits(1, 20)
    with pytest.raises(CertifyError, match="logits of 1 positions are missing"):
        compare_pieces(cut(a, [4]), cut(b[:19], [5]), 50)
    with pytest.raises(CertifyError, match="go on after the source's 19 positions"):
        compare_pieces(cut(a[:19], [4]), cut(b, [5]), 50)
    with pytest.raises(CertifyError, match="must not be the candidate"):
        compare_pieces(cut(a, [4]), cut(a, [5]), 50)
    b[13, 7] = np.nan
    with pytest.raises(NonFinite, match="artifact: logit nan at position 13, id 7"):
        compare_pieces(cut(a, [4]), cut(b, [5]), 50)
