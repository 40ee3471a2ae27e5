"""What `thinc plan` reports: ledgers and feasible ranges from headers, and an allocation where scores were recorded before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..artifacts import open_artifact
from ..artifacts.foreign import read_small
from ..schemas.errors import UsageError
from ..schemas.recipe import Recipe, limits_of
from ..schemas.scores import ScoreTable, decode_scores
from .prepare import Prepared, choose, feasible, prepare

MAX_SCORES = 64 << 20  # 0.2 KB per format of a group


def plan_report(model: Path, recipe: Recipe, scores: Path | None = None) -> dict[str, Any]:
    """JSON-ready figures. InfeasibleError when a budget can't be met; UsageError for scores of another graph."""
    prepared = prepare(model, recipe)
    report: dict[str, Any] = {
        "family": prepared.info.family,
        "architecture": prepared.info.architecture,
        "parameters": prepared.costs.logical_parameters,
        "context": prepared.recipe.context,
        "batch": prepared.recipe.batch,
        "target": prepared.recipe.target,
        "budgets": limits_of(prepared.recipe),
        "feasible": {name: list(span) for name, span in feasible(prepared).items()},
    }
    prepared.check()
    kinds = {"smallest": prepared.extreme(largest=False), "as_stored": prepared.lossless()}
    for name, encodings in kinds.items():
        kv_dtype = prepared.kv_choices()[-1 if name == "smallest" else 0]
        ledger = prepared.ledger(encodings, kv_dtype, prepared.memory(encodings, kv_dtype))
        report[name] = msgspec.to_builtins(ledger)
    if scores is not None:
        choice = choose(prepared, _recorded(prepared, scores))
        chosen = prepared.ledger(choice.allocation.encodings, choice.kv_dtype, choice.memory)
        report["chosen"] = msgspec.to_builtins(chosen)
        report["kv_dtype"] = choice.kv_dtype
        report["predicted_kl"] = choice.allocation.solve.objective
        report["encodings"] = choice.allocation.encodings
    return report


def _recorded(prepared: Prepared, path: Path) -> ScoreTable:
    """Scores from a file or an artifact's attest/, for exactly this graph's groups and options."""
    if path.suffix == ".json":
        raw = read_small(path, MAX_SCORES)
    else:
        raw = open_artifact(path).attest.read("scores.json")
    table = decode_scores(raw, str(path))
    wanted = [(g.params, [(o.format, o.encoded_bytes, o.resident_bytes) for o in g.options]) for g in prepared.costs.groups]
    if not table.scored or wanted != [(g.params, [(o.format, o.encoded_bytes, o.resident_bytes) for o in g.options]) for g in table.groups]:
        raise UsageError(f"{path}: these scores are of another model, target or list of candidates")
    return table
