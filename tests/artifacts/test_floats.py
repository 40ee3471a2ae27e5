"""bf16 and E4M3 helpers against torch, bit for bit."""

from __future__ import annotations

import numpy as np
import torch

from thinlm.artifacts.formats.floats import bf16_to_f32, e4m3_to_f32, f32_to_bf16, f32_to_e4m3

HALF = np.arange(1 << 16, dtype=np.uint16)


def _hard_floats() -> np.ndarray:
    """Every bf16 value with every tie and near-tie below it: rounding, subnormals, overflow, infinities."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (HALF.astype(np.uint32) << 16)[:, None] | low[None]
    return bits.reshape(-1).view(np.float32)


def _same(got: np.ndarray, want: np.ndarray, nan: np.ndarray) -> None:
    np.testing.assert_array_equal(got[~nan], want[~nan])


def test_bf16_decodes_like_torch() -> None:
    want = torch.from_numpy(HALF.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bf16_to_f32(HALF).view(np.uint32), want.view(np.uint32))


def test_bf16_rounds_like_torch() -> None:
    x = _hard_floats()
    want = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
    _same(f32_to_bf16(x), want, np.isnan(x))
    assert np.isnan(bf16_to_f32(f32_to_bf16(x[np.isnan(x)]))).all()


def test_e4m3_decodes_like_torch() -> None:
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(e4m3_to_f32(codes), want)


def test_e4m3_rounds_like_torch() -> None:
    x = np.concatenate([_hard_floats(), np.linspace(-464, 464, 100_001, dtype=np.float32)])
    x = x[~(np.abs(x) > 464)]  # above, torch's answer depends on its version
    want = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    _same(f32_to_e4m3(x), want, np.isnan(x))
    assert np.isnan(e4m3_to_f32(f32_to_e4m3(x[np.isnan(x)]))).all()


def test_scalars_and_shapes_survive() -> None:
    assert f32_to_bf16(np.float32(1.0)).shape == f32_to_e4m3(np.float32(1e-9)).shape == ()
    assert f32_to_e4m3(np.ones((2, 3), np.float32)[:, ::2]).shape == (2, 2)


def test_e4m3_saturates() -> None:
    x = np.array([449, 464, 465, 1e9, np.inf], np.float32)
    assert e4m3_to_f32(f32_to_e4m3(np.concatenate([x, -x]))).tolist() == [448.0] * 5 + [-448.0] * 5
