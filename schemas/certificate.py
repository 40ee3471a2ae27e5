"""The certificate: what was measured on an artifact's packed bytes, against which bounds, and the verdict. An in-toto statement.

Its subject is the artifact_id; the predicate is for one backend and one execution mode. It holds no times and no host names: the same
artifact, source and machine class give the same bytes. Field names are settled; later versions only add fields with defaults.

A check is a number with the bound that it was judged by. `name` spells every parameter that changes the number
(`logits_cosine_raw[skip=16,window=512]`); `metric` is the key that thresholds use. A metric without a threshold is only reported.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .canonical import canonical_bytes, decode_canonical
from .kv import KVDtype
from .manifest import FileEntry

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:thinc:certificate:v1"
MAX_BYTES = 4 << 20

GateName = Literal["STRUCTURE", "CONFORMANCE", "FIDELITY"]
GATES: tuple[GateName, ...] = ("STRUCTURE", "CONFORMANCE", "FIDELITY")
Verdict = Literal["pass", "fail", "uncertified"]
Comparison = Literal["value>=", "value<=", "lower>=", "reported"]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Threshold(_Record, frozen=True, kw_only=True):
    """One row of a gate: `metric` must satisfy `comparison` with `bound`. `default` is the bound that ships; None where there is none (a budget)."""

    metric: str
    gate: GateName
    comparison: Comparison
    bound: float
    default: float | None
    reason: str
    date: str  # when the default was set

    @property
    def loosened(self) -> bool:
        """True when the bound is easier than the default."""
        if self.default is None:
            return False
        return self.bound > self.default if self.comparison.endswith("<=") else self.bound < self.default


class Check(_Record, frozen=True, kw_only=True):
    """One measured figure. `value` None: it could not be measured, and `detail` says why. [lower, upper] is its two-sided 95 % interval."""

    metric: str
    name: str
    value: float | None
    n: int  # what the figure is over: documents, positions, rows
    lower: float | None = None
    upper: float | None = None
    seed: int | None = None
    computed_from: dict[str, str] = {}  # what -> SHA-256, a key of the certificate's data, artifact or source
    detail: str = ""
    gate: GateName = "FIDELITY"
    comparison: Comparison = "reported"
    bound: float | None = None
    passed: bool = True
    miss: float | None = None  # by how much a failed check misses its bound; None when it passed or was not measured

    def __post_init__(self) -> None:
        """A count given as an integer is spelled like any other figure."""
        for field in ("value", "lower", "upper", "bound", "miss"):
            number = getattr(self, field)
            if number is not None:
                msgspec.structs.force_setattr(self, field, float(number))


class GateResult(_Record, frozen=True, kw_only=True):
    """The checks of one gate, and whether all of them passed."""

    gate: GateName
    passed: bool
    checks: tuple[Check, ...]


class Digest(_Record, frozen=True, kw_only=True):
    """A digest as in-toto spells it."""

    sha256: str


class Subject(_Record, frozen=True, kw_only=True):
    """What the statement is about."""

    name: str
    digest: Digest


class ArtifactRef(_Record, frozen=True, kw_only=True):
    """The artifact that was read back and measured."""

    artifact_id: str
    payload_root: str
    build_key: str


class SourceRef(_Record, frozen=True, kw_only=True):
    """The checkpoint that it was measured against."""

    digest: str
    files: tuple[FileEntry, ...]


class Mode(_Record, frozen=True, kw_only=True):
    """How the model was executed; the verdict holds for this mode only."""

    context: int
    batch: int
    kv_dtype: KVDtype
    block: int
    prefill_chunk: int


class DomainData(_Record, frozen=True, kw_only=True):
    """How much text of one domain was used."""

    domain: str
    documents: int
    tokens: int
    positions: int  # those that count: from `skip` on in every window


class Data(_Record, frozen=True, kw_only=True):
    """The texts. Digests are SHA-256; `calibration` is that of the text that the artifact was fitted on, empty for none."""

    documents: int
    documents_digest: str
    documents_unused: int  # shorter than `skip` tokens, or beyond the sample
    domains: tuple[DomainData, ...]
    window: int
    skip: int
    prompts: int
    prompts_digest: str
    calibration: str


class Device(_Record, frozen=True, kw_only=True):
    """The machine class that executed the model."""

    cpu: str
    threads: int
    libraries: dict[str, str]


class Predicate(_Record, frozen=True, kw_only=True):
    """The certificate proper. `claim` is for people: its first line says what the source is."""

    claim: tuple[str, ...]
    verdict: Verdict
    profile: Literal["default", "autofit"]  # autofit: below FIDELITY the verdict is "uncertified", not "fail"
    artifact: ArtifactRef
    source: SourceRef
    backend: str
    mode: Mode
    data: Data
    thresholds: tuple[Threshold, ...]
    loosened: tuple[str, ...]  # metrics whose bound is easier than the default
    gates: tuple[GateResult, ...]
    device: Device


class Certificate(_Record, frozen=True, kw_only=True):
    """An in-toto statement with a `Predicate`."""

    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type", default=STATEMENT)
    subject: tuple[Subject, ...]
    predicate_type: Literal["urn:thinc:certificate:v1"] = msgspec.field(name="predicateType", default=PREDICATE)
    predicate: Predicate


def encode_certificate(certificate: Certificate) -> bytes:
    """Canonical JSON."""
    return canonical_bytes(certificate)


def decode_certificate(data: bytes, *, where: str) -> Certificate:
    """The certificate behind canonical JSON; InputError naming `where` and the first thing that is wrong."""
    return decode_canonical(data, Certificate, where=where, max_bytes=MAX_BYTES)
