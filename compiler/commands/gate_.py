"""`thinc gate`: does an artifact carry a passing certificate for this device? Judged again from the recorded figures; exit 4 if not."""

from __future__ import annotations

from pathlib import Path

import click

from ...schemas.errors import GateError
from .options import artifact_argument, device_option, emit, json_flag


@click.command("gate")
@artifact_argument
@click.option("--recipe", "recipe_file", type=click.Path(path_type=Path), help="Judge by this recipe's gate [the recorded thresholds].")
@device_option
@json_flag
def command(artifact: Path, recipe_file: Path | None, device: str, as_json: bool) -> None:
    """Fail (exit 4) unless ARTIFACT's certificate passes; reads no weights and needs no source."""
    from ...artifacts import open_artifact
    from ...certify import summary
    from ..trust import judged

    opened = open_artifact(artifact)
    verdict, reason, certificate = judged(opened, device, recipe_file)
    data = {"artifact_id": opened.artifact_id, "verdict": verdict, "reason": reason}
    emit(as_json, data, summary(certificate) if certificate else [f"{verdict.upper()}  {reason}"])
    if verdict != "pass":
        raise GateError(f"{artifact}: {reason}")
