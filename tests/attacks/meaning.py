"""Attacks that leave every digest right: the trailer, attestations, and what graph.json and plan.json mean. Rules A-21 to A-24."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.tamper import edit, put, seal
from thinlm.schemas.canonical import canonical_bytes


def no_trailer(folder: Path) -> None:
    (folder / "artifact_id").unlink()


def trailer_of_another(folder: Path) -> None:
    (folder / "artifact_id").write_text("0" * 64 + "\n")


def trailer_without_newline(folder: Path) -> None:
    (folder / "artifact_id").write_text((folder / "artifact_id").read_text()[:-1])


def manifest_that_is_still_well_formed(folder: Path) -> None:
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data.replace(b'"name":"tiny"', b'"name":"tinz"'))


def _attest(name: str, data: bytes, found: bytes) -> Callable[[Path], None]:
    """An attestation of `data` in whose place `found` lies."""

    def attack(folder: Path) -> None:
        (folder / "attest").mkdir()
        (folder / "attest" / name.format(hashlib.sha256(data).hexdigest())).write_bytes(found)

    return attack


attestation_changed = _attest("scores.{}.json", b"{}", b"[]")
attestation_cut_off = _attest("scores.{}.json", b"{}", b"{")
attestation_emptied = _attest("scores.{}", b"{}", b"")
attestation_without_digest = _attest("scores.json", b"{}", b"{}")
attestation_with_a_long_digest = _attest("scores.ab{}.json", b"{}", b"{}")
half_written_attestation = _attest(".scores.json.tmp", b"", b"{}")


def _json(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change graph.json or plan.json, and everything that has a digest of it."""

    def attack(folder: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        change(value)
        (folder / name).write_bytes(canonical_bytes(value))
        seal(folder)

    return attack


def _graph(change: Callable[[Any], object]) -> Callable[[Path], None]:
    return _json("graph.json", change)


def _plan(change: Callable[[Any], object]) -> Callable[[Path], None]:
    return _json("plan.json", change)


def _node(output: str, **fields: Any) -> Callable[[Path], None]:
    return _graph(lambda g: next(n for n in g["nodes"] if n["output"] == output).update(fields))


def _both_say(role: str) -> Callable[[Path], None]:
    """Graph and manifest agree on another role of the embedding."""

    def attack(folder: Path) -> None:
        edit(folder, put("tensors", 0, "role", to=role))
        _graph(put("params", 0, "role", to=role))(folder)

    return attack


graph_of_another_schema = _graph(put("schema", to="thinc.graph/2"))
graph_is_empty = _graph(lambda g: g.clear())
graph_without_logits = _graph(lambda g: g["outputs"].pop())
graph_without_hidden_final = _graph(lambda g: g["outputs"].pop(-2))
graph_publishes_a_weight = _graph(lambda g: g["outputs"].insert(0, {"name": "hidden.x", "value": "final_norm"}))
graph_with_other_inputs = _graph(put("inputs", 0, "name", to="tokens"))
graph_with_unknown_op = _node("v0", op="custom")
graph_with_a_circle = _node("v0", inputs=["v9", "embed"])
graph_without_a_tensor = _graph(lambda g: g["params"].pop())
graph_of_other_shapes = _graph(put("params", 0, "shape", to=[1400, 72]))
graph_of_other_encodings = _graph(put("params", 0, "encoding", to="int4-sym-g64/1"))
graph_without_an_embedding = _both_say("head")
embedding_is_a_vector = _both_say("norm")
table_is_computed = _graph(
    lambda g: (
        g["nodes"].insert(0, {"op": "neg", "inputs": ["embed"], "output": "e", "attrs": {}}),
        g["nodes"][1]["inputs"].__setitem__(1, "e"),
    )
)
_learned_positions = _graph(
    lambda g: (
        g["nodes"].insert(1, {"op": "embedding", "inputs": ["positions", "blk.0.attn.o"], "output": "p", "attrs": {}}),
        g["nodes"].insert(2, {"op": "mean", "inputs": ["p"], "output": "p2", "attrs": {}}),
        g["nodes"].insert(3, {"op": "add", "inputs": ["v0", "p2"], "output": "p3", "attrs": {}}),
        g["nodes"][4]["inputs"].__setitem__(0, "p3"),
    )
)


def positions_beyond_their_table(folder: Path) -> None:
    edit(folder, put("model", "context", to=73))
    _learned_positions(folder)


matrix_is_added = _graph(
    lambda g: (
        g["nodes"].insert(1, {"op": "mean", "inputs": ["blk.0.attn.o"], "output": "m", "attrs": {}}),
        g["nodes"].insert(2, {"op": "reshape", "inputs": ["m"], "output": "m2", "attrs": {"shape": [72]}}),
        g["nodes"].insert(3, {"op": "add", "inputs": ["v0", "m2"], "output": "m3", "attrs": {}}),
        g["nodes"][4]["inputs"].__setitem__(0, "m3"),
    )
)
vector_is_multiplied = _graph(
    lambda g: (
        g["nodes"].insert(1, {"op": "linear", "inputs": ["final_norm", "blk.0.ffn.gate"], "output": "l", "attrs": {}}),
        g["nodes"].insert(2, {"op": "slice", "inputs": ["l"], "output": "l2", "attrs": {"stop": 72}}),
        g["nodes"].insert(3, {"op": "add", "inputs": ["v0", "l2"], "output": "l3", "attrs": {}}),
        g["nodes"][4]["inputs"].__setitem__(0, "l3"),
    )
)
constant_is_added = _graph(
    lambda g: (
        g["consts"].append({"name": "c", "values": [1.5]}),
        g["nodes"].insert(1, {"op": "add", "inputs": ["v0", "c"], "output": "x", "attrs": {}}),
        g["nodes"][2]["inputs"].__setitem__(0, "x"),
    )
)
gigantic_value = _graph(
    lambda g: (
        g["nodes"].insert(1, {"op": "repeat", "inputs": ["v0"], "output": "big", "attrs": {"times": 1 << 40}}),
        g["nodes"].insert(2, {"op": "slice", "inputs": ["big"], "output": "small", "attrs": {"stop": 72}}),
        g["nodes"][3]["inputs"].__setitem__(0, "small"),
    )
)


def _model(name: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder, put("model", name, to=value))


empty_tokenizer = _model("tokenizer_vocab", 0)
tokenizer_beyond_the_embedding = _model("tokenizer_vocab", 1501)
another_vocabulary = _model("vocab_size", 1499)
eos_beyond_the_vocabulary = _model("eos_ids", [0, 1500])
bos_beyond_the_vocabulary = _model("bos_id", 1 << 40)
endless_model = _model("context", 1 << 40)


plan_of_another_schema = _plan(put("schema", to="thinc.plan/2"))
plan_with_a_field_more = _plan(put("note", to="x"))
plan_without_a_field = _plan(lambda p: p.pop("memory"))
plan_of_no_context = _plan(put("context", to=0))
plan_beyond_the_model = _plan(put("context", to=1 << 40))
plan_of_negative_batch = _plan(put("batch", to=-1))
plan_of_no_chunk = _plan(put("memory", "prefill_chunk", to=0))
plan_of_another_ledger = _plan(lambda p: p["ledger"].update(workspace_bytes=101, total_device_bytes=p["ledger"]["total_device_bytes"] + 1))
SLOT = {"slot": 0, "dtype": "f16", "heads": 1, "key_dim": 1, "value_dim": 1, "window": 0, "block": 64, "blocks": 1}
plan_with_another_slot = _plan(lambda p: p["kv"].append(SLOT))
plan_with_a_slot_of_no_block = _plan(lambda p: p["kv"].append(SLOT | {"block": 0}))
GROUP = {"params": ["embed"], "encoding": "int2-sym-g32/1", "encoded_bytes": 1, "resident_bytes": 1, "predicted_kl": 0.0}
plan_of_other_formats = _plan(lambda p: p["groups"].append(GROUP))
plan_of_unknown_tensors = _plan(lambda p: p["groups"].append(GROUP | {"params": ["none"]}))
plan_with_an_order_that_is_none = _plan(lambda p: p["relayout"].append({"ffn": "blk.0.ffn", "order": [0] * 300}))
plan_with_an_order_of_nothing = _plan(lambda p: p["relayout"].append({"ffn": "blk.7.ffn", "order": "identity"}))


def _huge(**fields: int) -> Callable[[Path], None]:
    """A cache that fits no machine, on which graph, plan, manifest and ledger agree."""

    def attack(folder: Path) -> None:
        context, slot = 64, SLOT | {"slot": 0} | {k: v for k, v in fields.items() if k in SLOT}
        slot["blocks"] = -(-context // slot["block"])
        kv = fields.get("batch", 1) * slot["block"] * slot["blocks"] * 2 * (72 + 72)
        graph = json.loads((folder / "graph.json").read_bytes())
        heads = {"op": "reshape", "inputs": ["v0"], "output": "h", "attrs": {"shape": ["B", "T", 1, 72]}}
        attend = {"op": "attention", "inputs": ["h", "h", "h", "positions"], "output": "a", "attrs": {"cache": 0, "scale": 1.0}}
        back = {"op": "reshape", "inputs": ["a"], "output": "b", "attrs": {"shape": ["B", "T", 72]}}
        graph["nodes"][1:1] = [heads, attend, back]
        graph["nodes"][4]["inputs"][0] = "b"
        (folder / "graph.json").write_bytes(canonical_bytes(graph))
        plan = json.loads((folder / "plan.json").read_bytes())
        plan["kv"], plan["batch"] = [slot | {"key_dim": 72, "value_dim": 72}], fields.get("batch", 1)
        plan["ledger"] |= {"kv_bytes": kv, "total_device_bytes": plan["ledger"]["total_device_bytes"] + kv, "budgets": {}}
        (folder / "plan.json").write_bytes(canonical_bytes(plan))
        edit(folder, put("ledger", to=plan["ledger"]))
        seal(folder)

    return attack


def endless_window(folder: Path) -> None:
    a_cache_that_fits(folder)
    _graph(lambda g: next(n for n in g["nodes"] if n["op"] == "attention")["attrs"].update(window=1 << 31))(folder)


huge_batch = _huge(batch=1 << 40)
huge_block = _huge(block=1 << 45)
many_blocks = _huge(block=1, batch=1 << 19)
a_cache_that_fits = _huge()  # not an attack: shows that the others are refused for their size


ATTACKS: dict[str, tuple[Callable[[Path], Path | None], ...]] = {
    "A-21": (no_trailer, trailer_of_another, trailer_without_newline, manifest_that_is_still_well_formed),
    "A-22": (
        *(attestation_changed, attestation_cut_off, attestation_emptied, attestation_without_digest, attestation_with_a_long_digest),
        half_written_attestation,
    ),
    "A-23": (
        *(graph_of_another_schema, graph_is_empty, graph_without_logits, graph_without_hidden_final, graph_publishes_a_weight),
        *(graph_with_other_inputs, graph_with_unknown_op, graph_with_a_circle, graph_without_a_tensor, graph_of_other_shapes),
        *(graph_of_other_encodings, graph_without_an_embedding, embedding_is_a_vector, table_is_computed, positions_beyond_their_table),
        *(
            matrix_is_added,
            vector_is_multiplied,
            constant_is_added,
            endless_window,
            gigantic_value,
            empty_tokenizer,
            tokenizer_beyond_the_embedding,
            another_vocabulary,
        ),
        *(eos_beyond_the_vocabulary, bos_beyond_the_vocabulary, endless_model),
    ),
    "A-24": (
        *(plan_of_another_schema, plan_with_a_field_more, plan_without_a_field, plan_of_no_context, plan_beyond_the_model),
        *(plan_of_negative_batch, plan_of_no_chunk, plan_of_another_ledger, plan_with_another_slot, plan_with_a_slot_of_no_block),
        *(plan_of_other_formats, plan_of_unknown_tensors, plan_with_an_order_that_is_none, plan_with_an_order_of_nothing),
        *(huge_batch, huge_block, many_blocks),
    ),
}
