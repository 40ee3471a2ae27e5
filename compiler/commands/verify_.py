"""`thinc verify`: is every byte of an artifact what its manifest says? Exit 6 names each file or page that is not."""

from __future__ import annotations

from pathlib import Path

import click

from ...schemas.errors import ArtifactError
from .options import artifact_argument, emit, human, json_flag


@click.command("verify")
@artifact_argument
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Hashing threads.")
@json_flag
def command(artifact: Path, threads: int, as_json: bool) -> None:
    """Check every byte of ARTIFACT against its manifest (integrity, not quality)."""
    from ...artifacts import open_artifact, verify_artifact

    errors = verify_artifact(artifact, threads)
    if errors:
        rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ArtifactError(errors[0].code, str(errors[0]).removeprefix(f"{errors[0].code}: ") + rest)
    opened = open_artifact(artifact)
    size, pages = opened.bytes_on_disk, opened.manifest.page_index.pages
    data = {"artifact_id": opened.artifact_id, "payload_root": opened.identity, "bytes": size, "pages": pages}
    emit(as_json, data, [f"intact: {human(size)}, {pages} pages", f"artifact_id {opened.artifact_id}"])
