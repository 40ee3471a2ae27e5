"""CONFORMANCE of memory: the peak of device bytes, measured while a fresh model loads, fills its context and decodes.

The measurement shares nothing with the compiler's ledger: it watches the storages of tensors come and go (torch_memory.py). What numpy
stages while loading is the host's, not the device's. Backends without a meter give no figure, and a budget then can't be certified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...runtime_min.model import Model
from ...schemas.certificate import Check, GateName

METRICS = ("memory_peak", "memory_prediction")
GATE: GateName = "CONFORMANCE"  # where they belong even when nothing judges them: without a budget, without a meter
METERED = ("torch_cpu",)  # backends whose memory can be measured
DECODE_STEPS = 2


def memory_checks(load: Callable[[], Model], backend: str, ids: np.ndarray, predicted: int) -> tuple[Check, ...]:
    """Load with `load`, fill the context with ids from `ids`, decode; the peak, and how far the ledger's `predicted` bytes are from it."""
    if backend not in METERED:
        why = f"no meter for backend {backend}"
        return tuple(Check(metric=m, name=m, value=None, n=0, detail=why, gate=GATE) for m in METRICS)
    from .torch_memory import StorageMeter

    with StorageMeter() as meter:
        model = load()
        _exercise(model, ids)
        peak = meter.peak
    name, positions = f"[positions={model.options.context},decode={DECODE_STEPS}]", model.options.context
    detail = f"ledger {predicted} bytes, measured {peak}"
    return (
        Check(metric="memory_peak", name=f"memory_peak{name}", value=peak, n=positions, detail=detail, gate=GATE),
        Check(
            metric="memory_prediction",
            name=f"memory_prediction{name}",
            value=abs(predicted - peak) / peak,
            n=positions,
            detail=detail,
            gate=GATE,
        ),
    )


def _exercise(model: Model, ids: np.ndarray) -> None:
    """Fill one sequence's context (the cache holds room for the whole batch by then) and decode in a new one.

    The last two chunks, the costliest, are asked for every position's logits, those before for the last one's.
    """
    context = model.options.context
    with model.session() as session:
        before = max(0, context // session.chunk - 1) * session.chunk
        if before:
            session.advance(np.resize(ids, before))
        for _ in session.append_pieces(np.resize(ids, context - before)):
            pass
    with model.session() as session:
        session.advance(np.resize(ids, max(1, min(model.options.prefill_chunk, context - DECODE_STEPS))))
        for _ in range(min(DECODE_STEPS, context - session.length)):
            session.advance(ids[:1])
    model.close()
