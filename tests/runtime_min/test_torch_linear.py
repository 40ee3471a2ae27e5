"""The packed linear layer against float64 products with the formats' own decoding; its bytes, its bits under threads, what it refuses."""

from __future__ import annotations

import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from thinlm.artifacts.formats import FORMATS, Format, get_format
from thinlm.artifacts.formats.base import STORAGE
from thinlm.runtime_min.backends.torch_cpu.linear import PackedLinear
from thinlm.runtime_min.targets import FEW_TOKENS, int_codes, resident_bytes, scratch_bytes, stored_type
from thinlm.schemas.encoding import ELEMENT_BITS, FormatSpec, PartSpec, Slab
from thinlm.schemas.errors import BackendError, InputError

SHAPES = [(1, 1), (5, 7), (100, 333)]
TOKENS = (1, 2, 7, 64)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_raw(fmt: Format, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Encoded rows that use every code; scales of both signs, zero and subnormal among them."""
    rng = np.random.default_rng(seed)
    parts = {}
    for part in fmt.spec.parts:
        count = {"in": cols, "groups": -(-cols // fmt.group) if fmt.group else 1, "one": 1}[part.count]
        size = rng.choice([0.05, 1e-6, 0.0], (rows, count), p=[0.9, 0.05, 0.05])
        real = (rng.standard_normal((rows, count)) * size).astype(np.float32)
        if part.type.startswith("u"):
            parts[part.name] = rng.integers(0, 2 ** ELEMENT_BITS[part.type], (rows, count), np.uint8)
        elif part.type == "f8e4m3":
            parts[part.name] = rng.integers(0, 0x7F, (rows, count), np.uint8) | rng.choice(np.array([0, 0x80], np.uint8), (rows, count))
        elif part.type == "bf16":
            parts[part.name] = (real.view(np.uint32) >> 16).astype(np.uint16)
        else:
            parts[part.name] = real.astype(STORAGE[part.type])
    return fmt.pack(parts)


def sizes_of(fmt: Format, raw: np.ndarray, cols: int) -> np.ndarray:
    """What rounding may be relative to: a stored weight itself, the range of an integer weight's group; f32[rows, cols]."""
    parts = {name: part if part.dtype.kind == "u" else np.abs(part) for name, part in fmt.unpack(raw, cols).items()}
    if fmt.family == "int":
        parts["codes"] = np.full_like(parts["codes"], 2**fmt.bits - 1 if fmt.affine else 0)
    return np.abs(fmt.dequantize(parts, cols))


def load(name: str, rows: int, cols: int) -> tuple[PackedLinear, np.ndarray, np.ndarray]:
    """A matrix from one slab, its decoded weights and their sizes."""
    fmt = get_format(name)
    raw = random_raw(fmt, rows, cols)
    return PackedLinear.from_slabs(name, [(rows, cols)], [[Slab(0, rows, 0, cols, raw)]]), fmt.decode(raw, cols), sizes_of(fmt, raw, cols)


def activations(tokens: int, cols: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(tokens).standard_normal((tokens, cols)).astype(np.float32))


def same_bits_under_threads(linear: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(linear(x))
    assert torch.equal(*results)
    return results[0]


def check(linear: PackedLinear, weights: np.ndarray, sizes: np.ndarray, tokens: int) -> None:
    x = activations(tokens, weights.shape[1])
    expected = x.numpy().astype(np.float64) @ weights.T.astype(np.float64)
    got = same_bits_under_threads(linear, x).numpy()
    magnitude = np.abs(x.numpy()).astype(np.float64) @ sizes.T.astype(np.float64)
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= 1e-6 * magnitude + 1e-30)
    if got.size >= 100:  # few outputs may cancel by chance
        assert np.linalg.norm(got - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_product_rows_and_bytes(name: str, rows: int, cols: int):
    linear, weights, sizes = load(name, rows, cols)
    for tokens in TOKENS:
        check(linear, weights, sizes, tokens)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, rows, 9))
    assert np.array_equal(linear.rows(ids).numpy().view(np.uint32), weights[ids.numpy()].view(np.uint32))
    assert linear.nbytes == resident_bytes(name, rows, cols)


@pytest.mark.parametrize("name", ["int4-sym-g64/1", "int6-sym-g32/1", "int3-aff-g128/1", "int8-aff-g32/1", "bf16/1", "fp8-row/1"])
def test_more_rows_than_a_block_and_more_columns_than_a_span(name: str):
    for rows, cols in ((8200, 96), (4096 + 60, 1000)):
        linear, weights, sizes = load(name, rows, cols)
        for tokens in (1, 17):
            check(linear, weights, sizes, tokens)
        ids = torch.tensor([rows - 1, 0, rows // 2, rows - 1])
        assert np.array_equal(linear.rows(ids).numpy(), weights[ids.numpy()])
        assert linear.nbytes == resident_bytes(name, rows, cols)


@pytest.mark.parametrize("name", ["int4-sym-g64/1", "int8-sym-g32/1", "int3-sym-g64/1", "f32/1", "f16/1"])
@pytest.mark.parametrize(("rows", "cols"), [(768, 512), (512, 1536), (1000, 513), (67, 96)])
def test_bits_do_not_depend_on_threads(name: str, rows: int, cols: int):
    linear, *_ = load(name, rows, cols)
    for tokens in (1, 3, FEW_TOKENS, FEW_TOKENS + 1, 17, 33, 100):
        same_bits_under_threads(linear, activations(tokens, cols))


@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("name", ["int4-aff-g32/1", "f32/1"])
def test_bits_do_not_depend_on_where_activations_lie(name: str, tokens: int):
    linear, *_ = load(name, 192, 128)
    x = activations(tokens, 128)
    for offset in range(1, 17):
        moved = torch.empty(x.numel() + 17)[offset : offset + x.numel()].view_as(x).copy_(x)
        assert torch.equal(linear(moved), linear(x)), offset


@given(data=st.data(), name=st.sampled_from(sorted(FORMATS)), rows=st.integers(1, 150), slabs=st.integers(1, 3), last=st.integers(1, 128))
@settings(max_examples=40, deadline=None)
def test_slabs_in_any_cut_and_order(data: st.DataObject, name: str, rows: int, slabs: int, last: int):
    fmt, by_rows = get_format(name), data.draw(st.booleans())
    cols = 128 * (slabs - 1) + last
    if by_rows:
        cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=4))})
        places = [(a, b, 0, cols) for a, b in itertools.pairwise(cuts)]
    else:
        places = [(0, rows, c, min(cols, c + 128)) for c in range(0, cols, 128)]
    parts = [Slab(*p, random_raw(fmt, p[1] - p[0], p[3] - p[2], seed)) for seed, p in enumerate(places)]
    weights, sizes = np.zeros((2, rows, cols), np.float32)
    for slab in parts:
        place, width = np.s_[slab.row0 : slab.row1, slab.col0 : slab.col1], slab.col1 - slab.col0
        weights[place], sizes[place] = fmt.decode(slab.raw, width), sizes_of(fmt, slab.raw, width)
    linear = PackedLinear.from_slabs(name, [(rows, cols)], [data.draw(st.permutations(parts))])
    assert np.array_equal(linear.rows(torch.arange(rows)).numpy(), weights)
    assert linear.nbytes == resident_bytes(name, rows, cols, 1 if by_rows else len(places))
    check(linear, weights, sizes, data.draw(st.sampled_from(TOKENS)))


@pytest.mark.parametrize("name", ["int4-sym-g64/1", "int6-sym-g64/1", "bf16/1"])
def test_matrices_of_one_input_share_a_load(name: str):
    shapes = [(70, 96), (4100, 96), (1, 96)]
    raws = [random_raw(get_format(name), rows, cols, seed) for seed, (rows, cols) in enumerate(shapes)]
    linear = PackedLinear.from_slabs(name, shapes, [[Slab(0, r, 0, c, raw)] for (r, c), raw in zip(shapes, raws, strict=True)])
    assert linear.nbytes == resident_bytes(name, 4171, 96)
    for tokens in (1, 20):
        x = activations(2 * tokens, 96).view(2, tokens, 96)
        for got, raw in zip(linear(x), raws, strict=True):
            expected = x.double().numpy() @ get_format(name).decode(raw, 96).T.astype(np.float64)
            assert got.shape == expected.shape
            assert np.linalg.norm(got.numpy() - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["int8-sym-g128/1", "int4-sym-g64/1", "int4-aff-g64/1", "int2-sym-g32/1", "bf16/1"])
def test_resident_bytes_stay_close_to_encoded_bytes(name: str):
    for rows, cols in ((512, 512), (3072, 512), (512, 1536), (8192, 512)):
        assert resident_bytes(name, rows, cols) <= 1.06 * rows * get_format(name).row_bytes(cols)
    assert resident_bytes(name, 128256, 4096) <= 1.01 * 128256 * get_format(name).row_bytes(4096)


@pytest.mark.parametrize(("narrow", "wide"), [("int6-sym-g64/1", "int8-sym-g64/1"), ("int3-aff-g32/1", "int4-aff-g32/1")])
def test_codes_of_other_widths_occupy_the_next_power_of_two(narrow: str, wide: str):
    assert resident_bytes(narrow, 512, 512) == resident_bytes(wide, 512, 512)


class _Peak(TorchDispatchMode):
    """The most bytes of storage that torch's ops created and somebody held at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self._seen = 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in inputs | self._seen:
                self._seen.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())
        return result

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


@pytest.mark.parametrize("name", ["int4-sym-g64/1", "int8-aff-g128/1", "int6-sym-g32/1", "int2-aff-g64/1", "bf16/1", "f32/1", "fp8-row/1"])
@pytest.mark.parametrize(("rows", "cols"), [(700, 512), (4096, 2100), (9000, 64)])
@pytest.mark.parametrize("tokens", [1, FEW_TOKENS, 100])
def test_scratch_is_bounded_as_stated(name: str, rows: int, cols: int, tokens: int):
    linear = PackedLinear.from_slabs(name, [(rows, cols)], [[Slab(0, rows, 0, cols, np.zeros((rows, get_format(name).row_bytes(cols)), np.uint8))]])
    x = activations(tokens, cols)
    linear(x)  # routes and masks are built once
    with torch.inference_mode(), _Peak() as watch:
        linear(x)
    stated = scratch_bytes(name, rows, cols, tokens)
    assert stated / 4 <= watch.peak <= stated


def _slab(row0: int = 0, row1: int = 4, col0: int = 0, col1: int = 96) -> Slab:
    return Slab(row0, row1, col0, col1, np.zeros((row1 - row0, get_format("int4-sym-g64/1").row_bytes(col1 - col0)), np.uint8))


@pytest.mark.parametrize(
    ("slabs", "reason"),
    [
        ([_slab(0, 3)], "hold 288 weights"),
        ([_slab(), _slab(0, 1)], "hold 480 weights"),
        ([_slab(0, 5)], "not part of a matrix"),
        ([_slab(0, 4, 0, 97)], "not part of a matrix"),
        ([_slab(0, 4, 0, 32), _slab(0, 4, 32, 96)], "cuts a group of 64"),
    ],
)
def test_slabs_that_are_refused(slabs: list[Slab], reason: str):
    with pytest.raises(InputError, match=reason):
        PackedLinear.from_slabs("int4-sym-g64/1", [(4, 96)], [slabs])


def test_inputs_of_different_widths_are_refused():
    with pytest.raises(InputError, match="same number of columns"):
        PackedLinear.from_slabs("int4-sym-g64/1", [(4, 96), (4, 95)], [[], []])


def test_a_format_of_another_kind_is_refused():
    spec = FormatSpec(name="codebook/1", group=0, parts=(PartSpec(name="codes", type="u1", count="in"),), value=("take", (-1.0, 1.0), "codes"))
    assert int_codes(Format(spec)) is None
    with pytest.raises(BackendError, match="codebook/1"):
        stored_type(Format(spec))


def test_sizes_need_no_torch():
    use = "from thinlm.runtime_min.targets import resident_bytes; resident_bytes('int4-sym-g64/1', 8, 8)"
    code = f"import sys; {use}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
