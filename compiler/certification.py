"""Certify an artifact against its source: opens both, prepares texts and prompts, and runs `certify`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from ..artifacts import Artifact, open_artifact
from ..artifacts.work import NOTHING_KEPT, Work
from ..certify import CertifyInputs, Text, certify
from ..certify.data import load_documents, load_prompts
from ..certify.texts import Sample
from ..runtime_min import load_artifact, options_of
from ..runtime_min.chat import ChatTemplate, chat_ids
from ..runtime_min.devices import open_backend
from ..runtime_min.model import Model, ModelOptions
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.certificate import Certificate
from ..schemas.errors import InputError
from ..schemas.manifest import SourceInfo
from ..schemas.recipe import Gate
from ..schemas.texts import Document
from .claims import source_info
from .prepare import Prepared
from .progress import Progress, Tick
from .room import give_back

PROMPT_TIME = datetime(2025, 1, 1)  # what templates that tell the date are told, so that a certificate does not depend on its day


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions:
    """The artifact's public name, the device that is certified, and the gate (None: the recipe's that the artifact was made with).

    With a `spill` folder for unnamed files no model is held in anonymous memory; `max_ram` says how much the process may take; `work` keeps
    what was measured.
    """

    name: str
    device: str = "cpu"
    gate: Gate | None = None
    spill: Path | None = None
    max_ram: int | None = None
    work: Work = NOTHING_KEPT


def certify_artifact(artifact: Artifact, prepared: Prepared, progress: Progress, how: CertifyOptions) -> Certificate:
    """Measure `artifact` as read from disk against its source in float32; writes nothing. InputError when it has another source."""
    source = source_info(prepared)
    _require_source(artifact, prepared, source)
    tokenizer_files = prepared.source.tokenizer_files()
    tokenizer = Tokenizer.from_files(tokenizer_files)
    options = options_of(artifact)
    exact = ModelOptions(context=min(prepared.info.context_length, options.context), vocab=options.vocab)
    reference = Model(prepared.graph, prepared.source, open_backend("cpu", how.spill), exact)
    inputs = CertifyInputs(
        name=how.name,
        source=source,
        source_files=tokenizer_files,
        texts=tuple(_text(d, tokenizer) for d in load_documents("certification")),
        load=lambda: load_artifact(open_artifact(artifact.path), how.device, spill=how.spill),
        prompts=tuple(_prompts(tokenizer, tokenizer_files)),
        gate=how.gate or prepared.recipe.gate,
        size=Sample.of(prepared.recipe.certificate_tokens),
        claim=("text only: other parts of the source were dropped",) if prepared.source.dropped else (),
        max_ram=how.max_ram,
        work=how.work,
    )
    with progress.stage("certify", 5.0) as tick:
        return certify(load_artifact(artifact, how.device, spill=how.spill), reference, inputs, _stages(tick))


def _text(document: Document, tokenizer: Tokenizer) -> Text:
    return Text(document.id, document.domain, document.sha256, np.asarray(tokenizer.encode(document.text), np.int32))


def require_prompts(tokenizer: Tokenizer, files: dict[str, bytes]) -> None:
    """InputError, before the work and not after it, when a prompt of the certificate can't be told to the model."""
    for _ in _prompts(tokenizer, files):
        pass


def _prompts(tokenizer: Tokenizer, files: dict[str, bytes]) -> Iterable[Text]:
    """The shipped prompts as ids; chat prompts through the model's own template, as plain text where it has none."""
    template = ChatTemplate.find(files, tokenizer.special)
    for p in load_prompts():
        if p.kind == "chat" and template is not None:
            system = [{"role": "system", "content": p.system}] if p.system else []
            ids = chat_ids(tokenizer, template.render([*system, {"role": "user", "content": p.text}], now=PROMPT_TIME))
        else:
            ids = tokenizer.encode(p.text)
        yield Text(p.id, p.kind, hashlib.sha256(p.text.encode()).hexdigest(), np.asarray(ids, np.int32))


def _stages(tick: Tick):
    """Progress of the five stages of `certify`, each one unit; what a stage has freed is given back to the system."""
    done: dict[str, float] = {}

    def report(stage: str, count: int, total: int) -> None:
        share = count / max(1, total)
        tick(share - done.get(stage, 0.0))
        done[stage] = share
        if count >= total:
            give_back()

    return report


def _require_source(artifact: Artifact, prepared: Prepared, source: SourceInfo) -> None:
    expected = artifact.manifest.source.digest
    if source.digest != expected:
        what = f"digest {source.digest[:12]}..., expected {expected[:12]}..."
        raise InputError(f"{prepared.path}: is not the source of {artifact.path} ({what})")
