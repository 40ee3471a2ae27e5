"""The meter of tensor storages against allocations whose sizes are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thinlm.certify.checks.memory import METRICS, memory_checks
from thinlm.certify.checks.torch_memory import StorageMeter


def test_live_and_peak() -> None:
    with StorageMeter() as meter:
        a = torch.zeros(1000)
        assert meter.live == 4000
        b = a + 1
        assert (meter.live, meter.peak) == (8000, 8000)
        del a
        assert (meter.live, meter.peak) == (4000, 8000)
        c = torch.empty(250, dtype=torch.float64)
        assert (meter.live, meter.peak) == (6000, 8000)
        b.add_(1)
        assert meter.live == 6000
        del b, c
        assert (meter.live, meter.peak) == (0, 8000)


def test_views_share_a_storage() -> None:
    with StorageMeter() as meter:
        a = torch.zeros(10, 100)
        views = [a[3], a.t(), a.view(-1), a.split(5)[1]]
        assert meter.live == 4000
        del a
        assert meter.live == 4000, "a view keeps its storage"
        del views
        assert meter.live == 0


def test_what_existed_before_counts_from_its_first_use() -> None:
    weights = torch.from_numpy(np.ones((50, 20), np.float32))
    with StorageMeter() as meter:
        assert meter.live == 0
        y = torch.nn.functional.linear(torch.ones(3, 20), weights)
        assert meter.peak == 4000 + 240 + 600
        assert y.shape == (3, 50)
    before = meter.peak
    torch.zeros(10**6)
    assert meter.peak == before


def test_temporaries_of_an_expression_are_seen() -> None:
    with StorageMeter() as meter:
        x = torch.zeros(1000)
        x = (x + 1) * 2 - 3
        assert meter.peak == 12000
        assert meter.live == 4000


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inside_other_modes(mode: type[torch.no_grad]) -> None:
    with mode(), StorageMeter() as meter:
        x = torch.zeros(1000).softmax(0)
        assert meter.peak == 8000
        assert len(x) == 1000


def test_a_backend_without_a_meter_gives_no_figure() -> None:
    checks = memory_checks(lambda: pytest.fail("nothing is loaded"), "interp", np.arange(3), 100)
    assert [(c.metric, c.value) for c in checks] == [(m, None) for m in METRICS]
