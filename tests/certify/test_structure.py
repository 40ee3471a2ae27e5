"""STRUCTURE's checks one by one, and its oracle of plain rounding against the definition of each format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, strategies as st

from thinlm.artifacts.formats import FORMATS, Format, get_format
from thinlm.certify.checks import structure
from thinlm.certify.checks.structure import FLOOR, Orders, file_check, graph_check, tensor_checks
from thinlm.certify.plain_rounding import round_plainly
from thinlm.passes.round import encode_slab
from thinlm.schemas.certificate import Check
from thinlm.schemas.encoding import FormatSpec, PartSpec, Slab
from thinlm.schemas.errors import CertifyError
from thinlm.schemas.graph import Graph, Param
from thinlm.schemas.manifest import FileEntry
from tiny import Dims, MemoryWeights, tiny_graph

INTEGERS = [f.name for f in FORMATS.values() if f.family == "int"]


def levels(fmt: Format, row: np.ndarray) -> np.ndarray:
    """Every value that one group of `row` can take under plain rounding, float32 [levels]."""
    codes = np.arange(2**fmt.bits, dtype=np.float32)
    if fmt.affine:
        low = np.float32(np.float16(row.min()))
        return codes * np.float32(np.float16((row.max() - low) / np.float32(2**fmt.bits - 1))) + low
    centre = 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
    return (codes - np.float32(centre)) * np.float32(np.float16(np.abs(row).max() / np.float32(2**fmt.bits - 1 - centre)))


@pytest.mark.parametrize("name", INTEGERS)
def test_plain_rounding_takes_the_nearest_level(name: str) -> None:
    fmt = get_format(name)
    w = np.random.default_rng(fmt.bits).normal(0.3, 1, (3, 2 * fmt.group + 5)).astype(np.float32)
    got = round_plainly(fmt, w)
    for r in range(len(w)):
        for start in range(0, w.shape[1], fmt.group):
            group = w[r, start : start + fmt.group]
            grid = levels(fmt, group)
            best = np.abs(grid[None] - group[:, None]).min(1)
            np.testing.assert_allclose(np.abs(got[r, start : start + fmt.group] - group), best, rtol=1e-4, atol=1e-6)
            assert np.isin(got[r, start : start + fmt.group], grid).all()


@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 1000), st.integers(1, 70))
def test_the_compilers_rounding_keeps_the_bound(name: str, seed: int, cols: int) -> None:
    """Zero rows stay zero, and the compiler's own rounding keeps the bound for any width, where f16 scales and minima dominate the error too."""
    fmt, w = get_format(name), np.random.default_rng(seed).normal(0, 1, (3, cols)).astype(np.float32)
    w[1] = 0
    got = round_plainly(fmt, w)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    assert not got[1].any()
    ours = fmt.decode(fmt.pack(encode_slab(fmt, w)), cols)
    plain, best, size = (np.linalg.norm(x.astype(np.float64), axis=1) for x in (got - w, ours - w, w))
    assert (best <= 2 * np.maximum(plain, FLOOR * size)).all()


def test_plain_rounding_of_floats() -> None:
    import torch

    w = np.random.default_rng(0).normal(0, 1, (4, 33)).astype(np.float32)
    t = torch.from_numpy(w)
    np.testing.assert_array_equal(round_plainly(get_format("bf16/1"), w), t.bfloat16().float().numpy())
    np.testing.assert_array_equal(round_plainly(get_format("f16/1"), w), t.half().float().numpy())
    np.testing.assert_array_equal(round_plainly(get_format("f32/1"), w), w)
    scale = t.abs().amax(1, keepdim=True) / 448
    np.testing.assert_array_equal(round_plainly(get_format("fp8-row/1"), w), ((t / scale).to(torch.float8_e4m3fn).float() * scale).numpy())


def test_a_format_without_a_rule_is_refused() -> None:
    spec = FormatSpec(name="odd/1", group=0, parts=(PartSpec(name="codes", type="u4", count="in"),), value="codes")
    with pytest.raises(CertifyError, match="no rule for format odd/1"):
        round_plainly(Format(spec), np.ones((1, 4), np.float32))


class Stored:
    """Tensors in one format, cut into slabs; `raw` holds what is decoded."""

    kind, identity = "artifact", "x"

    def __init__(self, name: str, arrays: dict[str, np.ndarray], cut: int = 3, axis: int = 0) -> None:
        self.name, self.cut, self.axis = name, cut, axis
        self.arrays = {k: np.atleast_2d(v) for k, v in arrays.items()}

    def encoding(self, name: str) -> str:
        return self.name

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def slabs(self, name: str) -> Iterator[Slab]:
        fmt, w = get_format(self.name), self.arrays[name]
        for start in range(0, w.shape[self.axis], self.cut):
            part = w[start : start + self.cut] if self.axis == 0 else w[:, start : start + self.cut]
            rows = (start, start + len(part)) if self.axis == 0 else (0, len(w))
            cols = (0, w.shape[1]) if self.axis == 0 else (start, start + part.shape[1])
            part = np.ascontiguousarray(part)
            yield Slab(*rows, *cols, fmt.pack({"value": part} if self.name == "f32/1" else encode_slab(fmt, part)))

    def f32(self, name: str) -> np.ndarray:
        raise AssertionError("STRUCTURE reads the stored bytes")

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        return self.f32(name)[rows, cols].copy()


class Source(Stored):
    def f32(self, name: str) -> np.ndarray:
        return self.arrays[name]


W = np.random.default_rng(4).normal(0, 1, (10, 96)).astype(np.float32)


def checks(stored: Stored, source: np.ndarray = W, dtype: str = "f32", name: str = "blk.0.ffn.up", orders: Orders = {}) -> dict[str, Check]:  # noqa: B006
    param = Param(name, source.shape, dtype, "up")
    seen: list[str] = []
    found = tensor_checks(stored, Source("f32/1", {name: source}), (param,), orders, seen.append)
    assert seen == [name]
    return {c.metric: c for c in found}


def one(w: np.ndarray, fmt: str = "int4-sym-g32/1", name: str = "blk.0.ffn.up", **cut: int) -> Stored:
    return Stored(fmt, {name: w}, **cut)


@pytest.mark.parametrize(("cut", "axis"), [(3, 0), (100, 0), (32, 1), (64, 1)])
@pytest.mark.parametrize("fmt", ["int4-sym-g32/1", "int2-aff-g32/1", "int3-sym-g64/1", "fp8-row/1"])
def test_good_rounding_is_about_as_good_as_plain_rounding(fmt: str, cut: int, axis: int) -> None:
    found = checks(one(W, fmt, cut=cut, axis=axis))
    assert 0.5 < found["row_error_ratio"].value < 1.5
    assert (found["rows_reversed"].value, found["lossless_differences"].value, found["row_error_ratio"].n) == (0, 0, 10)


def test_each_row_is_judged_by_itself() -> None:
    noisy = W.copy()
    noisy[7] += np.random.default_rng(0).normal(0, 0.3, 96).astype(np.float32)
    found = checks(one(noisy))
    assert found["row_error_ratio"].value > 2
    assert found["row_error_ratio"].detail == "worst: blk.0.ffn.up row 7"
    assert found["rows_reversed"].value == 0


def test_reversed_and_lost_rows_are_counted() -> None:
    bad = W.copy()
    bad[2] *= -1
    bad[5] = 0
    found = checks(one(bad))
    assert (found["rows_reversed"].value, found["rows_reversed"].detail) == (2, "blk.0.ffn.up row 2, blk.0.ffn.up row 5")


def test_a_zero_row_must_stay_zero() -> None:
    source = W.copy()
    source[4] = 0
    assert checks(one(source), source)["rows_reversed"].value == 0
    found = checks(one(W), source)
    assert found["rows_reversed"].detail == "blk.0.ffn.up row 4"
    assert not checks(one(np.zeros_like(W)), np.zeros_like(W))["row_error_ratio"].value


def test_a_row_that_plain_rounding_hits_may_cost_one_rounding_of_a_scale() -> None:
    assert np.finfo(np.float16).eps / 2 == FLOOR, "half a step of a float16"
    source = np.tile(np.float32([-7, 7, 3, 0]), (10, 24)) * np.float32(1.25)
    near = source * np.float32(1 + FLOOR)
    assert checks(one(near, "f32/1"), source, dtype="f64")["row_error_ratio"].value == pytest.approx(1, rel=1e-3)
    assert checks(one(source * np.float32(1 + 3 * FLOOR), "f32/1"), source, dtype="f64")["row_error_ratio"].value > 2


def test_lossless_means_bits() -> None:
    source = W.copy()
    source[0, 0] = 0.0
    other = source.copy()
    other[0, 0] = -0.0
    other[3, 9] = np.nextafter(other[3, 9], np.float32(9))
    found = checks(one(other, "f32/1"), source)
    assert (found["lossless_differences"].value, found["lossless_differences"].n) == (2, source.size)
    assert found["row_error_ratio"].value <= 2
    assert checks(one(source, "f32/1"), source)["lossless_differences"].value == 0


def test_weights_that_are_not_finite_have_no_ratio() -> None:
    bad = W.copy()
    bad[1, 1] = np.nan
    found = checks(one(bad, "f32/1"), dtype="f64")
    assert found["row_error_ratio"].value is None
    assert "row 1, which is not finite" in found["row_error_ratio"].detail
    assert found["rows_reversed"].value == 1


def test_recorded_channel_order_is_undone() -> None:
    order = np.random.default_rng(1).permutation(10)
    for name, axis in (("blk.0.ffn.up", 0), ("blk.0.ffn.down", 1)):
        source = W if axis == 0 else np.ascontiguousarray(W.T)
        stored = one(np.ascontiguousarray(np.take(source, order, axis)), "int8-sym-g32/1", name)
        assert checks(stored, source, name=name, orders={"blk.0.ffn": order})["row_error_ratio"].value <= 1.5
        assert checks(stored, source, name=name)["row_error_ratio"].value > 2
        assert checks(stored, source, name=name, orders={"blk.1.ffn": order})["row_error_ratio"].value > 2
        with pytest.raises(CertifyError, match="no permutation"):
            checks(stored, source, name=name, orders={"blk.0.ffn": np.zeros(10, int)})


def test_slabs_must_cover_the_tensor() -> None:
    with pytest.raises(CertifyError, match=r"slabs hold 864 weights, the tensor has 960"):
        checks(one(W[:9]))


def test_graphs() -> None:
    graph = tiny_graph(Dims())
    weights = MemoryWeights(graph)
    stored = graph.with_encodings(dict.fromkeys((p.name for p in graph.params), "f32/1"))
    assert graph_check(stored, graph, weights).value == 0
    assert graph_check(graph, graph, weights).detail == "param embed: encoding , stored as f32/1"
    parts = (graph.name, graph.inputs, graph.consts, stored.params)
    assert graph_check(Graph(*parts, graph.nodes[:-1], graph.outputs), graph, weights).value == 1
    assert graph_check(Graph(*parts, graph.nodes[::-1], graph.outputs), graph, weights).value > 5
    assert "outputs" in graph_check(Graph(*parts, graph.nodes, graph.outputs[::-1]), graph, weights).detail


def test_files() -> None:
    def entry(path: str, raw: bytes) -> FileEntry:
        import hashlib

        return FileEntry(path=path, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())

    both = {"a.json": b"a", "b.json": b"b"}
    right = (entry("a.json", b"a"), entry("b.json", b"b"))
    assert file_check(right, both).value == 0
    assert file_check(right[:1], both).detail == "differing, missing or extra: b.json"
    assert file_check((right[0], entry("b.json", b"c")), both).value == 1
    assert file_check((*right, entry("c.json", b"c")), both).detail.endswith("c.json")


class Frugal(Source):
    """A source that hands out no tensor whole and remembers the largest part asked for."""

    largest = 0

    def f32(self, name: str) -> np.ndarray:
        raise AssertionError("a whole tensor is never held")

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        part = self.arrays[name][rows, cols].copy()
        self.largest = max(self.largest, part.size)
        return part


@pytest.mark.parametrize("name", ["blk.0.ffn.up", "blk.0.ffn.down"])
@pytest.mark.parametrize("fmt", ["int4-sym-g32/1", "f32/1"])
@pytest.mark.parametrize("axis", [0, 1])
def test_figures_do_not_depend_on_how_much_is_held(monkeypatch: pytest.MonkeyPatch, name: str, fmt: str, axis: int) -> None:
    """The same figures to the last bit with three rows at a time as with everything at once, in any recorded order."""
    w = np.random.default_rng(6).normal(0, 1, (96, 96)).astype(np.float32)
    order = np.random.default_rng(2).permutation(96)
    moved = w[order] if name.endswith("up") else w[:, order]
    spoiled = moved + np.float32(0.01) * (np.arange(96)[:, None] == 41)
    source, found = Frugal("f32/1", {name: w}), []
    for block in (1 << 20, 3 * 96 + 5):
        monkeypatch.setattr(structure, "BLOCK", block)
        source.largest = 0
        stored, param = Stored(fmt, {name: spoiled}, cut=32, axis=axis), Param(name, w.shape, "f32", "up")
        found.append(tensor_checks(stored, source, (param,), {"blk.0.ffn": order}, lambda _: None))
    assert found[0] == found[1]
    assert source.largest == 3 * 96
    if fmt == "f32/1":
        assert found[0][2].value == 96, "the row that was changed, and no other"
