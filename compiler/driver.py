"""A compile from end to end: calibrate, score, allocate, round, write, read back, certify, publish (design.md section 6).

In: a Job. Out: an Outcome; the artifact lies at the job's output, or beside it as NAME.thin.rejected when its gate failed.
1. Budgets that nothing meets and targets that exist are refused before any weight is read.
2. Where every tensor fits as stored there is nothing to search: no calibration, no scores.
3. The certificate is made from the written bytes, before they get their final name; it goes into attest/ with the evidence of the search.
Nothing appears under the final name but by one rename of a complete, verified artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from ..artifacts import Artifact, ArtifactWriter, open_artifact, plan_pages, verify_artifact
from ..artifacts.disk import full_disk_said
from ..artifacts.layouts import PageGroup, Region, StoredTensor, fill_page
from ..artifacts.target import WORK, clean, hidden, hold, put_back, rejected_name
from ..artifacts.work import Work
from ..certify import summary, write_certificate
from ..certify.data import load_documents
from ..passes.calibrate import Stats
from ..passes.costs import stored_tensor
from ..passes.pipeline import encode_pipeline, import_pipeline, print_pipeline, run_pipeline
from ..passes.relayout import orders_of
from ..passes.round import encode_slab
from ..passes.score import column_weights
from ..runtime_min.parallel import in_order
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.canonical import canonical_bytes
from ..schemas.certificate import Certificate
from ..schemas.errors import ArtifactError, InfeasibleError
from ..schemas.graph import Graph
from ..schemas.plan import Plan, encode_plan
from ..schemas.scores import encode_scores
from ..schemas.text import to_json
from .certification import CertifyOptions, certify_artifact, require_prompts
from .claims import claims_of, model_facts, provenance_of
from .ingredients import toolchain
from .job import Job, build_key_of, calibration_text, require_positions, require_room, require_targets
from .prepare import Prepared, prepare
from .progress import Progress
from .room import Room, give_back, room_for
from .search import How, Search, as_stored, search
from .text_data import require_disjoint
from .trust import standing


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


def compile_model(job: Job, progress: Progress) -> Outcome:
    """Run the whole job. Errors: UsageError, InputError, FrontendError, InfeasibleError, BackendError, DiskError, CertifyError."""
    prepared = prepare(job.model, job.recipe)
    prepared.check()
    require_positions(job, prepared)
    room = room_for(prepared, job.max_ram, job.output.parent, searching=as_stored(prepared) is None)
    if not job.resume:
        require_targets(job)
    with hold(job.output), full_disk_said(job.output.parent):
        for path in (job.output, rejected_name(job.output)):
            put_back(path)
        if job.resume and (done := _done_before(job, prepared, progress)) is not None:
            clean(job.output)
            return done
        require_targets(job)
        if not job.resume:
            clean(job.output)
        require_room(job, prepared)
        return _compile(job, prepared, room, progress)


def _compile(job: Job, prepared: Prepared, room: Room, progress: Progress) -> Outcome:
    """The work, when nothing stands against it and no other process is at it."""
    work = Work(hidden(job.output, WORK), toolchain())
    tokenizer = Tokenizer.from_files(_with_config(prepared))
    calibration = calibration_text(job)
    require_disjoint(calibration, load_documents("certification"))
    if job.certify:
        require_prompts(tokenizer, _with_config(prepared))
    with progress.stage("hash source"):
        prepared.source.digest()
    how = How(tokenizer=tokenizer, documents=calibration, recorded=job.stats, record=job.save_stats, work=work, workers=room.workers)
    found = search(prepared, how, progress)
    give_back()
    graph, records = run_pipeline(prepared.graph, encode_pipeline(found.choice.allocation.encodings), gated=True)
    key = build_key_of(job, prepared, calibration)
    plan = _plan(prepared, found)
    pages = plan_pages([stored_tensor(p, p.encoding) for p in graph.params])
    made_from = key if found.stats is None else f"{key} {found.stats.digest()}"  # pages rounded by other statistics are not gone on with
    writer = ArtifactWriter(job.output, pages, force=job.force, resume=job.resume, key=made_from)
    _write_pages(writer, prepared, graph, found.stats, room.workers, progress)
    _write_files(writer, prepared, graph, plan)
    provenance = provenance_of(prepared, (*prepared.records, *records), found.text)
    writer.finish(claims_of(prepared, plan, model_facts(prepared, tokenizer), key, provenance))
    artifact = open_artifact(writer.folder)
    _require_size(writer, artifact, prepared)
    if found.stats is not None:
        artifact.attest.add("scores.json", encode_scores(found.table))
    certificate = None
    if job.certify:
        how_certified = CertifyOptions(name=job.output.name, spill=room.spill, max_ram=room.max_ram, work=work)
        certificate = certify_artifact(artifact, prepared, progress, how_certified)
        write_certificate(artifact, certificate)
    with progress.stage("publish"):
        path = writer.publish(rejected=certificate is not None and certificate.predicate.verdict == "fail")
        clean(job.output)
    return Outcome(path, open_artifact(path), certificate, progress.seconds)


def _done_before(job: Job, prepared: Prepared, progress: Progress) -> Outcome | None:
    """What an earlier run of the same job published just before it was stopped."""
    for path in (job.output, rejected_name(job.output)):
        if not path.is_dir():
            continue
        try:
            artifact = open_artifact(path)
        except ArtifactError:  # something else, or damaged: not what this job published
            continue
        with progress.stage("verify"):
            if artifact.manifest.build_key != build_key_of(job, prepared, calibration_text(job)) or verify_artifact(path):
                continue
        certificate = standing(artifact, "cpu").certificate
        if (certificate is None) is not job.certify:
            return Outcome(path, artifact, certificate, progress.seconds)
    return None


def _with_config(prepared: Prepared) -> dict[str, bytes]:
    return {**prepared.source.tokenizer_files(), "config.json": prepared.source.folder.config_bytes}


def _plan(prepared: Prepared, found: Search) -> Plan:
    choice, recipe = found.choice, prepared.recipe
    encodings = choice.allocation.encodings
    assert recipe.context is not None
    return Plan(
        target=recipe.target,
        context=recipe.context,
        batch=recipe.batch,
        pipeline=print_pipeline(import_pipeline(recipe.relayout)),
        groups=found.table.plan(encodings),
        relayout=orders_of(prepared.graph, recipe.relayout),
        solve=choice.allocation.solve,
        kv=prepared.slots(choice.kv_dtype),
        memory=choice.memory,
        ledger=prepared.ledger(encodings, choice.kv_dtype, choice.memory),
    )


def _write_pages(writer: ArtifactWriter, prepared: Prepared, graph: Graph, stats: Stats | None, workers: int, progress: Progress) -> None:
    """Round and write, page by page; each reads no more of the source than it holds."""
    weights = column_weights(graph, stats) if stats is not None else {}
    todo = [group for group in writer.plan.groups if group.name not in writer.done]

    def encode(tensor: StoredTensor, r: Region) -> np.ndarray:
        h = weights.get(tensor.name)
        w = prepared.source.block(tensor.name, slice(r.row0, r.row1), slice(r.col0, r.col1))
        return tensor.format.pack(encode_slab(tensor.format, w, None if h is None else h[r.col0 : r.col1]))

    def filled(place: tuple[PageGroup, int]) -> bytes:
        return fill_page(*place, encode)

    pages = in_order(workers, filled, ((group, k) for group in todo for k in range(group.count)))
    with progress.stage("round, write", sum(group.total_bytes for group in todo)) as tick:
        for group in todo:
            writer.add_page_kind(group.name, islice(pages, group.count))
            tick(group.total_bytes)


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
