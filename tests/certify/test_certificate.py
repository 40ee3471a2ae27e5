"""Certificates on the disk: what they hold, that they read back, and that edited, moved or loosened ones are refused, each with its code."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from thinlm.artifacts.attest import plain_name
from thinlm.certify import certify, read_certificates, rejudge, standing_of, summary, thresholds, write_certificate
from thinlm.certify.certificate import file_name
from thinlm.runtime_min import open_artifact, options_of
from thinlm.schemas.canonical import canonical_bytes
from thinlm.schemas.certificate import Certificate, decode_certificate, encode_certificate
from thinlm.schemas.errors import ArtifactError, InputError
from thinlm.schemas.recipe import Gate
from tiny_compiled import CONTEXT, DIGEST, Recipe, build, inputs, open_candidate, open_reference


def make(path: Path, **changes: Any) -> Certificate:
    return certify(open_candidate(path), open_reference(), inputs(path, **changes))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with its certificate."""
    found = build(tmp_path_factory.mktemp("certified"))
    write_certificate(open_artifact(found), make(found, claim=("text only",)))
    return found


@pytest.fixture(scope="module")
def certificate(path: Path) -> Certificate:
    return read_certificates(open_artifact(path))[0]


def test_it_says_what_it_is_about(path: Path, certificate: Certificate) -> None:
    artifact, p = open_artifact(path), certificate.predicate
    assert [(s.name, s.digest.sha256) for s in certificate.subject] == [("tiny.thin", artifact.artifact_id)]
    assert p.claim == ("source: stored checkpoint decoded exactly to float32", "text only")
    assert (p.verdict, p.backend, p.profile, p.source.digest, p.loosened) == ("pass", "torch_cpu", "default", DIGEST, ())
    assert (p.mode.context, p.mode.batch, p.mode.kv_dtype, p.mode.block) == (CONTEXT, 1, "f32", 8)
    assert (p.data.documents, p.data.documents_unused, p.data.prompts, p.data.window) == (8, 4, 8, CONTEXT)
    assert {d.domain: d.documents for d in p.data.domains} == {"code": 4, "prose": 4}
    assert set(p.device.libraries) == {"python", "numpy", "torch"}
    origins = {c.metric: set(c.computed_from) for g in p.gates for c in g.checks}
    assert origins["row_error_ratio"] == {"artifact", "source"}
    assert origins["kl"] == {"artifact", "source", "documents"}
    assert origins["greedy"] == {"artifact", "source", "prompts"}
    assert all(c.computed_from["artifact"] == artifact.artifact_id for g in p.gates for c in g.checks)


def test_it_holds_no_time_place_or_host(path: Path) -> None:
    text = (path / "attest" / open_artifact(path).attest.names()[0]).read_text()
    assert str(path.parent) not in text
    assert platform.node() not in text
    dates = set(re.findall(r"20\d\d-\d\d-\d\d", text))
    assert dates == {row.date for row in thresholds()}, "only when the thresholds were set"


def test_it_is_made_again_bit_for_bit(path: Path, certificate: Certificate) -> None:
    assert encode_certificate(make(path, claim=("text only",))) == encode_certificate(certificate)


def test_form(path: Path, certificate: Certificate) -> None:
    raw = open_artifact(path).attest.read(file_name(certificate))
    assert decode_certificate(raw, where="x") == certificate
    assert encode_certificate(certificate) == raw
    assert json.loads(raw)["_type"] == "https://in-toto.io/Statement/v1"
    with pytest.raises(InputError, match="x: not canonical"):
        decode_certificate(raw + b"\n", where="x")


def fields(kind: type[msgspec.Struct]) -> str:
    return " ".join(f.encode_name for f in msgspec.structs.fields(kind))


def test_field_names_are_settled() -> None:
    """Later versions only add names, with defaults: a change to this test is a change of the format."""
    from thinlm.schemas import certificate as c

    assert fields(c.Certificate) == "_type subject predicateType predicate"
    assert fields(c.Predicate) == "claim verdict profile artifact source backend mode data thresholds loosened gates device"
    assert fields(c.Check) == "metric name value n lower upper seed computed_from detail gate comparison bound passed miss"
    assert fields(c.GateResult) == "gate passed checks"
    assert fields(c.Threshold) == "metric gate comparison bound default reason date"
    assert fields(c.Mode) == "context batch kv_dtype block prefill_chunk"
    assert fields(c.Data) == "documents documents_digest documents_unused domains window skip prompts prompts_digest calibration"
    assert fields(c.DomainData) == "domain documents tokens positions"
    assert fields(c.Device) == "cpu threads libraries"
    assert fields(c.ArtifactRef) == "artifact_id payload_root build_key"
    assert fields(c.SourceRef) == "digest files"


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def apply(raw: bytes) -> bytes:
        value = json.loads(raw)
        change(value["predicate"])
        return canonical_bytes(value)

    return apply


def check(p: dict[str, Any], metric: str) -> dict[str, Any]:
    return next(c for g in p["gates"] for c in g["checks"] if c["metric"] == metric)


def set_threshold(p: dict[str, Any], metric: str, **values: Any) -> None:
    next(t for t in p["thresholds"] if t["metric"] == metric).update(values)


def drop_metric(p: dict[str, Any]) -> None:
    p["thresholds"] = [t for t in p["thresholds"] if t["metric"] != "kl"]
    for c in (c for g in p["gates"] for c in g["checks"] if c["metric"] == "kl"):
        c.update(comparison="reported", bound=None, passed=True, miss=None)


EDITS = {
    "verdict": (edit(lambda p: p.update(verdict="fail")), "C-03", "it says fail, its figures say pass"),
    "figure beyond its bound": (edit(lambda p: check(p, "kl").update(value=0.9)), "C-03", "says pass, its figures say fail"),
    "bound of a check": (edit(lambda p: check(p, "kl").update(bound=0.9)), "C-03", "not judged by its own thresholds"),
    "threshold moved": (edit(lambda p: set_threshold(p, "kl", bound=0.9)), "C-03", "not judged by its own thresholds"),
    "loosened but not said": (
        edit(lambda p: (set_threshold(p, "kl", bound=0.9), check(p, "kl").update(bound=0.9))),  # type: ignore[func-returns-value]
        "C-03",
        "the thresholds that it calls loosened",
    ),
    "metric left out": (edit(drop_metric), "C-04", "no threshold for kl"),
    "two thresholds": (edit(lambda p: p["thresholds"].append(p["thresholds"][0])), "C-03", "two thresholds of one metric"),
    "artifact": (edit(lambda p: p["artifact"].update(artifact_id="00" * 32)), "C-02", "is about artifact"),
    "unknown field": (edit(lambda p: p.update(extra=1)), "C-01", "unknown field `extra`"),
    "field left out": (edit(lambda p: p.pop("mode")), "C-01", "missing required field `mode`"),
    "not canonical": (lambda raw: raw + b" ", "C-01", "not canonical"),
    "no JSON": (lambda raw: raw[:-1], "C-01", "not JSON"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_certificates_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    change, code, message = EDITS[name]
    copy = tmp_path / "copy.thin"
    shutil.copytree(path, copy)
    attest = open_artifact(copy).attest
    (stored,) = attest.names()
    attest.add(plain_name(stored), change(attest.read(stored)))
    with pytest.raises(ArtifactError, match=message) as refused:
        read_certificates(open_artifact(copy))
    assert refused.value.code == code


def test_an_edited_certificate_under_its_old_name_is_refused(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.thin"
    shutil.copytree(path, copy)
    file = next((copy / "attest").iterdir())
    file.write_bytes(file.read_bytes().replace(b'"pass"', b'"fail"'))
    with pytest.raises(ArtifactError, match="A-22"):
        read_certificates(open_artifact(copy))


def test_of_two_certificates_for_one_mode_the_worse_counts(path: Path, certificate: Certificate, tmp_path: Path) -> None:
    """As after a crash between writing the new one and removing the old one."""
    gates = tuple(msgspec.structs.replace(g, passed=False) for g in certificate.predicate.gates)
    for worse in (0, 1):
        found = [certificate, certificate]
        found[worse] = msgspec.structs.replace(certificate, predicate=msgspec.structs.replace(certificate.predicate, verdict="fail", gates=gates))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("thinlm.certify.certificate.read_certificates", lambda _, found=found: tuple(found))
            artifact = open_artifact(path)
            assert standing_of(artifact, "torch_cpu", options_of(artifact)).verdict == "fail"


def test_a_certificate_of_another_artifact_is_refused(path: Path, certificate: Certificate, tmp_path: Path) -> None:
    other = build(tmp_path, Recipe(predicted=1 << 20))
    with pytest.raises(ArtifactError, match="C-02"):
        write_certificate(open_artifact(other), certificate)
    shutil.copytree(path / "attest", other / "attest")
    with pytest.raises(ArtifactError, match="C-02"):
        read_certificates(open_artifact(other))


def test_standing(path: Path, certificate: Certificate) -> None:
    artifact = open_artifact(path)
    options = options_of(artifact)
    found = standing_of(artifact, "torch_cpu", options)
    assert (found.verdict, found.certificate) == ("pass", certificate)
    for backend, mode in (("vulkan", options), ("torch_cpu", replace(options, context=CONTEXT - 1))):
        missing = standing_of(artifact, backend, mode)
        assert (missing.verdict, missing.certificate) == ("none", None)
        assert f"there are: torch_cpu context {CONTEXT}" in missing.reason


def test_failing_and_loosened_certificates(tmp_path: Path) -> None:
    coarse = build(tmp_path, Recipe(matrices="int4-sym-g32/1"))
    artifact = open_artifact(coarse)
    assert standing_of(artifact, "torch_cpu", options_of(artifact)).reason.startswith("no certificate for torch_cpu")
    failing = make(coarse)
    name = write_certificate(artifact, failing)
    found = standing_of(artifact, "torch_cpu", options_of(artifact))
    assert found.verdict == "fail"
    assert "logits_cosine_raw[mean" in found.reason
    text = "\n".join(summary(failing))
    assert text.startswith("FAIL  tiny.thin  torch_cpu, context 48, batch 1, KV f32")
    kl = next(c for g in failing.predicate.gates for c in g.checks if c.metric == "kl")
    assert kl.value is not None
    assert kl.name == "kl[mean,interval=t+bootstrap-t:1000,skip=16,window=48,tokens=512,documents=8]"
    assert f"    {kl.name}: {kl.value:.6g}, must be <= 0.05, misses it by {kl.value - 0.05:.3g}" in text

    loose = Gate(logits_cosine_raw=-1, logits_cosine_centred=-1, worst_domain=-1, p01=-1, kl=99, top1=0, greedy=0)
    gates, verdict = rejudge(failing, thresholds(loose))
    assert (verdict, [g.passed for g in gates]) == ("pass", [True, True, True])
    passing = make(coarse, gate=loose)
    assert passing.predicate.verdict == "pass"
    assert passing.predicate.loosened == tuple(r.metric for r in thresholds() if r.gate == "FIDELITY")
    assert summary(passing)[-1].startswith("  thresholds looser than the default: logits_cosine_raw")
    assert plain_name(write_certificate(artifact, passing)) == plain_name(name), "one certificate per backend and mode"
    assert [c.predicate.verdict for c in read_certificates(artifact)] == ["pass"]
    assert rejudge(passing, thresholds())[1] == "fail", "the default gate is not fooled"
    assert make(coarse, profile="autofit").predicate.verdict == "uncertified"
