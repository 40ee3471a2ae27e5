"""The rules of SPEC.md about what graph.json and plan.json mean: A-23 and A-24. What keeps them can be loaded and run.

In: the bytes of the two files, and the manifest. Out: the graph and the plan. Raises ArtifactError with the rule's code: a graph that breaks the
IR's rules, reads weights that are not there or in a way that no backend supports; a plan that is not about this graph; figures that no
machine could hold. Model facts of the manifest that contradict the graph break A-23 too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

from ..schemas.canonical import parse_canonical
from ..schemas.errors import ArtifactError, InputError
from ..schemas.graph import LOSSLESS_ROLES, Graph, Param, Type
from ..schemas.kv import kv_bytes, kv_slots
from ..schemas.manifest import Manifest, ModelInfo
from ..schemas.plan import Plan, decode_plan
from ..schemas.text import from_json
from ..schemas.verify import infer, verify
from .check import GRAPH, LIMITS, PLAN

MAX_VALUE = 1 << 28  # numbers that one value may have per position; logits of the largest vocabularies have 2^18
MAX_BLOCKS = 1 << 24  # KV blocks of a slot, all sequences together
MAX_KV = 1 << 46  # bytes
_BATCH = ("B", "T")
# Where a matrix, which stays packed, and a constant, which is float64, may be read: (op, index of the input).
_MATRIX_READERS = frozenset({("linear", 1), ("embedding", 1)})
_CONST_READERS = frozenset({("rope", 2)})


def a23_graph(path: Path, data: bytes, manifest: Manifest) -> Graph:
    """A-23: graph.json is a sound graph over exactly the manifest's tensors, and `model` says of it what is true."""
    try:
        graph = from_json(parse_canonical(data, where=GRAPH, max_bytes=LIMITS[GRAPH]))
    except InputError as e:
        raise ArtifactError("A-23", f"{path}: {e}") from e
    problem = next(_graph_problems(graph, manifest), None)
    if problem is not None:
        raise ArtifactError("A-23", f"{path}: {GRAPH}: {problem[:400]}")
    return graph


def a24_plan(path: Path, data: bytes, manifest: Manifest, graph: Graph) -> Plan:
    """A-24: plan.json is a plan of this graph: its KV geometry, formats and orders fit, its ledger is the manifest's, its figures are possible."""
    try:
        plan = decode_plan(data)
    except InputError as e:
        raise ArtifactError("A-24", f"{path}: {e}") from e
    problem = next(_plan_problems(plan, manifest, graph), None)
    if problem is not None:
        raise ArtifactError("A-24", f"{path}: {PLAN}: {problem[:400]}")
    return plan


def _graph_problems(graph: Graph, manifest: Manifest) -> Iterator[str]:
    """In order: what comes later may assume what came before."""
    yield from verify(graph)
    stored = {t.name: (t.shape, t.dtype, t.role, t.layer, t.encoding) for t in manifest.tensors}
    declared = {p.name: (p.shape, p.dtype, p.role, p.layer, p.encoding) for p in graph.params}
    for name in sorted(stored.keys() | declared.keys()):
        if stored.get(name) != declared.get(name):
            yield f"tensor {name!r} is {declared.get(name, 'not there')}, in the manifest {stored.get(name, 'not there')}"
    yield from graph_problems(graph, manifest.model)


def graph_problems(graph: Graph, model: ModelInfo) -> Iterator[str]:
    """What A-23 asks of a verified graph beyond the IR's rules, and of what is said about the model."""
    types, _ = infer(graph)
    yield from _value_problems(graph, types)
    yield from _reader_problems(graph)
    yield from _table_problems(graph, model)
    yield from _model_problems(graph, types, model)


def _value_problems(graph: Graph, types: Mapping[str, Type]) -> Iterator[str]:
    for node in graph.nodes:
        if prod(d for d in types[node.output].shape if isinstance(d, int)) > MAX_VALUE:
            yield f"%{node.output} : {types[node.output]} is too large, at most {MAX_VALUE} numbers a position are computed"
    outputs = dict(graph.outputs)
    if "hidden.final" not in outputs:
        yield "output hidden.final is missing"
    for name, value in graph.outputs:
        t = types[value]
        if t.dtype != "f32" or t.shape[:2] != _BATCH or len(t.shape) != 3 or not isinstance(t.shape[2], int):
            yield f"output {name} must be f32[B, T, N] with a number N, not {t}"


def _reader_problems(graph: Graph) -> Iterator[str]:
    """How weights and constants are read."""
    params, consts = graph.param_table(), {c.name for c in graph.consts}
    for p in graph.params:
        if len(p.shape) != (1 if p.role in LOSSLESS_ROLES else 2):
            yield f"param @{p.name}: a {p.role} of {len(p.shape)} dims; {', '.join(sorted(LOSSLESS_ROLES))} are vectors, all others matrices"
    for node in graph.nodes:
        for index, name in enumerate(node.inputs):
            matrix = name in params and params[name].role not in LOSSLESS_ROLES
            if matrix and (node.op, index) not in _MATRIX_READERS:
                yield f"node %{node.output} {node.op}: reads the matrix @{name}, which only linear and embedding can"
            if name in params and (node.op, index) == ("linear", 0):
                yield f"node %{node.output} linear: multiplies the weight @{name}, only computed values can be"
            if name in consts and (node.op, index) not in _CONST_READERS:
                yield f"node %{node.output} {node.op}: reads ${name}, constants are for the frequencies of rope"


def _table_problems(graph: Graph, model: ModelInfo) -> Iterator[str]:
    """Every id, and every position, has a row in the table that it is looked up in."""
    params: dict[str, Param] = graph.param_table()
    rows = {p.shape[0] for p in graph.params if p.role == "embed"}
    if len(rows) != 1:
        yield f"params of role embed have {sorted(rows)} rows, expected one number"
    for node in graph.nodes:
        if node.op != "embedding":
            continue
        ids, name = node.inputs
        table = params.get(name)
        if table is None:
            yield f"node %{node.output} embedding: %{name} is computed, the table must be a param"
        elif ids == "ids" and table.role != "embed":
            yield f"node %{node.output} embedding: the table @{name} has role {table.role}, expected embed"
        elif ids == "positions" and table.shape[0] < model.context:
            yield f"node %{node.output} embedding: {table.shape[0]} rows for {model.context} positions"


def _model_problems(graph: Graph, types: Mapping[str, Type], model: ModelInfo) -> Iterator[str]:
    vocab = types[dict(graph.outputs)["logits"]].shape[2]
    rows = next(p.shape[0] for p in graph.params if p.role == "embed")
    if model.vocab_size != vocab:
        yield f"logits of {vocab} ids, manifest.json says {model.vocab_size}"
    if not 1 <= model.tokenizer_vocab <= min(model.vocab_size, rows):
        yield f"manifest.json: tokenizer_vocab {model.tokenizer_vocab}, expected 1 to {min(model.vocab_size, rows)}"
    if not 1 <= model.context < 1 << 31:
        yield f"manifest.json: context {model.context}, expected 1 to {(1 << 31) - 1}"
    for name, ids in (("eos_ids", model.eos_ids), ("bos_id", () if model.bos_id is None else (model.bos_id,))):
        if any(i >= model.vocab_size for i in ids):
            yield f"manifest.json: {name} {ids} outside [0, {model.vocab_size})"


def _plan_problems(plan: Plan, manifest: Manifest, graph: Graph) -> Iterator[str]:
    if plan.ledger != manifest.ledger:
        yield "its ledger is not the manifest's"
    if plan.context > manifest.model.context:
        yield f"context {plan.context}, the model has {manifest.model.context} positions"
    block, dtype = (plan.kv[0].block, plan.kv[0].dtype) if plan.kv else (1, "f32")
    if plan.kv != kv_slots(graph, plan.context, block, dtype):
        yield f"its KV slots are not those of the graph at context {plan.context}, block {block}, {dtype}"
    if any(plan.batch * slot.blocks > MAX_BLOCKS for slot in plan.kv) or kv_bytes(plan.kv, plan.batch) > MAX_KV:
        yield f"batch {plan.batch}, context {plan.context}, block {block}: more KV than any machine holds"
    if kv_bytes(plan.kv, plan.batch) != plan.ledger.kv_bytes:
        yield f"its KV slots take {kv_bytes(plan.kv, plan.batch)} bytes, its ledger says {plan.ledger.kv_bytes}"
    params = graph.param_table()
    for name, encoding in plan.encodings().items():
        if name not in params or params[name].encoding != encoding:
            yield f"it says {encoding} of {name!r}, which is {params[name].encoding if name in params else 'not there'}"
    for entry in plan.relayout:
        gate = params.get(f"{entry.ffn}.gate")
        if gate is None or (entry.order != "identity" and sorted(entry.order) != list(range(gate.shape[0]))):
            yield f"the order of {entry.ffn!r} is no permutation of its channels"
