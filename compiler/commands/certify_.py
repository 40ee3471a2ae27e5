"""`thinc certify`: measure an artifact against its source again and write the certificate into attest/."""

from __future__ import annotations

from pathlib import Path

import click

from ...schemas.errors import GateError
from .options import artifact_argument, device_option, emit, json_flag


@click.command("certify")
@artifact_argument
@click.option("--source", required=True, type=click.Path(path_type=Path), help="The checkpoint that ARTIFACT was made from.")
@click.option("--recipe", "recipe_file", type=click.Path(path_type=Path), help="Recipe whose gate to use [the artifact's own].")
@device_option
@json_flag
def command(artifact: Path, source: Path, recipe_file: Path | None, device: str, as_json: bool) -> None:
    """Certify ARTIFACT against --source on --device; exit 4 when a gate fails."""
    from ...artifacts import open_artifact
    from ...certify import summary, write_certificate
    from ...schemas.canonical import canonical_bytes
    from ...schemas.recipe import read_recipe, recipe_from_dict
    from ..certification import certify_artifact, source_matches
    from ..driver import source_info
    from ..prepare import prepare
    from ..progress import for_terminal

    progress = for_terminal(quiet=as_json)
    opened = open_artifact(artifact)
    own = recipe_from_dict(opened.manifest.provenance.recipe, f"{artifact}: recipe")
    prepared = prepare(source, own)
    with progress.stage("hash source"):
        info = source_info(prepared)
    source_matches(opened, source, info)
    gate = read_recipe(recipe_file).gate if recipe_file else own.gate
    certificate = certify_artifact(opened, prepared, info, gate=gate, name=artifact.name, progress=progress, device=device)
    where = write_certificate(opened, certificate)
    import json

    data = {"verdict": certificate.predicate.verdict, "attestation": where, "certificate": json.loads(canonical_bytes(certificate))}
    emit(as_json, data, [*summary(certificate), f"written to {artifact}/attest/{where}"])
    if certificate.predicate.verdict != "pass":
        raise GateError(f"{artifact}: verdict {certificate.predicate.verdict}")
