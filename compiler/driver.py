"""A compile from end to end: calibrate, score, allocate, round, write, read back, certify, publish (design.md section 6).

In: a Job. Out: an Outcome; the artifact lies at the job's output, or beside it as NAME.thin.rejected when its gate failed.
1. Budgets that nothing meets and targets that exist are refused before any weight is read.
2. Where every tensor fits as stored there is nothing to search: no calibration, no scores.
3. The certificate is made from the written bytes, before they get their final name; it goes into attest/ with the evidence of the search.
Nothing appears under the final name but by one rename of a complete, verified artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..artifacts import Artifact, ArtifactWriter, open_artifact, plan_pages
from ..artifacts.layouts import PageGroup, Region, StoredTensor, fill_pages
from ..artifacts.target import hold, require_free, require_writable
from ..certify import summary, write_certificate
from ..certify.data import load_documents
from ..certify.texts import SKIP
from ..passes.allocate import Allocation
from ..passes.calibrate import Calibration, Stats, calibrate, load_stats, save_stats
from ..passes.costs import stored_tensor
from ..passes.pipeline import encode_pipeline, import_pipeline, print_pipeline, run_pipeline
from ..passes.relayout import orders_of
from ..passes.round import encode_slab
from ..passes.score import column_weights, measure
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.canonical import canonical_bytes
from ..schemas.certificate import Certificate
from ..schemas.errors import InfeasibleError, InputError, UsageError
from ..schemas.graph import Graph
from ..schemas.plan import Plan, Solve, encode_plan
from ..schemas.recipe import Recipe
from ..schemas.scores import ScoreTable, encode_scores
from ..schemas.text import to_json
from ..schemas.texts import Document, documents_digest, windows
from .certification import CertifyOptions, certify_artifact
from .claims import claims_of, key_of, model_facts, provenance_of
from .prepare import Choice, Prepared, choose, prepare
from .progress import Progress
from .text_data import read_documents, require_disjoint

WINDOW = 256  # calibration tokens of one window
MIN_WINDOW = 32
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `thinc compile` was asked for. `stats` reads recorded calibration statistics, `save_stats` records them."""

    model: Path
    output: Path
    recipe: Recipe
    calibration: Path | None = None
    stats: Path | None = None
    save_stats: Path | None = None
    force: bool = False
    resume: bool = False
    certify: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out. `certificate` is None when none was asked for."""

    path: Path
    artifact: Artifact
    certificate: Certificate | None
    seconds: dict[str, float]

    @property
    def verdict(self) -> str:
        """"pass", "fail" or "uncertified"."""
        return "uncertified" if self.certificate is None else self.certificate.predicate.verdict

    def lines(self) -> list[str]:
        """For a terminal."""
        return summary(self.certificate) if self.certificate else ["UNCERTIFIED  nothing was measured; run `thinc certify`"]


@dataclass(frozen=True, slots=True)
class _Search:
    """The choice, the scores and statistics behind it (None where nothing had to be searched), the digest of the calibration text."""

    choice: Choice
    table: ScoreTable
    stats: Stats | None
    text: str


def compile_model(job: Job, progress: Progress) -> Outcome:
    """Run the whole job. Errors: UsageError, InputError, FrontendError, InfeasibleError, BackendError, CertifyError."""
    prepared = prepare(job.model, job.recipe)
    prepared.check()
    _require_positions(job, prepared)
    _require_free(job)
    with hold(job.output):
        return _compile(job, prepared, progress)


def _compile(job: Job, prepared: Prepared, progress: Progress) -> Outcome:
    """The work, when nothing stands against it and no other process is at it."""
    tokenizer = Tokenizer.from_files(_with_config(prepared))
    calibration = read_documents(job.calibration) if job.calibration else load_documents("calibration")
    require_disjoint(calibration, load_documents("certification"))
    search = _search(job, prepared, tokenizer, calibration, progress)
    graph, records = run_pipeline(prepared.graph, encode_pipeline(search.choice.allocation.encodings), gated=True)
    with progress.stage("hash source"):
        key = key_of(prepared, search.text, search.stats if job.stats else None)
    plan = _plan(prepared, search)
    pages = plan_pages([stored_tensor(p, p.encoding) for p in graph.params])
    made_from = key if search.stats is None else f"{key} {search.stats.digest()}"  # pages rounded by other statistics are not gone on with
    writer = ArtifactWriter(job.output, pages, force=job.force, resume=job.resume, key=made_from)
    _write_pages(writer, prepared, graph, search.stats, progress)
    _write_files(writer, prepared, graph, plan)
    provenance = provenance_of(prepared, (*prepared.records, *records), search.text)
    writer.finish(claims_of(prepared, plan, model_facts(prepared, tokenizer), key, provenance))
    artifact = open_artifact(writer.folder)
    _require_size(writer, artifact, prepared)
    if search.stats is not None:
        artifact.attest.add("scores.json", encode_scores(search.table))
    certificate = None
    if job.certify:
        certificate = certify_artifact(artifact, prepared, progress, CertifyOptions(name=job.output.name))
        write_certificate(artifact, certificate)
    with progress.stage("publish"):
        path = writer.publish(rejected=certificate is not None and certificate.predicate.verdict == "fail")
    return Outcome(path, open_artifact(path), certificate, progress.seconds)


def _require_positions(job: Job, prepared: Prepared) -> None:
    """UsageError for a context in which nothing could be measured."""
    assert prepared.recipe.context is not None
    if job.certify and prepared.recipe.context <= SKIP:
        raise UsageError(f"context: {prepared.recipe.context} positions, certification needs more than {SKIP}; pass more, or --no-certify")


def _require_free(job: Job) -> None:
    """UsageError for a target that may not be written, before the work and not after it."""
    if job.output.suffix != ".thin":
        raise UsageError(f"{job.output}: the name of an artifact ends in .thin")
    require_free(job.output, force=job.force)
    require_free(job.output.with_name(f"{job.output.name}.rejected"), force=True)
    if job.save_stats:
        require_writable(job.save_stats)


def _with_config(prepared: Prepared) -> dict[str, bytes]:
    return {**prepared.source.tokenizer_files(), "config.json": prepared.source.folder.config_bytes}


def _search(job: Job, prepared: Prepared, tokenizer: Tokenizer, documents: Sequence[Document], progress: Progress) -> _Search:
    """Everything as stored when that fits; otherwise calibrate (or read statistics), score and allocate."""
    exact = prepared.lossless()
    for kv_dtype in prepared.kv_choices():
        memory = prepared.memory(exact, kv_dtype)
        ledger = prepared.ledger(exact, kv_dtype, memory)
        if all(ledger.figure(name) <= limit for name, limit in ledger.budgets.items()):
            solve = Solve(objective=0.0, bound=0.0, gap=0.0, shadow_prices={}, constraints=())
            return _Search(Choice(Allocation(exact, solve), kv_dtype, memory), prepared.costs, None, "")
    stats = _statistics(job, prepared, tokenizer, documents, progress)
    if job.save_stats:
        save_stats(stats, job.save_stats)
    with progress.stage("score", 1.0) as tick:
        table = measure(prepared.graph, prepared.source, stats, prepared.costs, WORKERS, _shares(tick))
    with progress.stage("allocate"):
        choice = choose(prepared, table)
    return _Search(choice, table, stats, documents_digest(documents))


def _statistics(job: Job, prepared: Prepared, tokenizer: Tokenizer, documents: Sequence[Document], progress: Progress) -> Stats:
    """Calibrate, or read recorded statistics of the same weights (InputError for those of others)."""
    digest = prepared.source.digest()
    if job.stats:
        stats = load_stats(job.stats)
        if stats.header.source != digest:
            raise InputError(f"{job.stats}: these statistics are of another model ({stats.header.source[:12]}..., not {digest[:12]}...)")
        return stats
    ids = calibration_windows(tokenizer, documents, prepared.recipe.calibration_tokens, prepared.info.context_length, prepared.info.vocab_size)
    with progress.stage("calibrate", 1.0) as tick:
        return calibrate(prepared.graph, prepared.source, ids, Calibration(source=digest, seed=prepared.recipe.seed, workers=WORKERS), _shares(tick))


def calibration_windows(tokenizer: Tokenizer, documents: Sequence[Document], tokens: int, context: int, vocab: int) -> list[np.ndarray]:
    """Windows from documents taken evenly over the whole set until `tokens` are reached: int64[<= WINDOW] each."""
    length = min(WINDOW, context)
    encoded = (tokenizer.encode(d.text) for d in documents)
    found = [np.asarray(ids, np.int64) for _, ids in windows(encoded, length, min(MIN_WINDOW, length))]
    if (highest := max((int(ids.max()) for ids in found), default=0)) >= vocab:
        raise InputError(f"tokenizer.json gives id {highest}, the model has only {vocab} embeddings: these are files of two models")
    wanted = max(1, min(len(found), -(-tokens // length)))
    return [found[i * len(found) // wanted] for i in range(wanted)] if found else []


def _shares(tick: Any) -> Any:
    """A callback that takes the share done so far and advances a stage of total 1."""
    done = 0.0

    def report(share: float) -> None:
        nonlocal done
        tick(share - done)
        done = share

    return report


def _plan(prepared: Prepared, search: _Search) -> Plan:
    choice, recipe = search.choice, prepared.recipe
    encodings = choice.allocation.encodings
    assert recipe.context is not None
    return Plan(
        target=recipe.target,
        context=recipe.context,
        batch=recipe.batch,
        pipeline=print_pipeline(import_pipeline(recipe.relayout)),
        groups=search.table.plan(encodings),
        relayout=orders_of(prepared.graph, recipe.relayout),
        solve=choice.allocation.solve,
        kv=prepared.slots(choice.kv_dtype),
        memory=choice.memory,
        ledger=prepared.ledger(encodings, choice.kv_dtype, choice.memory),
    )


def _write_pages(writer: ArtifactWriter, prepared: Prepared, graph: Graph, stats: Stats | None, progress: Progress) -> None:
    """Round and write, page kind by page kind; two kinds at a time are rounded."""
    weights = column_weights(graph, stats) if stats is not None else {}
    todo = [group for group in writer.plan.groups if group.name not in writer.done]

    def pages(group: PageGroup) -> list[bytes]:
        matrices: dict[str, np.ndarray] = {}

        def encode(tensor: StoredTensor, r: Region) -> np.ndarray:
            if tensor.name not in matrices:
                w = prepared.source.f32(tensor.name)
                matrices[tensor.name] = w.reshape(-1, w.shape[-1])
            h = weights.get(tensor.name)
            parts = encode_slab(tensor.format, matrices[tensor.name][r.row0 : r.row1, r.col0 : r.col1], None if h is None else h[r.col0 : r.col1])
            return tensor.format.pack(parts)

        return list(fill_pages(group, encode))

    with progress.stage("round, write", len(todo)) as tick, ThreadPoolExecutor(WORKERS) as pool:
        for start in range(0, len(todo), WORKERS):
            some = todo[start : start + WORKERS]
            for group, filled in zip(some, pool.map(pages, some), strict=True):
                writer.add_page_kind(group.name, filled)
                tick()


def _write_files(writer: ArtifactWriter, prepared: Prepared, graph: Graph, plan: Plan) -> None:
    writer.add_file("graph.json", canonical_bytes(to_json(graph)))
    writer.add_file("plan.json", encode_plan(plan))
    for name, data in sorted(prepared.source.tokenizer_files().items()):
        writer.add_file(name, data)


def _require_size(writer: ArtifactWriter, artifact: Artifact, prepared: Prepared) -> None:
    """InfeasibleError when the files came out larger than --max-artifact, which the estimate should have prevented."""
    limit = prepared.recipe.max_artifact
    if isinstance(limit, int) and artifact.bytes_on_disk > limit:
        writer.discard()
        raise InfeasibleError(f"max_artifact: {limit} bytes asked for, the files have {artifact.bytes_on_disk}; ask for that much")
