"""`thinc pack`: NAME.thin becomes one file, NAME.thin.zip, that the runtime maps as it is."""

from __future__ import annotations

from pathlib import Path

import click

from .options import artifact_argument, emit, force_flag, human, json_flag, output_option


@click.command("pack")
@artifact_argument
@output_option
@force_flag
@json_flag
def command(artifact: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Pack the folder ARTIFACT into one store-only ZIP file."""
    from ...artifacts import pack

    target = pack(artifact, output, force=force)
    emit(as_json, {"path": str(target), "bytes": target.stat().st_size}, [f"{target}: {human(target.stat().st_size)}"])
