"""What an artifact says about its origin: the source by digest, the key of all build inputs, model facts and provenance."""

from __future__ import annotations

from importlib import metadata

import msgspec

from ..artifacts.identity import build_key
from ..passes.calibrate import Stats
from ..passes.pipeline import PassRecord
from ..runtime_min.tokenizer import Tokenizer
from ..schemas.manifest import Claims, DroppedTensor, FileEntry, ModelInfo, PassEntry, Provenance, SourceInfo
from ..schemas.plan import Plan
from .ingredients import ingredients
from .prepare import Prepared


def source_info(prepared: Prepared) -> SourceInfo:
    """The checkpoint by its files' digests; reads every byte of it once."""
    folder, digests = prepared.source.folder, prepared.source.file_digests
    sizes = {name: file.size for name, file in folder.files.items()} | {"config.json": len(folder.config_bytes)}
    files = tuple(FileEntry(path=name, bytes=sizes[name], sha256=digest) for name, digest in sorted(digests.items()))
    return SourceInfo(kind="hf", name=prepared.path.resolve().name, digest=prepared.source.digest(), files=files)


def key_of(prepared: Prepared, calibration: str, recorded: Stats | None) -> str:
    """build_key: the same inputs give the same payload_root. Needs nothing that a compile computes.

    `calibration`: digest of the text that statistics are computed from, "" when none is read; `recorded`: statistics that are read instead.
    """
    return build_key(ingredients(prepared, calibration, recorded))


def model_facts(prepared: Prepared, tokenizer: Tokenizer) -> ModelInfo:
    """What the model is, for readers that don't parse the graph."""
    info, bos = prepared.info, tokenizer.bos_id
    return ModelInfo(
        family=info.family,
        architecture=info.architecture,
        layers=len({p.layer for p in prepared.graph.params if p.layer is not None}),
        parameters=prepared.costs.logical_parameters,
        vocab_size=info.vocab_size,
        tokenizer_vocab=min(tokenizer.vocab_size, info.vocab_size),
        context=info.context_length,
        eos_ids=tuple(sorted(i for i in {*info.eos_ids, *tokenizer.eos_ids} if i < info.vocab_size)),  # an id without a row never comes
        bos_id=bos if bos is not None and bos < info.vocab_size else None,
    )


def claims_of(prepared: Prepared, plan: Plan, model: ModelInfo, key: str, provenance: Provenance) -> Claims:
    """All that the writer can't see in the bytes."""
    return Claims(
        model=model,
        source=source_info(prepared),
        ledger=plan.ledger,
        provenance=provenance,
        build_key=key,
        dropped=tuple(DroppedTensor(name=name, reason="no part of the text model") for name in prepared.source.dropped),
    )


def provenance_of(prepared: Prepared, records: tuple[PassRecord, ...], calibration: str) -> Provenance:
    """How the artifact is made: tool, resolved recipe, passes, calibration text."""
    passes = tuple(PassEntry(name=r.name, numerics=r.numerics, options=r.options, digest=r.digest) for r in records)
    recipe = msgspec.to_builtins(prepared.recipe)
    return Provenance(tool="thinc", version=metadata.version("thinlm"), recipe=recipe, passes=passes, calibration=calibration)
