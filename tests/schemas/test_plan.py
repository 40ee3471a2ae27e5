"""plan.json: canonical bytes that read back, and refusals."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from thinlm.schemas.errors import InputError
from thinlm.schemas.kv import KVSlot
from thinlm.schemas.plan import Constraint, FFNOrder, GroupPlan, Ledger, LiveValue, MemoryPlan, Plan, Solve, decode_plan, encode_plan

LEDGER = Ledger(
    logical_parameters=100,
    encoded_weight_bytes=128,
    resident_weight_bytes=130,
    kv_bytes=64,
    workspace_bytes=32,
    runtime_overhead_bytes=8,
    total_device_bytes=234,
    artifact_bytes_estimate=4096,
    budgets={"weights_budget": 128},
)
PLAN = Plan(
    target="cpu",
    context=16,
    batch=1,
    pipeline="a,b{x=1}",
    groups=(
        GroupPlan(params=("q", "k"), encoding="a/1", encoded_bytes=64, resident_bytes=65, predicted_kl=0.25),
        GroupPlan(params=("n",), encoding="b/1", encoded_bytes=64, resident_bytes=65, predicted_kl=0.0),
    ),
    relayout=(FFNOrder(ffn="blk.0.ffn", order="identity"), FFNOrder(ffn="blk.1.ffn", order=(1, 0))),
    solve=Solve(
        objective=0.25,
        bound=0.25,
        gap=0.0,
        shadow_prices={"weights_budget": 1e-9},
        constraints=(Constraint(name="weights_budget", limit=128, used=128),),
    ),
    kv=(KVSlot(slot=0, dtype="f16", heads=1, key_dim=2, value_dim=2, window=0, block=8, blocks=2),),
    memory=MemoryPlan(prefill_chunk=8, workspace_bytes=32, peak_node="v3", live=(LiveValue(name="v3", bytes=32),)),
    ledger=LEDGER,
)


def test_bytes_read_back_and_are_canonical() -> None:
    raw = encode_plan(PLAN)
    assert decode_plan(raw) == PLAN
    assert encode_plan(decode_plan(raw)) == raw
    assert list(json.loads(raw)) == sorted(Plan.__struct_fields__)


def test_encodings() -> None:
    assert PLAN.encodings() == {"q": "a/1", "k": "a/1", "n": "b/1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(extra=1),
        lambda d: d.update(schema="thinc.plan/2"),
        lambda d: d["ledger"].update(kv_bytes=65),
        lambda d: d["groups"][0].pop("encoding"),
        lambda d: d["solve"]["constraints"][0].update(name="time"),
        lambda d: d["relayout"][0].update(order="reversed"),
    ],
)
def test_other_plans_are_refused(change) -> None:
    data = json.loads(encode_plan(PLAN))
    change(data)
    with pytest.raises(InputError, match=r"plan\.json"):
        decode_plan(json.dumps(data).encode())


def test_infinite_numbers_are_our_bug() -> None:
    solve = msgspec.structs.replace(PLAN.solve, gap=math.inf)
    with pytest.raises(AssertionError):
        encode_plan(msgspec.structs.replace(PLAN, solve=solve))
