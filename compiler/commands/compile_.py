"""`thinc compile`: a checkpoint becomes a certified artifact within its budgets. Exit 4 when the artifact falls below its gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...schemas.errors import GateError
from .options import emit, force_flag, human, json_flag, max_ram_option, model_argument, output_option, recipe_from_flags, recipe_options


@click.command("compile")
@model_argument
@recipe_options
@output_option
@click.option("--calibration", type=click.Path(path_type=Path), help="Own calibration text: .txt, .jsonl or a folder [shipped text].")
@click.option("--stats", type=click.Path(path_type=Path), help="Recorded calibration statistics instead of calibrating.")
@click.option("--save-stats", type=click.Path(path_type=Path), help="Record the calibration statistics here (.npz).")
@click.option("--resume", is_flag=True, help="Go on where an earlier compile of this target was stopped.")
@max_ram_option
@click.option("--no-certify", is_flag=True, help="Leave the artifact uncertified (needs --allow-uncertified).")
@click.option("--allow-uncertified", is_flag=True, help="Exit 0 although the artifact has no passing certificate.")
@force_flag
@json_flag
def command(model: Path, output: Path | None, allow_uncertified: bool, as_json: bool, recipe_file: Path | None, **flags: Any) -> None:
    """Compile MODEL (a Hugging Face folder) under byte budgets into NAME.thin, and certify what was written."""
    from ..driver import Job, compile_model
    from ..progress import for_terminal

    how = {name: flags.pop(name) for name in ("calibration", "stats", "save_stats", "resume", "force", "max_ram")}
    no_certify = flags.pop("no_certify")
    recipe = recipe_from_flags(recipe_file, **flags)
    target = output or Path(f"{model.resolve().name}.thin")
    job = Job(model=model, output=target, recipe=recipe, certify=not no_certify, **how)
    outcome = compile_model(job, for_terminal(quiet=as_json))
    ledger, artifact = outcome.artifact.manifest.ledger, outcome.artifact
    rate = 8 * ledger.encoded_weight_bytes / ledger.logical_parameters
    data = {
        "path": str(outcome.path),
        "artifact_id": artifact.artifact_id,
        "payload_root": artifact.identity,
        "verdict": outcome.verdict,
        "bytes": artifact.bytes_on_disk,
        "bits_per_weight": round(rate, 4),
        "total_device_bytes": ledger.total_device_bytes,
        "seconds": {name: round(s, 2) for name, s in outcome.seconds.items()},
    }
    sizes = f"weights {human(ledger.encoded_weight_bytes)} ({rate:.2f} bits each), device {human(ledger.total_device_bytes)}"
    times = ", ".join(f"{name} {s:.1f} s" for name, s in outcome.seconds.items() if s >= 0.05)
    emit(as_json, data, [f"{outcome.path}: {sizes}, files {human(artifact.bytes_on_disk)}", *outcome.lines(), times])
    if outcome.verdict != "pass" and not (allow_uncertified and outcome.verdict == "uncertified"):
        raise GateError(f"{outcome.path}: verdict {outcome.verdict}; " + _advice(outcome.verdict))


def _advice(verdict: str) -> str:
    if verdict == "fail":
        return "the certificate says by how much; give more bytes, or a recipe with a looser gate"
    return "pass --allow-uncertified to accept that, or `thinc certify` it"
