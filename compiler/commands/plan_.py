"""`thinc plan`: what a compile of this model would cost and whether its budgets can be met, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import emit, human, json_flag, model_argument, recipe_from_flags, recipe_options


@click.command("plan")
@model_argument
@recipe_options
@click.option("--stats", "scores", type=click.Path(path_type=Path), help="Recorded scores (ART/attest/scores.json, or ART): adds the predicted KL.")
@json_flag
def command(model: Path, recipe_file: Path | None, scores: Path | None, as_json: bool, **flags: Any) -> None:
    """Show the ledger and the feasible range of every budget for MODEL; reads headers only."""
    from ..planning import plan_report

    report = plan_report(model, recipe_from_flags(recipe_file, **flags), scores)
    emit(as_json, report, _lines(report))


def _lines(report: dict[str, Any]) -> list[str]:
    mode = ", ".join(f"{key} {report[key]}" for key in ("context", "batch", "target"))
    lines = [f"{report['family']}: {report['parameters']:,} parameters, {mode}"]
    for name, (low, high) in report["feasible"].items():
        asked = report["budgets"].get(name)
        lines.append(f"{name:<15} {human(low)} .. {human(high)}" + (f", asked for {human(asked)}" if asked is not None else ""))
    for which in ("smallest", "as_stored", "chosen"):
        if which in report:
            ledger = report[which]
            parts = ", ".join(f"{k.removesuffix('_bytes')} {human(ledger[k])}" for k in ("resident_weight_bytes", "kv_bytes", "workspace_bytes"))
            device, encoded = human(ledger["total_device_bytes"]), human(ledger["encoded_weight_bytes"])
            lines.append(f"{which:<15} device {device} ({parts}), weights encoded {encoded}")
    if "predicted_kl" in report:
        lines.append(f"predicted KL    {report['predicted_kl']:.4g} nats per token")
    return lines
