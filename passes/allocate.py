"""Which format every choice group gets: the least predicted KL under byte budgets, exactly.

In: a ScoreTable and up to three limits. Out: formats, objective, a proved lower bound, and what one more byte of each budget would save.
A multiple-choice knapsack, solved as a mixed-integer program by HiGHS and verified in exact integers: a choice that breaks a budget (the
solver works in floating point) is cut off and the rest solved again. Of options that tie within a group the one with fewer bytes is taken,
then the first; groups with equal options get theirs in index order.
Refused: budgets that nothing meets (InfeasibleError, with the smallest feasible figure); `feasible_range` knows it from headers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Any, Literal

import numpy as np

from ..schemas.errors import InfeasibleError, PassError
from ..schemas.plan import BudgetName, Constraint, Solve
from ..schemas.recipe import DENSE_BYTES
from ..schemas.scores import GroupScores, Option, ScoreTable

OPTIMUM = 10.0  # what the objective is scaled to; the solver stops at an absolute gap of 1e-6
TINY = 1e-12
MAX_CUTS = 50
INFEASIBLE = 2  # scipy's status


@dataclass(frozen=True, slots=True)
class Limit:
    """`fixed` bytes plus the groups' `counts` bytes must not exceed `limit`."""

    name: BudgetName
    limit: int
    fixed: int
    counts: Literal["encoded_bytes", "resident_bytes"]

    def of(self, option: Option) -> int:
        """Bytes of one option that this limit counts."""
        return getattr(option, self.counts)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Format name of every param, and how good the choice is."""

    encodings: dict[str, str]
    solve: Solve


def feasible_range(table: ScoreTable, limit: Limit) -> tuple[int, int]:
    """Bytes that the limit's figure can take: (all groups at their smallest, at their largest)."""
    sizes = [[limit.of(o) for o in g.options] for g in table.groups]
    return limit.fixed + sum(map(min, sizes)), limit.fixed + sum(map(max, sizes))


def check_feasible(table: ScoreTable, limits: Sequence[Limit]) -> None:
    """InfeasibleError naming every budget below its smallest feasible figure; needs no scores."""
    dense = table.logical_parameters * DENSE_BYTES
    problems = []
    for limit in limits:
        smallest, _ = feasible_range(table, limit)
        if smallest > limit.limit:
            share = f" ({100 * smallest / dense:.1f} % of the weights as 2 bytes each)" if limit.name == "weights_budget" else ""
            problems.append(f"{limit.name}: {limit.limit} bytes asked for, the smallest feasible is {smallest} bytes{share}")
    if problems:
        raise InfeasibleError("; ".join(problems))


def allocate(table: ScoreTable, limits: Sequence[Limit]) -> Allocation:
    """The best formats under `limits`; see module docstring."""
    check_feasible(table, limits)
    problem = _Problem(table.groups, tuple(limits))
    relaxed, prices = problem.relaxed()
    picks, dual = problem.optimum(relaxed)
    picks = _in_order(table.groups, picks)
    chosen = [g.options[k] for g, k in zip(table.groups, picks, strict=True)]
    objective = sum(o.predicted_kl for o in chosen)
    bound = min(objective, max(0.0, relaxed * (1 - TINY), dual))
    used = tuple(Constraint(name=c.name, limit=c.limit, used=c.fixed + sum(map(c.of, chosen))) for c in limits)
    encodings = {name: option.format for group, option in zip(table.groups, chosen, strict=True) for name in group.params}
    return Allocation(encodings, Solve(objective=objective, bound=bound, gap=objective - bound, shadow_prices=prices, constraints=used))


def _useful(group: GroupScores, limits: Sequence[Limit]) -> tuple[int, ...]:
    """Indices of options that no other option beats in KL and every budget; of equals the first."""
    rows = [(o.predicted_kl, *(c.of(o) for c in limits), o.encoded_bytes, o.resident_bytes, k) for k, o in enumerate(group.options)]
    return tuple(r[-1] for r in rows if not any(s != r and all(a <= b for a, b in zip(s[:-1], r[:-1], strict=True)) and s < r for s in rows))


def _in_order(groups: Sequence[GroupScores], picks: Sequence[int]) -> list[int]:
    """Where groups have equal options, the earlier one gets the lower index: nothing else distinguishes such solutions."""
    alike: dict[object, list[int]] = {}
    for at, group in enumerate(groups):
        alike.setdefault(group.options, []).append(at)
    out = list(picks)
    for places in alike.values():
        for at, pick in zip(places, sorted(picks[p] for p in places), strict=True):
            out[at] = pick
    return out


class _Problem:
    """The knapsack in the solver's units: bytes above each group's smallest, divided by their greatest common divisor; KL such that the
    relaxation's optimum is OPTIMUM, because the solver's tolerance is absolute."""

    def __init__(self, groups: tuple[GroupScores, ...], limits: tuple[Limit, ...]) -> None:
        self.groups, self.limits = groups, limits
        self.vars = [(at, k) for at, g in enumerate(groups) for k in _useful(g, limits)]
        options = [groups[at].options[k] for at, k in self.vars]
        self.kl = np.array([o.predicted_kl for o in options])
        self.owner = np.array([at for at, _ in self.vars])
        self.rows, self.room, self.units = [], [], []
        for limit in limits:
            least = [min(map(limit.of, g.options)) for g in groups]
            extra = [limit.of(o) - least[at] for (at, _), o in zip(self.vars, options, strict=True)]
            unit = reduce(gcd, extra, 0) or 1
            self.rows.append([e // unit for e in extra])
            self.room.append((limit.limit - limit.fixed - sum(least)) // unit)
            self.units.append(unit)

    def relaxed(self) -> tuple[float, dict[BudgetName, float]]:
        """Optimum of the linear relaxation, and KL saved per extra byte of each budget."""
        from scipy.optimize import linprog

        scale = OPTIMUM / max(float(self.kl.max()), TINY)
        matrix, _, upper = self._matrix(())
        n = len(self.rows)
        byte_rows = (matrix[:n], upper[:n]) if n else (None, None)
        result = linprog(self.kl * scale, *byte_rows, matrix[n:], upper[n:], bounds=(0, 1), method="highs")
        if result.status == INFEASIBLE:
            raise self._clash()
        if result.status != 0:
            raise PassError(f"allocate: the solver failed on the linear relaxation: {result.message}")
        marginals = (max(0.0, -float(m)) / scale for m in result.ineqlin.marginals)
        return float(result.fun) / scale, {c.name: m / u for c, m, u in zip(self.limits, marginals, self.units, strict=True)}

    def optimum(self, relaxed: float) -> tuple[list[int], float]:
        """Option index per group and a lower bound of the predicted KL. InfeasibleError when only the budgets together can't be met."""
        scale = OPTIMUM / max(relaxed, TINY * self.kl.max(), TINY)
        cuts: list[list[int]] = []
        while len(cuts) <= MAX_CUTS:
            found, dual = self._solve(self.kl * scale, cuts)
            if all(sum(row[v] for v in found) <= room for row, room in zip(self.rows, self.room, strict=True)):
                return [self.vars[v][1] for v in found], dual / scale
            cuts.append(found)
        raise PassError(f"allocate: the solver's answers broke a budget {MAX_CUTS} times; its tolerances do not fit this problem")

    def _solve(self, objective: np.ndarray, cuts: Sequence[Sequence[int]]) -> tuple[list[int], float]:
        """One variable per group, and the solver's lower bound."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        matrix, lower, upper = self._matrix(cuts)
        constraints = LinearConstraint(matrix, lower, upper)  # pyright: ignore[reportArgumentType]  (its stubs know no arrays)
        result = milp(objective, constraints=constraints, integrality=1, bounds=Bounds(0, 1), options={"mip_rel_gap": 0.0})
        if result.status == INFEASIBLE:
            raise self._clash()
        if result.x is None:
            raise PassError(f"allocate: the solver failed: {result.message}")
        best = np.full(len(self.groups), -1)
        for v in np.argsort(result.x, kind="stable"):
            best[self.owner[v]] = v
        return best.tolist(), float(result.mip_dual_bound)

    def _matrix(self, cuts: Sequence[Sequence[int]]) -> tuple[Any, np.ndarray, np.ndarray]:
        """Byte rows, cuts (not all of these together), one choice per group: (sparse matrix, lower, upper)."""
        from scipy.sparse import csr_array, vstack

        n, bytes_and_cuts = len(self.vars), np.zeros((len(self.rows) + len(cuts), len(self.vars)))
        for at, row in enumerate(self.rows):
            bytes_and_cuts[at] = row
        for at, cut in enumerate(cuts, len(self.rows)):
            bytes_and_cuts[at, cut] = 1
        one = csr_array((np.ones(n), (self.owner, np.arange(n))), shape=(len(self.groups), n))
        upper = [*self.room, *(len(self.groups) - 1 for _ in cuts), *(1 for _ in self.groups)]
        lower = np.array([-np.inf] * len(bytes_and_cuts) + [1.0] * len(self.groups))
        return vstack([csr_array(bytes_and_cuts), one]).tocsr(), lower, np.array(upper, float)

    def _clash(self) -> InfeasibleError:
        names = " and ".join(limit.name for limit in self.limits)
        return InfeasibleError(f"{names}: each can be met alone, but no allocation meets them together; raise one of them")
