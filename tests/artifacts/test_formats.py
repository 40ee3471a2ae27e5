"""Number formats: byte goldens, inverse properties, a plain-Python oracle, and the formats of gguf that are the same numbers."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from hypothesis import given, settings, strategies as st

from source import ROOT
from thinlm.artifacts.formats import FORMATS, Format, get_format
from thinlm.schemas.encoding import FormatSpec, PartSpec
from thinlm.schemas.errors import InputError
from tiny_artifact import random_raw

# The last 32 bytes of a row of 70 columns (the last group is short) with codes (7 j + 3) mod 2^N, scales 0.5 1 2, minima -1 -2 -3,
# or the floats -1.5 -0.5 0.5 ...
GOLDEN = {
    "bf16/1": "524256425a425e42624266426a426e42724276427a427e428142834285428742",
    "f16/1": "9052b052d052f05210533053505370539053b053d053f0530854185428543854",
    "f32/1": "000072420000764200007a4200007e4200008142000083420000854200008742",
    "int8-sym-g32/1": "373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60038003c0040",
    "int8-sym-g64/1": "2930373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60038003c",
    "int8-sym-g128/1": "1b222930373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60038",
    "int6-sym-g32/1": "bfd1509b98c2b75f309316a2afdd138b9481a75bf38312619f090038003c0040",
    "int6-sym-g64/1": "1ae3bfd1509b98c2b75f309316a2afdd138b9481a75bf38312619f090038003c",
    "int6-sym-g128/1": "71a31ae3bfd1509b98c2b75f309316a2afdd138b9481a75bf38312619f090038",
    "int4-sym-g32/1": "816f4d2b09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f0038003c0040",
    "int4-sym-g64/1": "c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f0038003c",
    "int4-sym-g128/1": "09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f0038",
    "int3-sym-g32/1": "70975370975370975370975370975370975370975370975370030038003c0040",
    "int3-sym-g64/1": "5370975370975370975370975370975370975370975370975370030038003c",
    "int3-sym-g128/1": "5370975370975370975370975370975370975370975370975370030038",
    "int2-sym-g32/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b0038003c0040",
    "int2-sym-g64/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b0038003c",
    "int2-sym-g128/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b0038",
    "int8-aff-g32/1": "61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60038003c004000bc00c000c2",
    "int8-aff-g64/1": "454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60038003c00bc00c0",
    "int8-aff-g128/1": "2930373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe6003800bc",
    "int4-aff-g32/1": "c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f0038003c004000bc00c000c2",
    "int4-aff-g64/1": "4d2b09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f0038003c00bc00c0",
    "int4-aff-g128/1": "c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f4d2b09e7c5a3816f003800bc",
    "int3-aff-g32/1": "70975370975370975370975370975370975370030038003c004000bc00c000c2",
    "int3-aff-g64/1": "5370975370975370975370975370975370975370975370030038003c00bc00c0",
    "int3-aff-g128/1": "537097537097537097537097537097537097537097537097537003003800bc",
    "int2-aff-g32/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b0038003c004000bc00c000c2",
    "int2-aff-g64/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b0038003c00bc00c0",
    "int2-aff-g128/1": "1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b0b003800bc",
    "fp8-row/1": "2930373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe60000003f",
}


def _ramp(fmt: Format, cols: int) -> dict[str, np.ndarray]:
    """Parts of one row with a fixed, easily recomputed content."""
    groups = -(-cols // fmt.group) if fmt.group else 1
    ramp = np.arange(cols, dtype=np.float32)[None] - 1.5
    floats = {"bf16": (ramp.view(np.uint32) >> 16).astype(np.uint16), "f16": ramp.astype(np.float16), "f32": ramp}
    parts = {}
    for part in fmt.spec.parts:
        if part.name == "value":
            parts["value"] = floats[part.type]
        elif part.name == "codes":
            width = 8 if part.type == "f8e4m3" else int(part.type[1:])
            parts["codes"] = ((7 * np.arange(cols) + 3) % 2**width).astype(np.uint8)[None]
        elif part.count == "one":
            parts[part.name] = np.array([[0.5]], np.float32)
        else:
            line = 0.5 * 2.0 ** np.arange(groups) if part.name == "scale" else -1.0 - np.arange(groups)
            parts[part.name] = line.astype(np.float16)[None]
    return parts


def _f32(x: Fraction | float) -> float:
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


def _oracle_element(kind: str, data: bytes, index: int) -> float:
    """Element `index` of a part, read bit by bit."""
    width = {"f16": 16, "bf16": 16, "f32": 32, "f8e4m3": 8}.get(kind) or int(kind[1:])
    bits = sum((data[b >> 3] >> (b & 7) & 1) << (b - index * width) for b in range(index * width, (index + 1) * width))
    if kind == "f16":
        return struct.unpack("<e", bits.to_bytes(2, "little"))[0]
    if kind in ("f32", "bf16"):
        return struct.unpack("<f", (bits << (32 - width)).to_bytes(4, "little"))[0]
    if kind == "f8e4m3":
        sign, exponent, mantissa = -1 if bits >> 7 else 1, bits >> 3 & 15, bits & 7
        return sign * (math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9))
    return float(bits)


def _oracle(spec: FormatSpec, row: bytes, cols: int) -> list[float]:
    """The row's values from the spec alone, in plain Python: each operation is exact as a Fraction, then rounded once to float32."""
    counts = {"in": cols, "groups": -(-cols // spec.group) if spec.group else 0, "one": 1}
    bits = {"f16": 16, "bf16": 16, "f32": 32, "f8e4m3": 8}
    places, start = {}, 0
    for part in spec.parts:
        size = (counts[part.count] * (bits.get(part.type) or int(part.type[1:])) + 7) // 8
        places[part.name] = (part, row[start : start + size])
        start += size
    assert start == len(row)

    def value(node: object, column: int) -> float:
        if isinstance(node, str):
            part, data = places[node]
            return _oracle_element(part.type, data, {"in": column, "groups": column // max(spec.group, 1), "one": 0}[part.count])
        if not isinstance(node, tuple):
            return _f32(node)
        if node[0] == "take":
            return _f32(node[1][int(value(node[2], column))])
        if node[0] == "exp2":
            return _f32(math.ldexp(1.0, int(value(node[1], column))))
        a, b = (Fraction(value(operand, column)) for operand in node[1:])
        return _f32({"add": a + b, "sub": a - b, "mul": a * b}[node[0]])

    return [value(spec.value, column) for column in range(cols)]


@pytest.mark.parametrize("name", FORMATS)
def test_golden_row(name: str) -> None:
    assert FORMATS[name].pack(_ramp(FORMATS[name], 70)).tobytes()[-32:].hex() == GOLDEN[name]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 4), cols=st.one_of(st.integers(1, 9), st.integers(1, 300)), seed=st.integers(0, 2**32 - 1))
def test_pack_and_unpack_are_inverse_and_decode_is_the_oracle(name: str, rows: int, cols: int, seed: int) -> None:
    fmt = FORMATS[name]
    raw = random_raw(fmt, rows, cols, str(seed))
    parts = fmt.unpack(raw, cols)
    np.testing.assert_array_equal(fmt.pack(parts), raw)
    values = fmt.decode(raw, cols)
    np.testing.assert_array_equal(values, fmt.dequantize(parts, cols))
    assert values.dtype == np.float32
    assert values[-1].tolist() == _oracle(fmt.spec, raw[-1].tobytes(), cols)


CENTRE = {2: 1.5, 3: 4, 4: 8, 6: 32, 8: 128}


@pytest.mark.parametrize("name", [name for name, fmt in FORMATS.items() if fmt.family == "int"])
def test_integer_formats_mean_what_their_name_says(name: str) -> None:
    fmt, cols = FORMATS[name], 200
    assert name == f"int{fmt.bits}-{'aff' if fmt.affine else 'sym'}-g{fmt.group}/1"
    parts = fmt.unpack(random_raw(fmt, 3, cols, ""), cols)
    wide = {k: np.repeat(v.astype(np.float32), fmt.group, axis=1)[:, :cols] for k, v in parts.items() if k != "codes"}
    codes = parts["codes"].astype(np.float32)
    want = codes * wide["scale"] + wide["min"] if fmt.affine else (codes - np.float32(CENTRE[fmt.bits])) * wide["scale"]
    np.testing.assert_array_equal(fmt.dequantize(parts, cols), want)


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_of_rows_decode_like_single_rows(name: str) -> None:
    fmt = FORMATS[name]
    raw = random_raw(fmt, 70, 1000, "")
    np.testing.assert_array_equal(fmt.decode(raw, 1000)[65:66], fmt.decode(raw[65:66], 1000))


def _gguf_scales(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32).astype(np.float16)


@pytest.mark.parametrize(("name", "kind"), [("int4-sym-g32/1", "Q4_0"), ("int4-aff-g32/1", "Q4_1"), ("int8-sym-g32/1", "Q8_0")])
def test_gguf_blocks_of_the_same_numbers_decode_alike(name: str, kind: str) -> None:
    rows, groups, rng = 6, 5, np.random.default_rng(7)
    fmt = get_format(name)
    codes = rng.integers(0, 1 << fmt.bits, (rows, groups, 32), np.uint8)
    scale, low = _gguf_scales(rng, (rows, groups)), _gguf_scales(rng, (rows, groups))
    # gguf keeps a block together: its scale (and minimum), then nibble j = weight j, high nibble j = weight j + 16
    head = [scale[..., None].view(np.uint8)] + ([low[..., None].view(np.uint8)] if fmt.affine else [])
    body = (codes ^ 0x80) if fmt.bits == 8 else codes[..., :16] | codes[..., 16:] << 4
    blocks = np.concatenate([*head, body], axis=2).reshape(rows, -1)
    parts = {"codes": codes.reshape(rows, -1), "scale": scale} | ({"min": low} if fmt.affine else {})
    want = gguf_dequantize(blocks, GGMLQuantizationType[kind])
    np.testing.assert_array_equal(fmt.decode(fmt.pack(parts), groups * 32), want)


def test_plain_formats_hold_every_bit_of_their_source() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    for name, parts in (("bf16/1", bits), ("f16/1", bits.view(np.float16))):
        fmt = get_format(name)
        again = fmt.unpack(fmt.pack({"value": parts}), 256)["value"]
        np.testing.assert_array_equal(again.view(np.uint16), bits)
        assert fmt.is_lossless_for(name.split("/")[0])
        assert not fmt.is_lossless_for("f32")
    assert all(get_format("f32/1").is_lossless_for(dtype) for dtype in ("f32", "f16", "bf16"))
    assert not any(fmt.lossless for fmt in FORMATS.values() if fmt.family != "float")


BAD_SPECS = {
    "unknown part": {"value": ["mul", "codes", "zero"]},
    "unread part": {"value": "codes"},
    "unknown operation": {"value": ["div", "codes", "scale"]},
    "operand missing": {"value": ["mul", "codes"]},
    "not a number": {"value": ["mul", "codes", ["add", "scale", True]]},
    "group without groups part": {"parts": (PartSpec(name="codes", type="u4", count="in"),), "value": "codes"},
    "groups part without group": {"group": 0},
    "negative group": {"group": -4},
    "short table": {"value": ["mul", ["take", [1.0, 2.0], "codes"], "scale"]},
    "table of floats": {"value": ["mul", ["take", list(range(16)), "scale"], "codes"]},
    "a part twice": {"parts": (PartSpec(name="codes", type="u4", count="in"),) * 2, "group": 0, "value": "codes"},
    "no part per column": {"parts": (PartSpec(name="scale", type="f16", count="groups"),), "value": "scale"},
    "no part": {"parts": (), "group": 0, "value": 1.0},
}


@pytest.mark.parametrize("change", BAD_SPECS.values(), ids=list(BAD_SPECS))
def test_specs_that_mean_nothing_are_refused(change: dict) -> None:
    good = get_format("int4-sym-g32/1").spec
    fields = {"name": "x/1", "group": good.group, "parts": good.parts, "value": good.value}
    with pytest.raises(ValueError, match="format x/1"):
        FormatSpec(**(fields | change))


def test_deep_expressions_are_refused() -> None:
    node: object = "codes"
    for _ in range(40):
        node = ["add", node, 1]
    with pytest.raises(ValueError, match="nested deeper"):
        FormatSpec(name="x/1", group=0, parts=(PartSpec(name="codes", type="u4", count="in"),), value=node)  # pyright: ignore[reportArgumentType]


def test_wrong_parts_and_bytes_are_refused() -> None:
    fmt = get_format("int4-sym-g32/1")
    codes, scale = np.zeros((2, 40), np.uint8), np.ones((2, 2), np.float16)
    for parts in (
        {"codes": codes},
        {"codes": codes, "scale": scale[:, :1]},
        {"codes": codes, "scale": scale.astype(np.float32)},
        {"codes": codes + 16, "scale": scale},
    ):
        with pytest.raises(InputError):
            fmt.pack(parts)
    raw = fmt.pack({"codes": codes, "scale": scale})
    for bad in (raw[:, :-1], raw.astype(np.int8), raw[0]):
        with pytest.raises(InputError):
            fmt.unpack(bad, 40)
    with pytest.raises(InputError):
        fmt.row_bytes(0)
    with pytest.raises(InputError):
        fmt.dequantize({"codes": codes, "scale": scale}, 41)


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(InputError, match="int4-sym-g64/1"):
        get_format("int4-sym-g65/1")


def test_the_names_are_settled() -> None:
    sym = [f"int{n}-sym-g{g}/1" for n in (8, 6, 4, 3, 2) for g in (32, 64, 128)]
    affine = [f"int{n}-aff-g{g}/1" for n in (8, 4, 3, 2) for g in (32, 64, 128)]
    assert list(FORMATS) == ["bf16/1", "f16/1", "f32/1", *sym, *affine, "fp8-row/1"]


def test_the_guide_works() -> None:
    """examples/add_a_format.md shows a file that is a format."""
    text = (ROOT / "examples/add_a_format.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    names: dict = {}
    exec(code.replace("from ...", "from thinlm.").replace("from .base", "from thinlm.artifacts.formats.base"), names)
    (fmt,) = names["FORMATS"]
    raw = random_raw(fmt, 2, 100, "")
    assert fmt.decode(raw, 100)[1].tolist() == _oracle(fmt.spec, raw[1].tobytes(), 100)
    assert fmt.name not in FORMATS
