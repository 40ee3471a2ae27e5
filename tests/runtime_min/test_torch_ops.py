"""Every op of the torch backend against the interpreter's reference, over the shared table of cases (all attributes, all optional inputs)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from op_cases import CASES, Case
from thinlm.runtime_min.backends.torch_cpu.ops import OPS as TORCH_OPS
from thinlm.runtime_min.interp import run_op
from thinlm.schemas.ops import OPS, REQUIRED


def tensor(x: np.ndarray | None, name: str) -> torch.Tensor | None:
    """Reals as float32, except frequencies, which backends get in float64."""
    if x is None:
        return None
    t = torch.from_numpy(x)
    return t.float() if t.dtype == torch.float64 and name != "freqs" else t


def test_every_op_is_there() -> None:
    assert TORCH_OPS.keys() == OPS.keys()


@pytest.mark.parametrize("c", CASES, ids=str)
def test_torch_equals_reference(c: Case) -> None:
    args, attrs = c.args(), {k: a.default for k, a in OPS[c.op].attrs.items() if a.default is not REQUIRED} | c.attrs
    tensors = [tensor(x, name) for x, name in zip(args, OPS[c.op].inputs, strict=False)]
    got, expected = TORCH_OPS[c.op](tensors, attrs), run_op(c.op, args, c.attrs)
    assert got.dtype == torch.float32
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.numpy(), expected, rtol=3e-5, atol=3e-5)
