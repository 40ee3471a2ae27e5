"""A tiny artifact of random codes for tests: every layout, several formats, short last pages, three weight files; a graph that could run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from thinlm.artifacts.formats import Format, get_format
from thinlm.artifacts.formats.floats import f32_to_bf16, f32_to_e4m3
from thinlm.artifacts.layouts import PagePlan, Region, StoredTensor, fill_pages, plan_pages
from thinlm.artifacts.writer import ArtifactWriter
from thinlm.schemas.build import GraphBuilder
from thinlm.schemas.canonical import canonical_bytes
from thinlm.schemas.graph import Graph, Param
from thinlm.schemas.manifest import Claims, FileEntry, ModelInfo, Provenance, SourceInfo
from thinlm.schemas.plan import Ledger, MemoryPlan, Plan, Solve, encode_plan
from thinlm.schemas.text import to_json
from thinlm.schemas.verify import checked

HIDDEN, CHANNELS, VOCAB = 72, 300, 1500
SHARD_BYTES = 64 << 10
CONTEXT = 64
TEXTS = {"tokenizer.json": b"tokens", "chat_template.jinja": b"{{ messages }}"}


def tensors(fmt: Format | None = None) -> list[StoredTensor]:
    """Two layers between an embedding and a final norm; `fmt` instead of a mixture for all matrices."""

    def matrix(name: str, shape: tuple[int, int], role: str, layer: int | None, default: str) -> StoredTensor:
        return StoredTensor(name, shape, "bf16", role, layer, fmt or get_format(default))

    norm = get_format("bf16/1")
    out = [matrix("embed", (VOCAB, HIDDEN), "embed", None, "int8-sym-g64/1")]
    for n in range(2):
        blk = f"blk.{n}"
        out += [
            StoredTensor(f"{blk}.attn_norm", (HIDDEN,), "bf16", "norm", n, norm),
            matrix(f"{blk}.attn.q", (80, HIDDEN), "q", n, "int4-aff-g32/1"),
            matrix(f"{blk}.attn.o", (HIDDEN, 80), "o", n, "int3-sym-g32/1"),
            StoredTensor(f"{blk}.ffn_norm", (HIDDEN,), "bf16", "norm", n, norm),
            matrix(f"{blk}.ffn.gate", (CHANNELS, HIDDEN), "gate", n, "int4-sym-g64/1"),
            matrix(f"{blk}.ffn.up", (CHANNELS, HIDDEN), "up", n, "int4-sym-g64/1"),
            matrix(f"{blk}.ffn.down", (HIDDEN, CHANNELS), "down", n, "int2-sym-g32/1"),
        ]
    return [*out, StoredTensor("final_norm", (HIDDEN,), "bf16", "norm", None, norm)]


def graph(plan: PagePlan) -> Graph:
    """A decoder without attention over the plan's tensors, head tied to the embedding."""
    b = GraphBuilder("tiny")
    for slot in plan.slots():
        t = slot.tensor
        b.param(Param(t.name, t.shape, t.dtype, t.role, t.layer, t.format.name))
    x = b.output("hidden.embed", b.node("embedding", "ids", "embed"))
    for n in range(2):
        blk = f"blk.{n}"
        h = b.node("linear", b.node("norm", x, f"{blk}.attn_norm", eps=1e-5), f"{blk}.attn.q")
        x = b.node("add", x, b.node("linear", h, f"{blk}.attn.o"))
        h = b.node("norm", x, f"{blk}.ffn_norm", eps=1e-5)
        h = b.node("mul", b.node("silu", b.node("linear", h, f"{blk}.ffn.gate")), b.node("linear", h, f"{blk}.ffn.up"))
        x = b.output(f"hidden.{n}", b.node("add", x, b.node("linear", h, f"{blk}.ffn.down")))
    x = b.output("hidden.final", b.node("norm", x, "final_norm", eps=1e-5))
    b.output("logits", b.node("linear", x, "embed"))
    return checked(b.finish())


def files(plan: PagePlan) -> dict[str, bytes]:
    """All small files."""
    return {"graph.json": canonical_bytes(to_json(graph(plan))), "plan.json": encode_plan(memory_plan(plan)), **TEXTS}


def memory_plan(plan: PagePlan) -> Plan:
    """plan.json: nothing to decide, nothing cached."""
    return Plan(
        target="cpu",
        context=CONTEXT,
        batch=1,
        pipeline="",
        groups=(),
        relayout=(),
        solve=Solve(objective=0.0, bound=0.0, gap=0.0, shadow_prices={}, constraints=()),
        kv=(),
        memory=MemoryPlan(prefill_chunk=64, workspace_bytes=100, peak_node="", live=()),
        ledger=claims(plan).ledger,
    )


def random_slab(tensor: StoredTensor, region: Region) -> np.ndarray:
    """u8[rows, row_bytes] of random codes and finite floats; a pure function of the tensor's name and the region."""
    return random_raw(tensor.format, region.rows, region.cols, f"{tensor.name} {region.row0} {region.col0}")


def random_raw(fmt: Format, rows: int, cols: int, seed: str) -> np.ndarray:
    """Bytes whose floats are finite and whose unused bits are zero; the same for one seed with every version of numpy."""
    parts = fmt.unpack(np.zeros((rows, fmt.row_bytes(cols)), np.uint8), cols)
    for part in fmt.spec.parts:
        shape = parts[part.name].shape
        noise = np.frombuffer(hashlib.shake_256(f"{seed} {part.name}".encode()).digest(2 * rows * shape[1]), "<i2").reshape(shape)
        real = (noise + np.float32(0.5)) / np.float32(9999)
        if part.type.startswith("u"):
            parts[part.name] = (noise & (1 << int(part.type[1:])) - 1).astype(np.uint8)
        elif part.type == "f8e4m3":
            parts[part.name] = f32_to_e4m3(real * 100)
        else:
            parts[part.name] = f32_to_bf16(real) if part.type == "bf16" else real.astype(parts[part.name].dtype)
    return fmt.pack(parts)


def claims(plan: PagePlan) -> Claims:
    """What a compiler would say, with a ledger that adds up."""
    resident, digest = plan.page_bytes, "ab" * 32
    return Claims(
        model=ModelInfo(
            family="test",
            architecture="Test",
            layers=2,
            parameters=1,
            vocab_size=VOCAB,
            tokenizer_vocab=VOCAB,
            context=CONTEXT,
            eos_ids=(0,),
            bos_id=None,
        ),
        source=SourceInfo(kind="hf", name="tiny", digest=digest, files=(FileEntry(path="m.safetensors", bytes=1, sha256=digest),)),
        ledger=Ledger(
            logical_parameters=1,
            encoded_weight_bytes=resident,
            resident_weight_bytes=resident,
            kv_bytes=0,
            workspace_bytes=100,
            runtime_overhead_bytes=10,
            total_device_bytes=resident + 110,
            artifact_bytes_estimate=resident,
            budgets={"budget": resident + 110},
        ),
        provenance=Provenance(tool="thinc", version="0", recipe={}, passes=()),
        build_key=digest,
    )


def write(writer: ArtifactWriter, kinds: int | None = None) -> None:
    """Pages (the first `kinds` kinds) that are not done, then the small files."""
    for group in writer.plan.groups[:kinds]:
        if group.name not in writer.done:
            writer.add_page_kind(group.name, fill_pages(group, random_slab))
    if kinds is None:
        for path, data in files(writer.plan).items():
            writer.add_file(path, data)


def build(target: Path, fmt: Format | None = None, *, force: bool = False) -> Path:
    """Write and publish the tiny artifact at `target`."""
    plan = plan_pages(tensors(fmt))
    writer = ArtifactWriter(target, plan, force=force, shard_bytes=SHARD_BYTES)
    write(writer)
    writer.finish(claims(plan))
    return writer.publish()
