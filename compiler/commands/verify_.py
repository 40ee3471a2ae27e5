"""`thinc verify`: is every byte of an artifact what was written? Exit 6 names the first file or page that is not, and counts the others."""

from __future__ import annotations

from pathlib import Path

import click

from ...schemas.errors import ArtifactError
from .options import artifact_argument, emit, human, json_flag


@click.command("verify")
@artifact_argument
@click.option("--threads", type=click.IntRange(1), help="Hashing threads [one per core].")
@json_flag
def command(artifact: Path, threads: int | None, as_json: bool) -> None:
    """Check every byte of ARTIFACT, folder or packed (integrity, not quality).

    Covered: the manifest (by artifact_id), graph, plan, page index, tokenizer files, every page with its padding, attestations, and in
    a packed file all headers and CRCs. Not covered: whether an attestation was removed, and who made the artifact; compare artifact_id for that.
    """
    from ...artifacts import open_artifact
    from ...artifacts.verify import verify_open

    opened = open_artifact(artifact)
    if errors := verify_open(opened, threads):
        rest = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise ArtifactError(errors[0].code, str(errors[0]).removeprefix(f"{errors[0].code}: ") + rest)
    size, pages = opened.bytes_on_disk, opened.manifest.page_index.pages
    data = {"artifact_id": opened.artifact_id, "payload_root": opened.identity, "bytes": size, "pages": pages}
    emit(as_json, data, [f"intact: {human(size)}, {pages} pages", f"artifact_id {opened.artifact_id}"])
