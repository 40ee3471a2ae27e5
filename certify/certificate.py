"""Certificates in attest/: written, read back, judged again, summed up. A stored verdict is never believed.

`read_certificates` refuses (ArtifactError) what can't be relied on:
  C-01  not canonical JSON of the schema, or not one subject
  C-02  made for another artifact: subject, artifact_id, payload_root or build_key differ
  C-03  not supported by its own figures: bounds, misses, gates, verdict or `loosened` are not what judging them again gives
  C-04  a gate left out: a metric of the table has no threshold
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..artifacts.reader import Artifact
from ..runtime_min.model import ModelOptions
from ..schemas.canonical import canonical_bytes
from ..schemas.certificate import Certificate, Check, GateResult, Mode, Threshold, Verdict, decode_certificate, encode_certificate
from ..schemas.errors import ArtifactError, InputError
from .gate import evidence_of, judge, moved, required_metrics, verdict_of

PREFIX, SUFFIX = "certificate-", ".json"


@dataclass(frozen=True, slots=True)
class Standing:
    """What an artifact's certificates say about one backend and mode: "none" without one, and why in words."""

    verdict: Verdict | str
    reason: str
    certificate: Certificate | None = None


def mode_of(options: ModelOptions) -> Mode:
    """The execution mode that `options` describe."""
    return Mode(
        context=options.context,
        batch=options.batch,
        kv_dtype=options.kv_dtype or "f32",
        block=options.block,
        prefill_chunk=options.prefill_chunk,
    )


def file_name(certificate: Certificate) -> str:
    """Its name below attest/: one per backend and mode."""
    predicate = certificate.predicate
    digest = hashlib.sha256(canonical_bytes(predicate.mode)).hexdigest()
    return f"{PREFIX}{predicate.backend}-{digest[:12]}{SUFFIX}"


def write_certificate(artifact: Artifact, certificate: Certificate) -> str:
    """Write or replace the certificate of its backend and mode; returns its name below attest/. Refused: one of another artifact (C-02)."""
    _require_subject(artifact, certificate, "this certificate")
    name = file_name(certificate)
    return artifact.attest.add(name, encode_certificate(certificate))


def read_certificates(artifact: Artifact) -> tuple[Certificate, ...]:
    """All certificates of an artifact, each judged again; ArtifactError C-01 to C-04."""
    names = [n for n in artifact.attest.names() if n.startswith(PREFIX) and n.endswith(SUFFIX)]
    return tuple(read_certificate(artifact, name) for name in names)


def read_certificate(artifact: Artifact, name: str) -> Certificate:
    """One certificate by its name below attest/."""
    where = f"{artifact.path}: attest/{name}"
    try:
        certificate = decode_certificate(artifact.attest.read(name), where=where)
    except InputError as e:
        raise ArtifactError("C-01", str(e)) from e
    _require_subject(artifact, certificate, where)
    if problem := contradiction(certificate):
        raise ArtifactError("C-03", f"{where}: {problem}")
    if missing := required_metrics() - {row.metric for row in certificate.predicate.thresholds}:
        raise ArtifactError("C-04", f"{where}: no threshold for {', '.join(sorted(missing))}")
    return certificate


def rejudge(certificate: Certificate, rows: Sequence[Threshold] | None = None) -> tuple[tuple[GateResult, ...], Verdict]:
    """Gates and verdict from the recorded figures, by the recorded thresholds or by `rows`."""
    predicate = certificate.predicate
    gates = judge(evidence_of(predicate.gates), predicate.thresholds if rows is None else rows)
    return gates, verdict_of(gates, predicate.profile)


def contradiction(certificate: Certificate) -> str:
    """What a certificate says that its figures don't support; empty when nothing is wrong."""
    predicate = certificate.predicate
    try:
        gates, verdict = rejudge(certificate)
    except ValueError as e:
        return str(e)
    if verdict != predicate.verdict:
        return f"it says {predicate.verdict}, its figures say {verdict}"
    if gates != predicate.gates:
        return "its checks are not judged by its own thresholds"
    if strange := moved(predicate.thresholds):
        return f"its thresholds for {', '.join(strange)} are none that thinc sets"
    if predicate.loosened != loosened(predicate.thresholds):
        return "the thresholds that it calls loosened are not those that are"
    return ""


def loosened(rows: Sequence[Threshold]) -> tuple[str, ...]:
    """Metrics whose bound is easier than the default."""
    return tuple(row.metric for row in rows if row.loosened)


def standing_of(artifact: Artifact, backend: str, options: ModelOptions) -> Standing:
    """The certificate for `backend` and exactly this mode."""
    mode, found = mode_of(options), read_certificates(artifact)
    same = [c for c in found if c.predicate.backend == backend and c.predicate.mode == mode]
    mine = min(same, key=lambda c: c.predicate.verdict == "pass", default=None)  # a crash may leave two: the worse one counts
    if mine is None:
        others = ", ".join(sorted({f"{c.predicate.backend} {_mode_text(c.predicate.mode)}" for c in found}))
        reason = f"no certificate for {backend}, {_mode_text(mode)}" + (f"; there are: {others}" if others else "")
        return Standing("none", reason)
    verdict = mine.predicate.verdict
    failed = [check.name for check in failures(mine)]
    reason = f"certified for {backend}" if verdict == "pass" else f"its certificate says {verdict}: {', '.join(failed[:3])}"
    return Standing(verdict, reason, mine)


def failures(certificate: Certificate) -> Iterator[Check]:
    """The checks that failed, in gate order."""
    return (check for gate in certificate.predicate.gates for check in gate.checks if not check.passed)


def summary(certificate: Certificate) -> list[str]:
    """Lines for a terminal: verdict, what it is about, each gate, each failed check with value, bound and miss, loosened thresholds."""
    p = certificate.predicate
    lines = [f"{p.verdict.upper()}  {certificate.subject[0].name}  {p.backend}, {_mode_text(p.mode)}", *(f"  {line}" for line in p.claim)]
    for gate in p.gates:
        judged = [check for check in gate.checks if check.comparison != "reported"]
        passed = sum(check.passed for check in judged)
        lines.append(f"  {gate.gate:<12} {'pass' if gate.passed else 'FAIL'}  {passed} of {len(judged)} checks")
        lines += [f"    {_failure(check)}" for check in judged if not check.passed]
    if p.loosened:
        lines.append(f"  thresholds looser than the default: {', '.join(p.loosened)}")
    return lines


def _failure(check: Check) -> str:
    figure = check.lower if check.comparison.startswith("lower") else check.value
    side = "lower 95 % bound " if check.comparison.startswith("lower") else ""
    detail = f" ({check.detail})" if check.detail else ""
    if figure is None:
        return f"{check.name}: not measured{detail}"
    return f"{check.name}: {side}{figure:.6g}, must be {check.comparison[-2:]} {check.bound:.6g}, misses it by {check.miss:.3g}{detail}"


def _mode_text(mode: Mode) -> str:
    return f"context {mode.context}, batch {mode.batch}, KV {mode.kv_dtype}"


def _require_subject(artifact: Artifact, certificate: Certificate, where: str) -> None:
    if len(certificate.subject) != 1:
        raise ArtifactError("C-01", f"{where}: {len(certificate.subject)} subjects, expected one")
    ref, manifest = certificate.predicate.artifact, artifact.manifest
    told = (certificate.subject[0].digest.sha256, ref.artifact_id, ref.payload_root, ref.build_key)
    if told != (artifact.artifact_id, artifact.artifact_id, manifest.payload_root, manifest.build_key):
        raise ArtifactError("C-02", f"{where} is about artifact {told[0][:16]}, this is {artifact.artifact_id[:16]}")
