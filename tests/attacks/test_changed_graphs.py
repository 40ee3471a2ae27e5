"""Whatever passes A-23 and A-24 runs: a graph changed at random, with every digest right, is refused or runs to the end on every device."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tiny_compiled
from attacks.tamper import edit, put, seal
from thinlm.runtime_min import load
from thinlm.schemas.canonical import canonical_bytes
from thinlm.schemas.errors import ArtifactError, BackendError, InputError
from thinlm.schemas.graph import Graph
from thinlm.schemas.kv import KVDtype, kv_bytes, kv_slots
from thinlm.schemas.ops import OPS, REQUIRED
from thinlm.schemas.text import from_json
from thinlm.schemas.verify import verify

Json = Any
KV: tuple[KVDtype, ...] = ("f32", "f16", "bf16")
VALUES: dict[type, tuple[Json, ...]] = {
    int: (-2, -1, 0, 1, 2, 3, 7, 1 << 20, 1 << 40),
    float: (-1.0, 0.0, 1e-30, 1e-5, 0.5, 1.0, 2.0, 1e30),
    bool: (True, False),
    str: ("rms", "layer", "l2"),
    tuple: (["B", "T", 64], ["B", "T", 1, 64], ["B", "T", 4, 16], [0, 1, 2], [0, 2, 1], [0, 1, 3, 2], [1, 0, 2]),
}


def change(graph: Json, rng: random.Random) -> None:
    """Another input, a node more, another attribute, another output, a shorter constant, or two nodes exchanged."""
    nodes = graph["nodes"]
    at = rng.randrange(1, len(nodes))
    node = nodes[at]
    names = [n["output"] for n in nodes[:at]] + ["ids", "positions"] + [x["name"] for x in (*graph["params"], *graph["consts"])]
    match rng.randrange(6):
        case 0:
            node["inputs"][rng.randrange(len(node["inputs"]))] = rng.choice(names)
        case 1:
            new = random_node(rng, names)
            nodes.insert(at, new)
            node["inputs"][rng.randrange(len(node["inputs"]))] = new["output"]
        case 2 if node["attrs"]:
            key = rng.choice(sorted(node["attrs"]))
            node["attrs"][key] = rng.choice(VALUES[OPS[node["op"]].attrs[key].type])
        case 3:
            rng.choice(graph["outputs"])["value"] = rng.choice(names)
        case 4:
            const = rng.choice(graph["consts"])
            const["values"] = [rng.choice((1.0, 1e300, -1.0, 0.0)), *const["values"][: rng.randrange(len(const["values"]))]]
        case _:
            nodes[at], nodes[at - 1] = nodes[at - 1], nodes[at]


def random_node(rng: random.Random, names: list[str]) -> Json:
    op = OPS[rng.choice(sorted(OPS))]
    inputs = [rng.choice(names) for name in op.inputs if not name.endswith("?") or rng.random() < 0.5]
    drawn = {key: rng.choice(VALUES[attr.type]) for key, attr in op.attrs.items() if attr.default is REQUIRED or rng.random() < 0.3}
    attrs = {key: value for key, value in drawn.items() if value != op.attrs[key].default}
    return {"op": op.name, "inputs": inputs, "output": f"new{rng.randrange(10**6)}", "attrs": attrs}


def fit_plan(folder: Path, graph: Graph, rng: random.Random) -> None:
    """A plan for the changed graph, with a KV geometry drawn anew, on which the manifest agrees."""
    plan = json.loads((folder / "plan.json").read_bytes())
    slots = kv_slots(graph, tiny_compiled.CONTEXT, rng.choice((1, 3, 8, 16, 64)), rng.choice(KV))
    ledger = plan["ledger"]
    ledger |= {"total_device_bytes": ledger["total_device_bytes"] - ledger["kv_bytes"] + kv_bytes(slots, 1), "kv_bytes": kv_bytes(slots, 1)}
    plan["kv"], plan["memory"]["prefill_chunk"] = msgspec.to_builtins(slots), rng.choice((1, 2, 5, 8, 48, 1000))
    (folder / "plan.json").write_bytes(canonical_bytes(plan))
    edit(folder, put("ledger", to=ledger))


def outcome(folder: Path, device: str) -> str:
    """How loading and running ends; anything but a refusal or an honest complaint about the numbers is raised."""
    try:
        model = load(folder, device)
    except ArtifactError as e:
        return e.code
    try:
        model.trace([1, 2, 3])
        model.generate(list(range(20)), 12, ignore_eos=True)
    except BackendError as e:
        return "not finite" if "logit" in str(e) else str(e)
    return "ran"


def changed(artifact: Path, folder: Path, count: int, seed: int) -> Counter[str]:
    rng, found = random.Random(seed), Counter[str]()
    right = json.loads((artifact / "graph.json").read_bytes())
    for n in range(count):
        shutil.copytree(artifact, folder, dirs_exist_ok=True)
        graph = json.loads(json.dumps(right))
        for _ in range(rng.choice((1, 1, 1, 2))):
            change(graph, rng)
        (folder / "graph.json").write_bytes(canonical_bytes(graph))
        try:
            parsed = from_json(graph)
        except InputError:
            parsed = None
        if parsed is not None and not verify(parsed):
            fit_plan(folder, parsed, rng)
        seal(folder)
        found[outcome(folder, ("cpu", "interp")[n % 2])] += 1
    return found


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_compiled.build(tmp_path_factory.mktemp("changed"), tiny_compiled.Recipe(predicted=1 << 20))


def test_some_changed_graphs(artifact: Path, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        found = changed(artifact, tmp_path / "changed.thin", 120, seed=1)
    assert set(found) <= {"A-23", "A-24", "ran", "not finite"} and min(found["A-23"], found["ran"]) > 15, found


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_many_changed_graphs(artifact: Path, tmp_path: Path, seed: int) -> None:
    with np.errstate(all="ignore"):
        found = changed(artifact, tmp_path / "changed.thin", 1500, seed)
    assert set(found) <= {"A-23", "A-24", "ran", "not finite"}, found
