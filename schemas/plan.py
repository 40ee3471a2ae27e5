"""The plan that an artifact carries: which format every weight has and why, and what the whole thing costs in bytes.

Written by the compiler from the allocation and the memory plan; read by `inspect`, the runtime (KV geometry, prefill chunk) and the gates.
All figures are bytes of one artifact on one target; KL is in nats per token, predicted on calibration text.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from .canonical import NOT_JSON, canonical_bytes
from .errors import InputError
from .kv import KVSlot

BudgetName = Literal["budget", "weights_budget", "max_artifact"]


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Params that share a format. `encoded_bytes` are those in the file, page padding included; `resident_bytes` those on the device."""

    params: tuple[str, ...]
    encoding: str
    encoded_bytes: int
    resident_bytes: int
    predicted_kl: float


class Constraint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One budget of the solve and what the plan uses of it."""

    name: BudgetName
    limit: int
    used: int


class Solve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How good the allocation is: predicted KL `objective`, a proved lower `bound`, their difference, and KL saved per extra byte."""

    objective: float
    bound: float
    gap: float
    shadow_prices: dict[BudgetName, float]
    constraints: tuple[Constraint, ...]


class LiveValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that exists at the peak."""

    name: str
    bytes: int


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run-time peak: the node at which it occurs, and what is alive then."""

    prefill_chunk: int
    workspace_bytes: int
    peak_node: str
    live: tuple[LiveValue, ...]


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the bytes go, and the limits that they keep. `total_device_bytes` = resident weights + KV + workspace + runtime overhead.

    Encoded weights are whole pages, their padding included: what the weight files hold without their headers. Aliases count once.
    """

    logical_parameters: int  # every tensor once
    encoded_weight_bytes: int
    resident_weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    runtime_overhead_bytes: int
    total_device_bytes: int
    artifact_bytes_estimate: int
    budgets: dict[BudgetName, int]

    @property
    def parts(self) -> int:
        """What `total_device_bytes` must be."""
        return self.resident_weight_bytes + self.kv_bytes + self.workspace_bytes + self.runtime_overhead_bytes

    def figure(self, budget: BudgetName) -> int:
        """The bytes that a budget bounds."""
        return {"budget": self.total_device_bytes, "weights_budget": self.encoded_weight_bytes, "max_artifact": self.artifact_bytes_estimate}[budget]


class FFNOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order in which an FFN's channels are stored: "identity", or stored channel i is the source's channel `order[i]`."""

    ffn: str
    order: Literal["identity"] | tuple[int, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """plan.json."""

    schema: Literal["thinc.plan/1"] = "thinc.plan/1"
    target: str
    context: int
    batch: int
    pipeline: str  # the passes that made the graph, in their printed form
    groups: tuple[GroupPlan, ...]
    relayout: tuple[FFNOrder, ...]
    solve: Solve
    kv: tuple[KVSlot, ...]
    memory: MemoryPlan
    ledger: Ledger

    def __post_init__(self) -> None:
        if min(self.context, self.batch, self.memory.prefill_chunk) < 1:
            raise ValueError("context, batch and prefill_chunk must be at least 1")
        if self.ledger.parts != self.ledger.total_device_bytes:
            raise ValueError(f"ledger: parts sum to {self.ledger.parts}, total_device_bytes says {self.ledger.total_device_bytes}")

    def encodings(self) -> dict[str, str]:
        """Format name of every param."""
        return {name: group.encoding for group in self.groups for name in group.params}


def encode_plan(plan: Plan) -> bytes:
    """plan.json: canonical bytes (keys sorted, no white space). Every number is finite."""
    solve = plan.solve
    numbers = (solve.objective, solve.bound, solve.gap, *solve.shadow_prices.values(), *(g.predicted_kl for g in plan.groups))
    assert all(map(math.isfinite, numbers)), "JSON has no infinity"
    return canonical_bytes(plan)


def decode_plan(raw: bytes) -> Plan:
    """The plan in plan.json; InputError when it is none."""
    try:
        return msgspec.json.decode(raw, type=Plan)
    except NOT_JSON as e:
        raise InputError(f"plan.json: {e}") from e
