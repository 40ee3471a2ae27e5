"""Rounding: never worse than plain rounding, near the best scale, rows independent, extremes, lossless casts, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from thinlm.artifacts.formats import FORMATS, Format, get_format
from thinlm.artifacts.formats.floats import bf16_to_f32
from thinlm.passes.round import FLOOR, ROUNDERS, encode_slab, grouped
from thinlm.schemas.errors import InputError

INTS = [name for name, fmt in FORMATS.items() if fmt.family == "int"]
KINDS = ("gauss", "outlier", "sparse", "shifted", "constant", "one value")


def matrix(kind: str, rows: int, cols: int, seed: int) -> np.ndarray:
    """f32[rows, cols] of one kind."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((rows, cols)) * 0.02
    match kind:
        case "outlier":
            w[rng.integers(rows), rng.integers(cols)] = 3.0
        case "sparse":
            w *= rng.random((rows, cols)) < 0.1
        case "shifted":
            w += 0.1
        case "constant":
            w[:] = w[:, :1]
        case "one value":
            w[:] = 0
            w[0, -1] = -0.5
    return w.astype(np.float32)


def decoded(fmt: Format, w: np.ndarray, h: np.ndarray | None = None) -> np.ndarray:
    """What encode_slab's choice decodes to, through its bytes."""
    return fmt.decode(fmt.pack(encode_slab(fmt, w, h)), w.shape[1])


def weighted(error: np.ndarray, h: np.ndarray) -> float:
    return float((np.square(error.astype(np.float64)) @ (h / h.mean() + FLOOR)).sum())


def plain(fmt: Format, w: np.ndarray) -> np.ndarray:
    """Round to nearest over the range of each group, as a loop over groups in float64; the scale and minimum as f16."""
    out, top = np.empty(w.shape), 2**fmt.bits - 1
    for start in range(0, w.shape[1], fmt.group):
        x = w[:, start : start + fmt.group].astype(np.float64)
        if fmt.affine:
            low = x.min(1, keepdims=True).astype(np.float16).astype(np.float64)
            scale = ((x.max(1, keepdims=True) - x.min(1, keepdims=True)) / top).astype(np.float16).astype(np.float64)
            codes = np.clip(np.rint((x - low) / np.where(scale == 0, 1, scale)), 0, top)
            out[:, start : start + fmt.group] = codes * scale + low
        else:
            centre = 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
            scale = (np.abs(x).max(1, keepdims=True) / (top - centre)).astype(np.float16).astype(np.float64)
            codes = np.clip(np.rint(x / np.where(scale == 0, 1, scale) + centre), 0, top)
            out[:, start : start + fmt.group] = (codes - centre) * scale
    return out


@settings(max_examples=80)
@given(st.sampled_from(INTS), st.sampled_from(KINDS), st.integers(1, 5), st.integers(1, 200), st.integers(0, 10**6))
def test_never_worse_than_plain_rounding(name: str, kind: str, rows: int, cols: int, seed: int) -> None:
    fmt, w = get_format(name), matrix(kind, rows, cols, seed)
    h = np.random.default_rng(seed).gamma(0.5, size=cols) + 1e-3
    ours, theirs = weighted(decoded(fmt, w, h) - w, h), weighted(plain(fmt, w) - w, h)
    assert ours <= theirs * (1 + 1e-4) + 1e-12 * weighted(w, h)


@pytest.mark.parametrize(
    ("name", "share"),
    [("int8-sym-g64/1", 1.25), ("int6-sym-g32/1", 1.15), ("int4-sym-g32/1", 1.04), ("int3-sym-g64/1", 1.04), ("int2-sym-g128/1", 1.02)],
)
def test_the_scale_is_near_the_best_one(name: str, share: float) -> None:
    """Against 4000 scales of both signs per group."""
    fmt, w = get_format(name), matrix("gauss", 8, 256, 1)
    h = np.random.default_rng(2).gamma(1.0, size=256)
    top, centre = 2**fmt.bits - 1, 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
    best = 0.0
    for start in range(0, 256, fmt.group):
        x, hg = w[:, start : start + fmt.group, None], (h / h.mean() + FLOOR)[start : start + fmt.group, None]
        reach = np.abs(x).max(1, keepdims=True) / centre
        scale = reach * np.concatenate([s * np.linspace(0.3, 1.4, 2000) for s in (1, -1)])
        codes = np.clip(np.rint(x / scale + centre), 0, top) - centre
        best += (np.square(codes * scale - x) * hg).sum(1).min(1).sum()
    assert weighted(decoded(fmt, w, h) - w, h) <= share * best


@pytest.mark.parametrize("name", ["int4-aff-g32/1", "int2-aff-g64/1"])
def test_affine_gains_over_plain(name: str) -> None:
    fmt, w = get_format(name), matrix("gauss", 64, 256, 3)
    h = np.random.default_rng(4).gamma(0.5, size=256)
    gain = weighted(decoded(fmt, w, h) - w, h) / weighted(plain(fmt, w) - w, h)
    assert gain < {4: 0.85, 2: 0.6}[fmt.bits]


def test_columns_that_matter_are_kept_better() -> None:
    w, h = matrix("gauss", 64, 128, 5), np.ones(128)
    h[7] = 300.0
    fmt = get_format("int3-sym-g128/1")
    with_h, without = (np.square(decoded(fmt, w, weights) - w) for weights in (h, None))
    assert with_h[:, 7].mean() < without[:, 7].mean() / 4
    assert without.mean() < with_h.mean()


@pytest.mark.parametrize("name", [*INTS, "fp8-row/1"])
def test_zero_stays_zero(name: str) -> None:
    w = matrix("gauss", 3, 200, 6)
    w[0] = 0
    w[1, 128:] = 0
    got = decoded(get_format(name), w)
    assert not got[0].any()
    assert get_format(name).group == 0 or not got[1, 128:].any()
    assert np.abs(got[2]).max() > 0


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("size", [1e-7, 3e-6, 1e-30, 3e6, 1e30])
def test_scales_neither_vanish_nor_overflow(name: str, size: float) -> None:
    fmt = get_format(name)
    w = (matrix("gauss", 4, 64, 7) * 50 * size).astype(np.float32)
    parts = encode_slab(fmt, w)
    assert np.isfinite(parts["scale"]).all()
    got = fmt.dequantize(parts, 64)
    assert np.isfinite(got).all()
    if size < 1:
        assert np.square(got - w).sum() <= np.square(plain(fmt, w) - w).sum() * (1 + 1e-3)
    if 1e-8 < size < 1:  # below, every number of the format is nearer to 0
        assert ((got * w).sum(1) > 0).all()


@pytest.mark.parametrize("name", ["int8-sym-g64/1", "int4-sym-g32/1", "int4-aff-g32/1", "int2-sym-g64/1"])
def test_numbers_of_the_format_are_found_again(name: str) -> None:
    fmt, rng = get_format(name), np.random.default_rng(8)
    parts = {"codes": rng.integers(0, 2**fmt.bits, (4, 128)).astype(np.uint8)}
    parts["codes"][:, ::32], parts["codes"][:, 1::32] = 0, 2**fmt.bits - 1
    groups = 128 // fmt.group
    parts["scale"] = rng.uniform(0.01, 0.1, (4, groups)).astype(np.float16)
    if fmt.affine:
        parts["min"] = rng.uniform(-1, 1, (4, groups)).astype(np.float16)
    w = fmt.dequantize(parts, 128)
    np.testing.assert_allclose(decoded(fmt, w), w, rtol=0, atol=1e-3 * np.abs(w).max() / 2**fmt.bits)


@pytest.mark.parametrize("name", ["int4-sym-g64/1", "int3-aff-g32/1", "fp8-row/1"])
def test_rows_are_independent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt, w = get_format(name), matrix("outlier", 9, 100, 9)
    h = np.random.default_rng(1).gamma(1.0, size=100)
    together = fmt.pack(encode_slab(fmt, w, h))
    np.testing.assert_array_equal(np.concatenate([fmt.pack(encode_slab(fmt, row[None], h)) for row in w]), together)
    monkeypatch.setattr(grouped, "BLOCK", 300)
    np.testing.assert_array_equal(fmt.pack(encode_slab(fmt, w, h)), together)


def test_casts() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).reshape(256, 256).astype(np.uint16)
    w = bf16_to_f32(bits)
    w = np.where(np.isfinite(w), w, np.float32(0))
    np.testing.assert_array_equal(decoded(get_format("bf16/1"), w), w)
    np.testing.assert_array_equal(decoded(get_format("f32/1"), w), w)
    small = matrix("gauss", 4, 9, 0)
    np.testing.assert_array_equal(decoded(get_format("f16/1"), small), small.astype(np.float16).astype(np.float32))
    huge = np.array([[3.4e38, -3.4e38]], np.float32)
    for name in ("bf16/1", "f16/1"):
        assert np.isfinite(decoded(get_format(name), huge)).all()


@given(st.sampled_from(KINDS), st.integers(0, 1000))
def test_fp8_is_never_worse_than_the_plain_scale(kind: str, seed: int) -> None:
    from thinlm.artifacts.formats.floats import e4m3_to_f32, f32_to_e4m3

    w = matrix(kind, 3, 50, seed)
    scale = np.abs(w).max(1, keepdims=True) / np.float32(448)
    rtn = e4m3_to_f32(f32_to_e4m3(np.divide(w, scale, out=np.zeros_like(w), where=scale > 0))) * scale
    assert np.square(decoded(get_format("fp8-row/1"), w) - w).sum() <= np.square(rtn - w).sum() * (1 + 1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_must_be_finite(bad: float) -> None:
    w = matrix("gauss", 2, 40, 0)
    w[1, 3] = bad
    for name in ("int4-sym-g32/1", "bf16/1", "fp8-row/1"):
        with pytest.raises(InputError, match="not finite"):
            encode_slab(get_format(name), w)


def test_a_family_without_rounding_is_named() -> None:
    custom = Format(get_format("int4-sym-g32/1").spec, family="codebook")
    with pytest.raises(InputError, match="no rounding for family 'codebook', only int, fp8, float"):
        encode_slab(custom, np.ones((1, 4), np.float32))
    assert {fmt.family for fmt in FORMATS.values()} == set(ROUNDERS)


def test_dead_columns_still_count_a_little() -> None:
    """A group that calibration never excited is rounded as if all its columns were alike."""
    fmt, w = get_format("int4-sym-g32/1"), matrix("gauss", 8, 64, 3)
    h = np.concatenate([np.zeros(32), np.ones(32)])
    np.testing.assert_array_equal(decoded(fmt, w, h)[:, :32], decoded(fmt, w)[:, :32])
