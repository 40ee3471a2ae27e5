"""Pipelines: passes in order, checked, run, recorded; and their printed form, which parses back.

In: a verified graph and passes. Out: the new graph and one record per pass. Checked, with no switch to turn it off:
1. before anything runs: every required fact is a fact of the graph or ensured by an earlier pass (and not dropped since), and a bounded
   pass is only used where the caller states that a gate follows
2. after each pass: the verifier finds nothing, and every fact that the graph now claims holds
Both raise PassError, naming the pass, its step and all problems.

Printed form: `canonicalise,relayout{orders="identity"}`; options that equal their default are left out, values are JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import msgspec

from ..schemas.errors import PassError, UsageError
from ..schemas.graph import Graph
from ..schemas.text import print_graph
from ..schemas.verify import verify
from .assign_encodings import AssignEncodings
from .base import Pass
from .canonicalise import Canonicalise
from .facts import broken_facts
from .relayout import Orders, Relayout

PASSES: dict[str, type[Pass]] = {p.name: p for p in (Canonicalise, Relayout, AssignEncodings)}


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did; `ms` is for people, everything else is reproducible."""

    name: str
    numerics: str
    options: dict[str, Any]
    ms: float
    nodes_before: int
    nodes_after: int
    digest: str  # SHA-256 of the canonical text of the graph after it


def import_pipeline(orders: Orders = "identity") -> tuple[Pass, ...]:
    """Source graph -> the graph that is calibrated, scored and compared with a fresh import."""
    return Canonicalise(), Relayout(orders)


def encode_pipeline(encodings: Mapping[str, str]) -> tuple[Pass, ...]:
    """That graph -> the graph that is shipped; ends in a gate."""
    return (AssignEncodings(tuple(sorted(encodings.items()))),)


def run_pipeline(graph: Graph, passes: Sequence[Pass], *, gated: bool = False) -> tuple[Graph, tuple[PassRecord, ...]]:
    """Run `passes` on `graph`; `gated` says that the stage ends with a certify gate. PassError as the module docstring says."""
    check_order(graph, passes, gated=gated)
    records = []
    for step, one in enumerate(passes):
        start, before = time.perf_counter(), len(graph.nodes)
        after = one.run(graph)
        graph = replace(after, facts=tuple(sorted((set(after.facts) - one.drops) | one.ensures)))
        if problems := verify(graph) or broken_facts(graph):
            earlier = [p.name for p in passes[:step]]
            raise PassError(f"after {one.name} (step {step}; before it: {earlier}): {'; '.join(problems)}")
        digest = hashlib.sha256(print_graph(graph).encode()).hexdigest()
        ms = (time.perf_counter() - start) * 1e3
        records.append(PassRecord(one.name, one.numerics, options_of(one), ms, before, len(graph.nodes), digest))
    return graph, tuple(records)


def check_order(graph: Graph, passes: Sequence[Pass], *, gated: bool) -> None:
    """PassError where a pass requires what nothing ensures, or is bounded without a gate."""
    facts = set(graph.facts)
    for step, one in enumerate(passes):
        if missing := sorted(one.requires - facts):
            raise PassError(f"{one.name} (step {step}) requires {missing}; the graph has {sorted(facts)} and no earlier pass ensures it")
        if one.numerics == "bounded" and not gated:
            raise PassError(f"{one.name} (step {step}) is bounded and may only run in a stage that ends with a gate")
        facts = (facts - one.drops) | one.ensures


def options_of(one: Pass) -> dict[str, Any]:
    """The pass's options that differ from their defaults, as JSON values."""
    values = {f.name: getattr(one, f.name) for f in fields(one)}  # pyright: ignore[reportArgumentType]
    defaults = {f.name: f.default for f in fields(one)}  # pyright: ignore[reportArgumentType]
    return {k: msgspec.to_builtins(v) for k, v in values.items() if defaults[k] is MISSING or v != defaults[k]}


def print_pipeline(passes: Sequence[Pass]) -> str:
    """The printed form."""
    parts = []
    for one in passes:
        options = " ".join(f"{k}={json.dumps(v, separators=(',', ':'))}" for k, v in options_of(one).items())
        parts.append(one.name + (f"{{{options}}}" if options else ""))
    return ",".join(parts)


_NAME = re.compile(r"[a-z][a-z-]*")
_KEY = re.compile(r" ?([a-z_]+)=")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes that `text` prints; UsageError where it is none."""
    passes: list[Pass] = []
    at = 0
    while at < len(text) or not passes:
        match = _NAME.match(text, at)
        if match is None or match[0] not in PASSES:
            raise UsageError(f"pipeline: no pass at {text[at : at + 30]!r}; passes are {', '.join(PASSES)}")
        options, at = _options(text, match.end())
        passes.append(_build(PASSES[match[0]], options))
        if at < len(text):
            if text[at] != "," or at + 1 == len(text):
                raise UsageError(f"pipeline: expected a comma and a pass at {text[at : at + 30]!r}")
            at += 1
    return tuple(passes)


def _options(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Options in braces at `at`, if any, and where they end."""
    options: dict[str, Any] = {}
    if at >= len(text) or text[at] != "{":
        return options, at
    at += 1
    while at < len(text) and text[at] != "}":
        key = _KEY.match(text, at)
        if key is None or key[1] in options:
            raise UsageError(f"pipeline: expected a new option at {text[at : at + 30]!r}")
        try:
            options[key[1]], at = json.JSONDecoder().raw_decode(text, key.end())
        except ValueError as e:
            raise UsageError(f"pipeline: option {key[1]}: {e}") from e
    if at >= len(text):
        raise UsageError("pipeline: a brace is not closed")
    return options, at + 1


def _build(kind: type[Pass], options: dict[str, Any]) -> Pass:
    known = set(kind.__dataclass_fields__)
    if unknown := sorted(set(options) - known):
        raise UsageError(f"pipeline: {kind.name} has no option {unknown[0]}; it has {sorted(known) or 'none'}")
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as e:
        raise UsageError(f"pipeline: {kind.name}: {e}") from e
