"""Judging figures: every comparison from both sides, what is missing or not a number, a recipe's bounds, and verdicts."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from thinlm.certify.gate import TABLE, evidence_of, judge, required_metrics, thresholds, verdict_of
from thinlm.schemas.certificate import GATES, Check, GateResult, Threshold
from thinlm.schemas.recipe import Gate


def row(comparison: Any, bound: float, default: float | None = None) -> Threshold:
    return Threshold(metric="m", gate="FIDELITY", comparison=comparison, bound=bound, default=default, reason="", date="")


def figure(value: float | None, lower: float | None = None, metric: str = "m") -> Check:
    return Check(metric=metric, name=f"{metric}[x=1]", value=value, n=9, lower=lower)


def one(check: Check, threshold: Threshold) -> Check:
    return judge([check], [threshold])[GATES.index("FIDELITY")].checks[0]


@pytest.mark.parametrize(
    ("comparison", "value", "lower", "passed", "miss"),
    [
        ("value>=", 0.9, None, True, None),
        ("value>=", 0.75, None, True, None),
        ("value>=", 0.5, None, False, 0.25),
        ("value<=", 0.5, None, True, None),
        ("value<=", 0.75, None, True, None),
        ("value<=", 2.0, None, False, 1.25),
        ("lower>=", 0.9, 0.8, True, None),
        ("lower>=", 0.9, 0.5, False, 0.25),
        ("lower>=", 0.9, None, False, None),
        ("value>=", None, None, False, None),
        ("value<=", -math.inf, None, False, None),
        ("value>=", math.inf, None, False, None),
        ("value>=", math.nan, None, False, None),
        ("value<=", math.nan, None, False, None),
    ],
)
def test_comparisons(comparison: Any, value: float | None, lower: float | None, passed: bool, miss: float | None) -> None:
    check = one(figure(value, lower), row(comparison, 0.75))
    assert (check.passed, check.miss, check.bound, check.comparison) == (passed, miss, 0.75, comparison)


def test_what_nobody_measured_fails() -> None:
    check = one(figure(1.0, metric="other"), row("value>=", 0.75))
    assert (check.metric, check.passed, check.detail) == ("other", True, "")  # reported only
    missing = judge([figure(1.0, metric="other")], [row("value>=", 0.75)])[2].checks[1]
    assert (missing.metric, missing.passed, missing.value, missing.detail) == ("m", False, None, "not measured")


def test_every_check_of_a_metric_is_judged() -> None:
    gates = judge([figure(0.9), figure(0.1)], [row("value>=", 0.75)])
    assert [c.passed for c in gates[2].checks] == [True, False]
    assert not gates[2].passed


def test_a_gate_without_figures_fails() -> None:
    assert [g.passed for g in judge([], [])] == [False, False, False]


def test_one_threshold_per_metric() -> None:
    with pytest.raises(ValueError, match="two thresholds"):
        judge([figure(1)], [row("value>=", 0.5), row("value>=", 0.6)])


def test_judging_again_gives_the_same() -> None:
    rows = [row("value>=", 0.75), msgspec.structs.replace(row("value<=", 1), metric="absent", gate="STRUCTURE")]
    gates = judge([figure(0.9), figure(0.1), figure(3.0, metric="reported")], rows)
    assert judge(evidence_of(gates), rows) == gates
    assert judge(evidence_of(gates), [row("value>=", 0.05)])[2].passed


def test_the_table_is_the_contract() -> None:
    """design.md section 7, spelled once more."""
    bounds = {r.metric: (r.gate, r.comparison, r.bound) for r in TABLE}
    assert bounds == {
        "graph_differences": ("STRUCTURE", "value<=", 0),
        "row_error_ratio": ("STRUCTURE", "value<=", 2),
        "rows_reversed": ("STRUCTURE", "value<=", 0),
        "lossless_differences": ("STRUCTURE", "value<=", 0),
        "file_differences": ("STRUCTURE", "value<=", 0),
        "backend_cosine": ("CONFORMANCE", "value>=", 0.99999),
        "backend_deviation": ("CONFORMANCE", "value<=", 1e-9),
        "cache_cosine": ("CONFORMANCE", "value>=", 0.99999),
        "cache_deviation": ("CONFORMANCE", "value<=", 1e-9),
        "nonfinite": ("CONFORMANCE", "value<=", 0),
        "memory_prediction": ("CONFORMANCE", "value<=", 0.02),
        "logits_cosine_raw": ("FIDELITY", "lower>=", 0.995),
        "logits_cosine_centred": ("FIDELITY", "lower>=", 0.995),
        "worst_domain": ("FIDELITY", "value>=", 0.99),
        "p01": ("FIDELITY", "value>=", 0.97),
        "kl": ("FIDELITY", "value<=", 0.05),
        "top1": ("FIDELITY", "value>=", 0.88),
        "greedy": ("FIDELITY", "value>=", 0.95),
    }
    assert all(r.default == r.bound and r.reason and r.date for r in TABLE)


def test_recipe_and_table_name_the_same_metrics_and_defaults() -> None:
    assert msgspec.structs.asdict(Gate()) == {r.metric: r.bound for r in TABLE if r.gate == "FIDELITY"}
    assert thresholds(Gate()) == thresholds()


def test_a_recipe_moves_bounds_visibly() -> None:
    rows = {r.metric: r for r in thresholds(Gate(kl=0.1, top1=0.9, greedy=0.5))}
    assert {m for m, r in rows.items() if r.loosened} == {"kl", "greedy"}
    assert (rows["kl"].bound, rows["kl"].default, rows["top1"].bound) == (0.1, 0.05, 0.9)


def test_mode_decides_bounds() -> None:
    half, whole = ({r.metric: r for r in thresholds(half=h)} for h in (True, False))
    assert [half[m].bound for m in ("backend_cosine", "cache_cosine", "backend_deviation")] == [0.9999, 0.9999, 1e-9]
    assert not any(r.loosened for r in half.values())
    assert {m for m in whole if whole[m].bound != half[m].bound} == {"backend_cosine", "cache_cosine"}
    budget = {r.metric: r for r in thresholds(budget=1000)}["memory_peak"]
    assert (budget.bound, budget.default, budget.comparison, budget.loosened) == (1000, None, "value<=", False)
    assert required_metrics() == {r.metric for r in TABLE} - {"memory_prediction"} == {r.metric for r in thresholds(metered=False)}


@pytest.mark.parametrize(
    ("failed", "profile", "verdict"),
    [
        ("", "default", "pass"),
        ("", "autofit", "pass"),
        ("FIDELITY", "default", "fail"),
        ("FIDELITY", "autofit", "uncertified"),
        ("CONFORMANCE", "autofit", "fail"),
        ("STRUCTURE FIDELITY", "autofit", "fail"),
    ],
)
def test_verdicts(failed: str, profile: str, verdict: str) -> None:
    gates = [GateResult(gate=g, passed=g not in failed.split(), checks=()) for g in GATES]
    assert verdict_of(gates, profile) == verdict
