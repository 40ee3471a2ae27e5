"""CONFORMANCE of memory: the peak of device bytes, measured while a fresh model loads, fills its context and decodes.

The measurement shares nothing with the compiler's ledger: it watches the storages of tensors come and go (torch_memory.py). What numpy
stages while loading is the host's, not the device's. Backends without a meter give no figure, and a budget then can't be certified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...runtime_min.model import Model
from ...schemas.certificate import Check

METRICS = ("memory_peak", "memory_prediction")
METERED = ("torch_cpu",)  # backends whose memory can be measured
DECODE_STEPS = 2


def memory_checks(load: Callable[[], Model], backend: str, ids: np.ndarray, predicted: int) -> tuple[Check, ...]:
    """Load with `load`, fill every sequence of the batch with ids from `ids`, decode; the peak, and how far the ledger's figure is from it."""
    if backend not in METERED:
        why = f"no meter for backend {backend}"
        return tuple(Check(metric=m, name=m, value=None, n=0, detail=why) for m in METRICS)
    from .torch_memory import StorageMeter

    with StorageMeter() as meter:
        positions = _exercise(load(), ids)
    peak = meter.peak
    name = f"[positions={positions},decode={DECODE_STEPS}]"
    detail = f"ledger {predicted} bytes, measured {peak}"
    return (
        Check(metric="memory_peak", name=f"memory_peak{name}", value=peak, n=positions, detail=detail),
        Check(metric="memory_prediction", name=f"memory_prediction{name}", value=abs(predicted - peak) / peak, n=positions, detail=detail),
    )


def _exercise(model: Model, ids: np.ndarray) -> int:
    """Prefill all but the last positions of the whole context in every sequence, then decode into them; positions filled."""
    options = model.options
    sessions = [model.session() for _ in range(options.batch)]
    fill = max(1, options.context - DECODE_STEPS)
    for session in sessions:
        session.advance(np.resize(ids, fill))
        for _ in range(min(DECODE_STEPS, options.context - fill)):
            session.advance(ids[:1])
    positions = sum(session.length for session in sessions)
    for session in sessions:
        session.close()
    model.close()
    return positions
