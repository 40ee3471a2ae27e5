"""Certifies a checkpoint, plainly rounded to one format, with little memory, and tells what each stage took.

`python -m tests.soak.certify_lean CHECKPOINT WORK --documents 4 --tokens 256`: WORK is a folder for the artifact and spilled memory.
Out: one JSON object on standard output: seconds and peak RssAnon (bytes, sampled every 20 ms) per stage, the figures by name, and the
model's size. Nothing is calibrated: this measures certification and the runtime alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from thinlm.artifacts import ArtifactWriter, open_artifact, plan_pages
from thinlm.artifacts.layouts import Region, StoredTensor, fill_pages
from thinlm.certify import CertifyInputs, Sample, Text, certify
from thinlm.certify.data import load_documents, load_prompts
from thinlm.compiler.claims import claims_of, model_facts, provenance_of, source_info
from thinlm.compiler.prepare import Prepared, prepare
from thinlm.compiler.room import give_back
from thinlm.passes.costs import stored_tensor
from thinlm.passes.relayout import orders_of
from thinlm.passes.round import encode_slab
from thinlm.runtime_min import load_artifact, options_of
from thinlm.runtime_min.devices import open_backend
from thinlm.runtime_min.model import Model, ModelOptions
from thinlm.runtime_min.tokenizer import Tokenizer
from thinlm.schemas.canonical import canonical_bytes
from thinlm.schemas.graph import LOSSLESS_ROLES
from thinlm.schemas.plan import Plan, Solve, encode_plan
from thinlm.schemas.recipe import Recipe
from thinlm.schemas.text import to_json

EVERY = 0.02  # seconds


def rss_anon() -> int:
    """Anonymous resident bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise OSError("this system doesn't tell RssAnon")


@dataclass
class Watch:
    """Peak RssAnon and seconds by stage; a thread looks every EVERY seconds."""

    stage: str = "start"
    peaks: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._since = time.monotonic()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.peaks[self.stage] = max(self.peaks.get(self.stage, 0), rss_anon())
            time.sleep(EVERY)

    def enter(self, stage: str) -> None:
        """What follows counts as `stage`."""
        now = time.monotonic()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self._since
        self.stage, self._since = stage, now


def write_plain(prepared: Prepared, target: Path, name: str, tokenizer: Tokenizer) -> Path:
    """An artifact with every matrix rounded to the format `name`, vectors as stored."""
    graph = prepared.graph.with_encodings({p.name: f"{p.dtype}/1" if p.role in LOSSLESS_ROLES else name for p in prepared.graph.params})
    encodings = {p.name: p.encoding for p in graph.params}
    memory, recipe = prepared.memory(encodings, "f16"), prepared.recipe
    assert recipe.context is not None
    plan = Plan(
        target=recipe.target,
        context=recipe.context,
        batch=recipe.batch,
        pipeline="",
        groups=(),
        relayout=orders_of(graph, recipe.relayout),
        solve=Solve(objective=0.0, bound=0.0, gap=0.0, shadow_prices={}, constraints=()),
        kv=prepared.slots("f16"),
        memory=memory,
        ledger=prepared.ledger(encodings, "f16", memory),
    )

    def encode(tensor: StoredTensor, r: Region) -> np.ndarray:
        return tensor.format.pack(encode_slab(tensor.format, prepared.source.block(tensor.name, slice(r.row0, r.row1), slice(r.col0, r.col1))))

    writer = ArtifactWriter(target, plan_pages([stored_tensor(p, p.encoding) for p in graph.params]))
    for group in writer.plan.groups:
        writer.add_page_kind(group.name, fill_pages(group, encode))
    writer.add_file("graph.json", canonical_bytes(to_json(graph)))
    writer.add_file("plan.json", encode_plan(plan))
    for path, data in sorted(prepared.source.tokenizer_files().items()):
        writer.add_file(path, data)
    writer.finish(claims_of(prepared, plan, model_facts(prepared, tokenizer), "ab" * 32, provenance_of(prepared, (), "")))
    return writer.publish()


def texts_of(tokenizer: Tokenizer, documents: int, prompts: int) -> tuple[tuple[Text, ...], tuple[Text, ...]]:
    """The first shipped documents and prompts as ids."""
    found = load_documents("certification")[:documents]
    starts = [p for p in load_prompts() if p.kind != "chat"][:prompts]

    def text(name: str, domain: str, digest: str, content: str) -> Text:
        return Text(name, domain, digest, np.asarray(tokenizer.encode(content), np.int32))

    return tuple(text(d.id, d.domain, d.sha256, d.text) for d in found), tuple(text(p.id, p.kind, "ab" * 32, p.text) for p in starts)


def measure(given: argparse.Namespace) -> dict[str, object]:
    """Write, certify, watch."""
    watch = Watch()
    given.work.mkdir(exist_ok=True)
    prepared = prepare(given.checkpoint, Recipe(context=given.context))
    files = prepared.source.tokenizer_files()
    tokenizer = Tokenizer.from_files(files)
    watch.enter("write")
    target = given.work / "plain.thin"
    path = target if target.exists() else write_plain(prepared, target, given.format, tokenizer)
    watch.enter("open")
    spill = given.work if given.spill else None
    artifact = open_artifact(path)
    candidate = load_artifact(artifact, spill=spill)
    options = ModelOptions(context=given.context, vocab=options_of(artifact).vocab)
    reference = Model(prepared.graph, prepared.source, open_backend("cpu", spill), options)
    texts, prompts = texts_of(tokenizer, given.documents, given.prompts)
    inputs = CertifyInputs(
        name=path.name,
        source=source_info(prepared),
        source_files=files,
        texts=texts,
        load=lambda: load_artifact(open_artifact(path), spill=spill),
        prompts=prompts,
        size=Sample(documents=given.documents, tokens=given.tokens),
        greedy_tokens=given.new_tokens,
        max_ram=given.max_ram,
    )
    stages = {"structure": "backend", "backend": "memory", "memory": "text", "text": "greedy", "greedy": "end"}
    watch.enter("honest, structure")

    def finished(stage: str, done: int, total: int) -> None:
        if done == total:
            give_back()
            watch.enter(stages[stage])

    certificate = certify(candidate, reference, inputs, finished)
    watch.enter("")
    checks = [c for gate in certificate.predicate.gates for c in gate.checks]
    return {
        "source_bytes": sum(file.size for file in prepared.source.folder.files.values()),
        "seconds": {name: round(s, 2) for name, s in watch.seconds.items()},
        "peak_rss_anon": watch.peaks,
        "figures": {c.name: c.value for c in checks},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--format", default="int4-sym-g64/1")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--max-ram", type=int)
    parser.add_argument("--no-spill", dest="spill", action="store_false")
    sys.stdout.write(json.dumps(measure(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
