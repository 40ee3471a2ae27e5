"""A tiny model compiled by hand for tests of certify: real weights, a real artifact on the disk, real backends; and damage to each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from thinlm.artifacts import open_artifact
from thinlm.artifacts.formats import Format, get_format
from thinlm.artifacts.formats.floats import f32_to_e4m3
from thinlm.artifacts.layouts import Region, StoredTensor, fill_pages, plan_pages
from thinlm.artifacts.writer import ArtifactWriter
from thinlm.certify import CertifyInputs, Sample, Text
from thinlm.certify.checks.memory import memory_checks
from thinlm.runtime_min import graph_of, load_artifact, options_of
from thinlm.runtime_min.backends.torch_cpu import TorchBackend
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.schemas.canonical import canonical_bytes
from thinlm.schemas.graph import Graph
from thinlm.schemas.kv import KVDtype, kv_bytes, kv_slots
from thinlm.schemas.manifest import Claims, FileEntry, ModelInfo, Provenance, SourceInfo
from thinlm.schemas.plan import FFNOrder, Ledger, MemoryPlan, Plan, Solve, encode_plan
from thinlm.schemas.text import to_json
from tiny import Dims, MemoryWeights, tiny_graph

DIMS = Dims(hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=61, windows=(12, 0))
CONTEXT, BLOCK = 48, 8
DIGEST = hashlib.sha256(b"tiny source").hexdigest()
FILES = {"chat_template.jinja": b"{{ messages }}", "tokenizer.json": b"tokens"}

Edit = Callable[[str, np.ndarray], np.ndarray]  # (tensor name, float32 [rows, cols]) -> what is packed instead


@dataclass(frozen=True)
class Recipe:
    """How the tiny artifact is made, and how it is damaged: `edit` before packing, `files` and `graph` instead of the right ones."""

    matrices: str = "int8-sym-g32/1"
    vectors: str = "f32/1"
    kv_dtype: KVDtype = "f32"
    files: Mapping[str, bytes] | None = None
    graph: Callable[[Graph], Graph] = lambda graph: graph
    edit: Edit = lambda name, w: w
    scales: Callable[[str, dict[str, np.ndarray]], None] = lambda name, parts: None
    orders: Mapping[str, np.ndarray] | None = None
    predicted: int = 0  # the ledger's total; 0 = as measured
    budget: int | None = None
    batch: int = 1


def source_weights() -> MemoryWeights:
    """The source checkpoint."""
    weights = MemoryWeights(tiny_graph(DIMS), seed=3, kind="source", identity=DIGEST)
    weights.arrays["embed"] *= 6  # confident enough that int8 rarely moves the best token
    return weights


def open_reference() -> Model:
    """The source as a model, keys and values not rounded."""
    return Model(
        tiny_graph(DIMS), source_weights(), TorchBackend(), ModelOptions(context=CONTEXT, vocab=DIMS.vocab, block=BLOCK, prefill_chunk=BLOCK)
    )


def pack(fmt: Format, w: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of the plainly rounded matrix; scales and codes are found again from the values."""
    if fmt.family == "float":
        kind = fmt.spec.parts[0].type
        return {"value": (w.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else w.astype({"f16": np.float16, "f32": np.float32}[kind])}
    if fmt.family == "fp8":
        scale = np.maximum(np.abs(w).max(-1, keepdims=True) / np.float32(448), np.float32(1e-30))
        return {"codes": f32_to_e4m3(w / scale), "scale": scale}
    assert not fmt.affine
    groups = range(0, w.shape[1], fmt.group)
    centre = 1.5 if fmt.bits == 2 else 2 ** (fmt.bits - 1)
    scale = np.stack([np.abs(w[:, g : g + fmt.group]).max(-1) / (2**fmt.bits - 1 - centre) for g in groups], 1).astype(np.float16)
    wide = np.repeat(scale.astype(np.float32), fmt.group, 1)[:, : w.shape[1]]
    codes = np.clip(np.rint(w / np.where(wide == 0, 1, wide) + centre), 0, 2**fmt.bits - 1).astype(np.uint8)
    return {"codes": codes, "scale": scale}


def build(folder: Path, recipe: Recipe = Recipe(), name: str = "tiny") -> Path:
    """Write and publish the artifact; with `predicted` 0 twice, the second time with the memory that the first one took."""
    if recipe.predicted:
        return _write(folder / f"{name}.thin", recipe)
    draft = _write(folder / f"{name}-draft.thin", replace(recipe, predicted=1 << 40))
    for _ in range(2):  # the first run in a process also pays for tables that torch_cpu keeps
        peak = memory_checks(lambda: open_candidate(draft), "torch_cpu", np.arange(DIMS.vocab), 1)[0].value
    assert peak is not None
    return _write(folder / f"{name}.thin", replace(recipe, predicted=int(peak)))


def open_candidate(path: Path, backend: Callable[[], Any] = TorchBackend) -> Model:
    """The artifact as a model, on another backend when given."""
    artifact = open_artifact(path)
    if backend is TorchBackend:
        return load_artifact(artifact)
    return Model(graph_of(artifact), artifact, backend(), options_of(artifact))


def inputs(path: Path, **changes: Any) -> CertifyInputs:
    """Inputs with a dozen documents of random ids in two domains."""
    rng = np.random.default_rng(5)
    texts = tuple(Text(f"d{i}", ("code", "prose")[i % 2], hashlib.sha256(bytes([i])).hexdigest(), rng.integers(0, DIMS.vocab, 80)) for i in range(12))
    given: dict[str, Any] = {
        "name": path.name,
        "source": SourceInfo(kind="hf", name="tiny", digest=DIGEST, files=(FileEntry(path="m.safetensors", bytes=1, sha256=DIGEST),)),
        "source_files": FILES,
        "texts": texts,
        "load": lambda: open_candidate(path),
        "size": Sample(documents=8),
        "greedy_tokens": 8,
    }
    return CertifyInputs(**(given | changes))


def _write(target: Path, recipe: Recipe) -> Path:
    graph, weights = tiny_graph(DIMS), source_weights()
    formats = {p.name: recipe.vectors if len(p.shape) == 1 else recipe.matrices for p in graph.params}
    stored = recipe.graph(graph).with_encodings(formats)
    pages = plan_pages([StoredTensor(p.name, p.shape, p.dtype, p.role, p.layer, get_format(formats[p.name])) for p in stored.params])
    plan = _plan(stored, recipe, pages.page_bytes)

    def encode(tensor: StoredTensor, region: Region) -> np.ndarray:
        w = np.atleast_2d(recipe.edit(tensor.name, weights.arrays[tensor.name]))
        parts = pack(tensor.format, np.ascontiguousarray(w[region.row0 : region.row1, region.col0 : region.col1]))
        recipe.scales(tensor.name, parts)
        return tensor.format.pack(parts)

    writer = ArtifactWriter(target, pages)
    for group in pages.groups:
        writer.add_page_kind(group.name, fill_pages(group, encode))
    writer.add_file("graph.json", canonical_bytes(to_json(stored)))
    writer.add_file("plan.json", encode_plan(plan))
    for path, data in (FILES if recipe.files is None else recipe.files).items():
        writer.add_file(path, data)
    writer.finish(_claims(plan.ledger))
    return writer.publish()


def _plan(graph: Graph, recipe: Recipe, page_bytes: int) -> Plan:
    slots = kv_slots(graph, CONTEXT, BLOCK, recipe.kv_dtype)
    kv = kv_bytes(slots, recipe.batch)
    ledger = Ledger(
        logical_parameters=sum(p.size for p in graph.params),
        encoded_weight_bytes=page_bytes,
        resident_weight_bytes=recipe.predicted - kv,
        kv_bytes=kv,
        workspace_bytes=0,
        runtime_overhead_bytes=0,
        total_device_bytes=recipe.predicted,
        artifact_bytes_estimate=page_bytes,
        budgets={} if recipe.budget is None else {"budget": recipe.budget},
    )
    orders = recipe.orders or {}
    return Plan(
        target="cpu",
        context=CONTEXT,
        batch=recipe.batch,
        pipeline="",
        groups=(),
        relayout=tuple(FFNOrder(ffn=name, order=tuple(int(i) for i in order)) for name, order in orders.items()),
        solve=Solve(objective=0.0, bound=0.0, gap=0.0, shadow_prices={}, constraints=()),
        kv=slots,
        memory=MemoryPlan(prefill_chunk=BLOCK, workspace_bytes=0, peak_node="", live=()),
        ledger=ledger,
    )


def _claims(ledger: Ledger) -> Claims:
    model = ModelInfo(
        family="tiny",
        architecture="Tiny",
        layers=DIMS.layers,
        parameters=1,
        vocab_size=DIMS.vocab,
        tokenizer_vocab=DIMS.vocab,
        context=CONTEXT,
        eos_ids=(),
        bos_id=None,
    )
    source = SourceInfo(kind="hf", name="tiny", digest=DIGEST, files=())
    return Claims(
        model=model, source=source, ledger=ledger, provenance=Provenance(tool="thinc", version="0", recipe={}, passes=()), build_key="ab" * 32
    )
