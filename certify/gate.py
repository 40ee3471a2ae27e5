"""The gates: one table of bounds, and `judge`, which turns measured figures into verdicts. Pure; loads nothing but the schemas.

In: checks as measured (`metric`, `value`, interval) and thresholds. Out: the same checks with bound, verdict and miss, by gate.
1. A figure satisfies its threshold by its value or by the lower end of its interval; a figure that is not a number never does.
2. A threshold whose metric nobody measured fails, by name.
3. A figure without a threshold is reported and decides nothing.
A recipe may move the bounds of FIDELITY, and loosening is visible (`Threshold.loosened`). STRUCTURE and CONFORMANCE say that the artifact
is what it claims to be: there is nothing to move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ..schemas.certificate import GATES, Check, Comparison, GateName, GateResult, Threshold, Verdict
from ..schemas.recipe import Gate

DATE = "2026-11-30"
HALF, HALF_METRICS = 0.9999, ("backend_cosine", "cache_cosine")  # design.md section 7
_STRUCTURE: GateName = "STRUCTURE"
_CONFORMANCE: GateName = "CONFORMANCE"
_FIDELITY: GateName = "FIDELITY"


def _row(gate: GateName, metric: str, comparison: Comparison, bound: float, reason: str) -> Threshold:
    return Threshold(metric=metric, gate=gate, comparison=comparison, bound=float(bound), default=float(bound), reason=reason, date=DATE)


TABLE: tuple[Threshold, ...] = (
    _row(_STRUCTURE, "graph_differences", "value<=", 0, "the graph is the one that a fresh import of the source gives"),
    _row(_STRUCTURE, "row_error_ratio", "value<=", 2, "relative error of a row over that of plain rounding in its format"),
    _row(_STRUCTURE, "rows_reversed", "value<=", 0, "rows whose inner product with the source row is not positive"),
    _row(_STRUCTURE, "lossless_differences", "value<=", 0, "weights that differ from the source in a format that holds it exactly"),
    _row(_STRUCTURE, "file_differences", "value<=", 0, "tokenizer and template bytes equal the source's"),
    _row(_CONFORMANCE, "backend_cosine", "value>=", 0.99999, "worst position of the backend in float32 against the float64 interpreter"),
    _row(_CONFORMANCE, "backend_deviation", "value<=", 1e-9, "the same as 1 - cosine, keys and values not rounded; measured 1e-11"),
    _row(_CONFORMANCE, "cache_cosine", "value>=", 0.99999, "worst position of cached decode against prefill through the same KV encoding"),
    _row(_CONFORMANCE, "cache_deviation", "value<=", 1e-9, "the same as 1 - cosine, keys and values not rounded; measured 1e-11"),
    _row(_CONFORMANCE, "nonfinite", "value<=", 0, "NaN or infinity among the logits of any run"),
    _row(_CONFORMANCE, "memory_prediction", "value<=", 0.02, "relative difference of measured peak and ledger"),
    _row(_FIDELITY, "logits_cosine_raw", "lower>=", 0.995, "mean over documents, lower end of the 95 % interval"),
    _row(_FIDELITY, "logits_cosine_centred", "lower>=", 0.995, "mean over documents, lower end of the 95 % interval"),
    _row(_FIDELITY, "worst_domain", "value>=", 0.99, "smallest mean cosine of a domain, raw and centred"),
    _row(_FIDELITY, "p01", "value>=", 0.97, "1st percentile of cosine over positions, raw and centred"),
    _row(_FIDELITY, "kl", "value<=", 0.05, "mean KL(source || artifact) over documents, nats"),
    _row(_FIDELITY, "top1", "value>=", 0.88, "share of positions with the source's most likely token"),
    _row(_FIDELITY, "greedy", "value>=", 0.95, "agreement along the source's own continuations, distinct contexts, outside ties"),
)


def thresholds(wanted: Gate | None = None, *, budget: int | None = None, half: bool = False, metered: bool = True) -> tuple[Threshold, ...]:
    """The table, with a recipe's bounds for FIDELITY and the byte budget when there is one.

    `half`: keys and values are stored in bf16, whose rounding is larger than float32's. `metered`: the backend's memory can be measured.
    """
    bounds = {} if wanted is None else msgspec.structs.asdict(wanted)
    rows = [msgspec.structs.replace(row, bound=float(bounds.get(row.metric, row.bound))) for row in TABLE]
    if half:
        rows = [msgspec.structs.replace(row, bound=HALF, default=HALF) if row.metric in HALF_METRICS else row for row in rows]
    if not metered:
        rows = [row for row in rows if row.metric != "memory_prediction"]
    if budget is not None:
        limit = _row(_CONFORMANCE, "memory_peak", "value<=", float(budget), "the byte budget on the target")
        rows.append(msgspec.structs.replace(limit, default=None))
    return tuple(rows)


def required_metrics() -> frozenset[str]:
    """Metrics that every certificate has a threshold for."""
    return frozenset(row.metric for row in thresholds(metered=False))


def moved(rows: Sequence[Threshold]) -> tuple[str, ...]:
    """Metrics whose row no `thresholds` call gives: only FIDELITY's bounds may differ from the table, and what they differ from may not."""
    known = [*thresholds(), *thresholds(half=True)]
    budget = thresholds(budget=0)[-1]
    return tuple(row.metric for row in rows if not any(_same(row, k) for k in known) and not _same(row, budget, bound=True))


def _same(row: Threshold, known: Threshold, bound: bool = False) -> bool:
    free = bound or known.gate == _FIDELITY
    return msgspec.structs.replace(known, bound=row.bound if free else known.bound) == row


def judge(evidence: Sequence[Check], rows: Sequence[Threshold]) -> tuple[GateResult, ...]:
    """The three gates over all figures. ValueError for two thresholds of one metric."""
    table = {row.metric: row for row in rows}
    if len(table) != len(rows):
        raise ValueError("two thresholds of one metric")
    checks = [_judge_one(check, table.get(check.metric)) for check in evidence]
    missing = sorted(set(table) - {check.metric for check in evidence})
    checks += [_judge_one(Check(metric=m, name=m, value=None, n=0, detail="not measured"), table[m]) for m in missing]
    results = []
    for gate in GATES:
        mine = tuple(check for check in checks if check.gate == gate)
        results.append(GateResult(gate=gate, passed=bool(mine) and all(check.passed for check in mine), checks=mine))
    return tuple(results)


def verdict_of(gates: Sequence[GateResult], profile: str) -> Verdict:
    """`pass` when every gate passed. Autofit promises no fidelity: there, failing FIDELITY alone is `uncertified`."""
    failed = {gate.gate for gate in gates if not gate.passed}
    if not failed:
        return "pass"
    return "uncertified" if profile == "autofit" and failed == {_FIDELITY} else "fail"


def evidence_of(gates: Sequence[GateResult]) -> tuple[Check, ...]:
    """The figures alone, as they were measured: what a certificate is judged by again."""
    return tuple(
        msgspec.structs.replace(check, comparison="reported", bound=None, passed=True, miss=None)
        for gate in gates
        for check in gate.checks
        if not (check.value is None and check.detail == "not measured")
    )


def _judge_one(check: Check, row: Threshold | None) -> Check:
    if row is None:
        return check
    figure = check.lower if row.comparison.startswith("lower") else check.value
    known = figure is not None and math.isfinite(figure)
    passed = known and (figure <= row.bound if row.comparison.endswith("<=") else figure >= row.bound)  # pyright: ignore[reportOptionalOperand]
    miss = None if passed or not known else abs(figure - row.bound)  # pyright: ignore[reportOptionalOperand]
    return msgspec.structs.replace(check, gate=row.gate, comparison=row.comparison, bound=row.bound, passed=passed, miss=miss)
