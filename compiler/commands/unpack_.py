"""`thinc unpack`: NAME.thin.zip becomes the folder NAME.thin."""

from __future__ import annotations

from pathlib import Path

import click

from ...schemas.errors import UsageError
from .options import artifact_argument, emit, force_flag, json_flag, output_option


@click.command("unpack")
@artifact_argument
@output_option
@force_flag
@json_flag
def command(artifact: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Unpack the file ARTIFACT into a folder."""
    from ...artifacts import unpack

    if output is None and artifact.suffix != ".zip":
        raise UsageError(f"{artifact}: is not named *.zip, so say where to unpack it with -o FOLDER")
    target = unpack(artifact, output, force=force)
    emit(as_json, {"path": str(target)}, [str(target)])
