"""The allocator against brute force, its properties, ties, several budgets at once, and refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from thinlm.passes.allocate import Limit, _in_order, allocate, check_feasible, feasible_range
from thinlm.schemas.errors import InfeasibleError, UsageError
from thinlm.schemas.scores import GroupScores, Option, ScoreTable, decode_scores, encode_scores

TOLERANCE = 2e-7  # relative: the solver's absolute gap over what the objective is scaled to


def table(groups: list[list[tuple[float, int, int]]]) -> ScoreTable:
    """A table from (kl, encoded, resident) rows."""
    made = tuple(
        GroupScores(
            params=(f"p{g}", f"q{g}"),
            options=tuple(Option(format=f"f{k}", predicted_kl=kl, encoded_bytes=e, resident_bytes=r) for k, (kl, e, r) in enumerate(rows)),
        )
        for g, rows in enumerate(groups)
    )
    return ScoreTable(scored=True, stats="", logical_parameters=1000, groups=made)


def weights(limit: int) -> Limit:
    return Limit("weights_budget", limit, 0, "encoded_bytes")


def brute_force(scores: ScoreTable, limits: list[Limit]) -> float | None:
    """The least KL of all feasible choices."""
    best = None
    for chosen in itertools.product(*(g.options for g in scores.groups)):
        if all(c.fixed + sum(map(c.of, chosen)) <= c.limit for c in limits):
            kl = sum(o.predicted_kl for o in chosen)
            best = kl if best is None else min(best, kl)
    return best


def used(scores: ScoreTable, encodings: dict[str, str], limit: Limit) -> int:
    return limit.fixed + sum(limit.of(g.option(encodings[g.params[0]])) for g in scores.groups)


OPTION = st.tuples(st.floats(0, 1), st.integers(0, 10**6).map(lambda n: n * 128), st.integers(0, 10**9))
GROUPS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=80)
@given(GROUPS, st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 3))
def test_brute_force_agrees(groups: list, shares: list[float], count: int) -> None:
    scores = table(groups)
    frames = [weights(0), Limit("budget", 0, 12345, "resident_bytes"), Limit("max_artifact", 0, 777, "encoded_bytes")][:count]
    limits = []
    for frame, share in zip(frames, shares, strict=False):
        low, high = feasible_range(scores, frame)
        limits.append(Limit(frame.name, int(low + share * (high - low)), frame.fixed, frame.counts))
    expected = brute_force(scores, limits)
    if expected is None:
        with pytest.raises(InfeasibleError):
            allocate(scores, limits)
        return
    result = allocate(scores, limits)
    assert expected * (1 - 1e-12) <= result.solve.objective <= expected * (1 + TOLERANCE) + 1e-12
    assert result.solve.bound <= expected * (1 + 1e-9) + 1e-12
    assert 0 <= result.solve.gap <= TOLERANCE * expected + 1e-12
    assert {c.name: c.used for c in result.solve.constraints} == {c.name: used(scores, result.encodings, c) for c in limits}
    assert all(c.used <= c.limit for c in result.solve.constraints)


@settings(max_examples=30)
@given(GROUPS, st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_more_budget_is_never_worse(groups: list, shares: list[float]) -> None:
    scores = table(groups)
    low, high = feasible_range(scores, weights(0))
    kls = [allocate(scores, [weights(int(low + s * (high - low)))]).solve.objective for s in sorted(shares)]
    assert all(b <= a * (1 + TOLERANCE) + 1e-12 for a, b in itertools.pairwise(kls))


def test_ties_prefer_fewer_bytes_then_lower_indices() -> None:
    equal = table([[(0.5, 256, 9), (0.5, 128, 9), (0.5, 128, 9)]])
    assert allocate(equal, [weights(1000)]).encodings == {"p0": "f1", "q0": "f1"}
    assert allocate(equal, []).encodings == {"p0": "f1", "q0": "f1"}
    across = table([[(0.5, 128, 0), (0.25, 256, 0)], [(0.5, 128, 0), (0.25, 256, 0)]])
    assert allocate(across, [weights(384)]).encodings == {"p0": "f0", "q0": "f0", "p1": "f1", "q1": "f1"}
    assert _in_order(across.groups, [1, 0]) == _in_order(across.groups, [0, 1]) == [0, 1]


def test_no_limits_means_the_least_kl() -> None:
    scores = table([[(0.5, 10, 10), (0.0, 99, 99)], [(0.1, 5, 5)]])
    result = allocate(scores, [])
    assert result.encodings == {"p0": "f1", "q0": "f1", "p1": "f0", "q1": "f0"}
    assert result.solve.shadow_prices == {}
    assert result.solve.constraints == ()


def test_shadow_price_is_the_slope() -> None:
    scores = table([[(0.5, 0, 0), (0.0, 1000, 0)]])
    assert allocate(scores, [weights(500)]).solve.shadow_prices["weights_budget"] == pytest.approx(0.5 / 1000, rel=1e-6)
    assert allocate(scores, [weights(2000)]).solve.shadow_prices["weights_budget"] == pytest.approx(0, abs=1e-10)


def test_each_budget_is_named_with_its_smallest_figure() -> None:
    scores = table([[(0.5, 128, 512), (0.0, 256, 512)], [(0.0, 64, 64)]])
    budget = Limit("budget", 600, 100, "resident_bytes")
    with pytest.raises(InfeasibleError, match=r"weights_budget: 191 bytes asked for, the smallest feasible is 192 bytes \(9\.6 %") as caught:
        check_feasible(scores, [weights(191), budget])
    assert "budget: 600 bytes asked for, the smallest feasible is 676 bytes" in str(caught.value)
    check_feasible(scores, [weights(192), Limit("budget", 676, 100, "resident_bytes")])


def test_budgets_that_only_clash_together() -> None:
    scores = table([[(0.5, 10, 1000), (0.0, 1000, 10)]])
    with pytest.raises(InfeasibleError, match="weights_budget and budget: each can be met alone"):
        allocate(scores, [weights(500), Limit("budget", 500, 0, "resident_bytes")])


def test_a_real_size_is_solved_in_seconds() -> None:
    """160 groups of 14 formats with smooth trade-offs, as a 40-layer model has."""
    rng = np.random.default_rng(0)
    groups = []
    for g in range(160):
        size, pain = 10**6 * (1 + g % 4), 0.01 * np.exp(rng.normal())
        bits = np.linspace(2.25, 8.25, 14)
        kl = pain * 4.0**-bits * np.exp(rng.normal(0, 0.1, 14))
        groups.append([(float(k), int(size * b / 8) // 128 * 128, int(size * (b + 0.1) / 8)) for k, b in zip(kl, bits, strict=True)])
    scores = table(groups)
    low, high = feasible_range(scores, weights(0))
    limit = weights(low + (high - low) * 3 // 10)
    result = allocate(scores, [limit])
    assert result.solve.constraints[0].used <= limit.limit
    assert result.solve.gap <= TOLERANCE * result.solve.objective


def test_tables_read_back_and_refuse() -> None:
    scores = table([[(0.5, 128, 1)]])
    assert decode_scores(encode_scores(scores)) == scores
    for bad in (b"{}", encode_scores(scores).replace(b"0.5", b"-0.5"), encode_scores(scores).replace(b'"scored"', b'"scores"')):
        with pytest.raises(UsageError, match="scores:"):
            decode_scores(bad)
