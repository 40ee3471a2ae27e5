"""`certify`: measure an artifact against its source, judge, and put it in a certificate.

In: the artifact's model as loaded from disk, the source's model, `CertifyInputs`. Out: a Certificate (passed or failed; nothing is written).
Order: STRUCTURE, CONFORMANCE, FIDELITY. All run even when one fails, so that the certificate says everything at once.
Refused: CertifyError for a reference that is not a source, or is the candidate in any disguise, or a candidate that does not run what lies on the
disk; InputError for another source than the artifact was made from; ArtifactError for bytes that are not what the manifest says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Literal

import msgspec
import numpy as np

from ..artifacts.reader import Artifact
from ..artifacts.work import NOTHING_KEPT, Work
from ..runtime_min.model import Model
from ..runtime_min.parallel import Map, one_thread_each
from ..schemas.certificate import ArtifactRef, Certificate, Check, Data, Digest, Predicate, SourceRef, Subject
from ..schemas.manifest import SourceInfo
from ..schemas.plan import decode_plan
from ..schemas.recipe import Gate
from .certificate import loosened, mode_of
from .checks import conformance, fidelity, greedy, memory, structure
from .device import this_device
from .gate import judge, thresholds, verdict_of
from .honest import require_honest
from .metrics import NonFinite, Positions
from .side_by_side import batches, workers_within
from .texts import SAMPLE, SKIP, Sample, Text, beginnings, digest_of, domain_data, sample

Progress = Callable[[str, int, int], None]  # (stage, units done, units in all)
CLAIM = "source: stored checkpoint decoded exactly to float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyInputs:
    """What a certificate needs besides the two models. `source` describes the reference as just read; `source_files` its tokenizer files by path.

    `texts` are certification documents, disjoint from calibration; without `prompts` the greedy check starts from their beginnings. `load`
    opens the artifact afresh in the same mode, for the memory check. `claim` adds lines to the certificate's claim ("text only"). `max_ram` is how
    many bytes of memory the process may take: fewer documents are measured side by side where it is little. `work` keeps what was measured, so
    that a certification that was stopped goes on where it was.
    """

    name: str
    source: SourceInfo
    source_files: Mapping[str, bytes]
    texts: tuple[Text, ...]
    load: Callable[[], Model]
    prompts: tuple[Text, ...] = ()
    gate: Gate | None = None
    profile: Literal["default", "autofit"] = "default"
    size: Sample = SAMPLE
    greedy_tokens: int = 32
    seed: int = 0
    claim: tuple[str, ...] = ()
    max_ram: int | None = None
    work: Work = NOTHING_KEPT


def certify(candidate: Model, reference: Model, inputs: CertifyInputs, progress: Progress = lambda stage, done, total: None) -> Certificate:
    """Run the three gates on `candidate` (an artifact's model) against `reference` (its source's)."""
    artifact = require_honest(candidate, reference, inputs.source)
    job = _Job(candidate, reference, artifact, inputs, progress)
    evidence = job.measure()
    ledger = artifact.manifest.ledger
    rows = thresholds(
        inputs.gate, budget=ledger.budgets.get("budget"), half=candidate.options.kv_dtype == "bf16", metered=candidate.backend in memory.METERED
    )
    gates = judge(evidence, rows)
    return Certificate(
        subject=(Subject(name=inputs.name, digest=Digest(sha256=artifact.artifact_id)),),
        predicate=Predicate(
            claim=(f"source: {inputs.source.note}" if inputs.source.note else CLAIM, *inputs.claim),
            verdict=verdict_of(gates, inputs.profile),
            profile=inputs.profile,
            artifact=ArtifactRef(
                artifact_id=artifact.artifact_id, payload_root=artifact.manifest.payload_root, build_key=artifact.manifest.build_key
            ),
            source=SourceRef(digest=inputs.source.digest, files=inputs.source.files),
            backend=candidate.backend,
            mode=mode_of(candidate.options),
            data=job.data(),
            thresholds=rows,
            loosened=loosened(rows),
            gates=gates,
            device=this_device(candidate.backend),
        ),
    )


class _Job:
    """One certification: the inputs that all stages share, and the stages."""

    def __init__(self, candidate: Model, reference: Model, artifact: Artifact, inputs: CertifyInputs, progress: Progress) -> None:
        self._candidate, self._reference, self._artifact = candidate, reference, artifact
        self._inputs, self._progress = inputs, progress
        self._size = inputs.size.within(min(candidate.options.context, reference.options.context))
        self._texts = sample(inputs.texts, self._size)
        self._prompts = inputs.prompts or beginnings(self._texts)
        self._vocabulary = candidate.options.vocab
        self._digests = {
            "artifact": artifact.artifact_id,
            "source": inputs.source.digest,
            "documents": digest_of(self._texts),
            "prompts": digest_of(self._prompts),
        }
        made_from = [self._digests, inputs.greedy_tokens, inputs.seed, candidate.backend, mode_of(candidate.options), self._vocabulary]
        self._steps = inputs.work.stage("certify", *made_from, asdict(self._size))
        self._broken: list[str] = []
        self._workers = workers_within(candidate.graph, self._size.window, inputs.max_ram)
        self._each: Map = map

    def measure(self) -> list[Check]:
        """All figures. A stage that meets a non-finite logit gives none, and is counted."""
        with one_thread_each(self._workers) as self._each:
            evidence = self._evidence()
        name, detail = "nonfinite[stages=backend,memory,text,greedy]", "; ".join(self._broken)
        return [*evidence, Check(metric="nonfinite", name=name, value=len(self._broken), n=4, detail=detail, computed_from=self._digests)]

    def _evidence(self) -> list[Check]:
        return [
            *self._stage("structure", structure.METRICS, ("artifact", "source"), self._structure),
            *self._stage("backend", conformance.METRICS, ("artifact", "documents"), self._conformance),
            *self._stage("memory", memory.METRICS, ("artifact",), self._memory),
            *self._stage("text", fidelity.METRICS, ("artifact", "source", "documents"), self._fidelity),
            *self._stage("greedy", greedy.METRICS, ("artifact", "source", "prompts"), self._greedy),
        ]

    def data(self) -> Data:
        """What texts were used."""
        return Data(
            documents=len(self._texts),
            documents_digest=self._digests["documents"],
            documents_unused=len(self._inputs.texts) - len(self._texts),
            domains=domain_data(self._texts, self._size),
            window=self._size.window,
            skip=SKIP,
            prompts=len(self._prompts),
            prompts_digest=self._digests["prompts"],
            calibration=self._artifact.manifest.provenance.calibration,
        )

    def _stage(self, stage: str, metrics: Iterable[str], origins: Iterable[str], run: Callable[[str], Iterable[Check]]) -> list[Check]:
        try:
            checks = self._once(stage, run)
        except NonFinite as e:
            self._broken.append(f"{stage}: {e}")
            checks = [Check(metric=m, name=m, value=None, n=0, detail=str(e)) for m in metrics]
        computed_from = {origin: self._digests[origin] for origin in origins}
        return [msgspec.structs.replace(check, computed_from=computed_from) for check in checks]

    def _once(self, name: str, run: Callable[[str], Iterable[Check]]) -> list[Check]:
        """The checks of a finished step, or those that `run` makes now."""
        kept = self._steps.get_json(name)
        if kept is not None:
            return msgspec.convert(kept, list[Check])
        checks = list(run(name))
        self._steps.put_json(name, checks)
        return checks

    def _structure(self, stage: str) -> Iterable[Check]:
        model, source, params = self._candidate, self._reference, self._candidate.graph.params
        yield structure.graph_check(model.graph, source.graph, model.weights)
        yield structure.file_check(self._artifact.manifest.files, self._inputs.source_files)
        orders = {f.ffn: np.asarray(f.order) for f in decode_plan(self._artifact.plan_bytes).relayout if f.order != "identity"}
        yield from structure.tensor_checks(model.weights, source.weights, params, orders, self._ticks(stage, len(params)))

    def _conformance(self, stage: str) -> Iterable[Check]:
        model = self._candidate
        length = conformance.text_length(model.graph, model.options.context, model.options.block)
        texts = conformance.texts_of(self._ids(), length)
        tick = self._ticks(stage, 2)
        for name, checks in (("interpreter", conformance.backend_checks), ("cache", conformance.cache_checks)):
            yield from self._once(name, lambda _, checks=checks: checks(model, texts, self._vocabulary))
            tick("")

    def _memory(self, stage: str) -> Iterable[Check]:
        ledger = self._artifact.manifest.ledger
        tick = self._ticks(stage, 1)
        yield from memory.memory_checks(self._inputs.load, self._candidate.backend, self._ids(), ledger.total_device_bytes)
        tick("")

    def _fidelity(self, stage: str) -> Iterable[Check]:
        tick, documents = self._ticks(stage, len(self._texts)), list[Positions]()

        def measured(number: int) -> Positions:
            name = f"text-{number:04d}"
            kept = self._steps.get(name)
            if kept is None:
                found = fidelity.measure(self._candidate, self._reference, self._texts[number], self._size, self._vocabulary)
                kept = self._steps.put(name, asdict(found))
            return Positions(**kept)

        for text, positions in zip(self._texts, self._each(measured, range(len(self._texts))), strict=True):
            documents.append(positions)
            tick(text.id)
        return fidelity.fidelity_checks(documents, self._texts, self._size, self._inputs.seed)

    def _greedy(self, stage: str) -> Iterable[Check]:
        tick, tally = self._ticks(stage, len(self._prompts)), greedy.GreedyTally(self._inputs.greedy_tokens, self._vocabulary)

        def compared(prompts: Sequence[Text]) -> list[greedy.Comparison | None]:
            name = f"greedy-{digest_of(prompts)[:16]}"
            kept = self._steps.get_json(name)
            if kept is None:
                found = tally.compare(self._candidate, self._reference, prompts)
                self._steps.put_json(name, [None if c is None else c.to_json() for c in found])
                return found
            return [None if c is None else greedy.Comparison.from_json(c) for c in kept]

        for comparison in chain.from_iterable(self._each(compared, batches(self._prompts, self._workers))):
            tally.count(comparison)
            tick("")
        return tally.checks()

    def _ids(self) -> np.ndarray:
        """Ids of all texts in a row; any ids serve where only execution is checked."""
        parts = [text.ids for text in self._texts] or [np.arange(self._vocabulary)]
        return np.concatenate(parts)

    def _ticks(self, stage: str, total: int) -> Callable[[str], None]:
        done = 0

        def tick(_: str) -> None:
            nonlocal done
            done += 1
            self._progress(stage, done, total)

        return tick
