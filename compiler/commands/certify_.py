"""`thinc certify`: measure an artifact against its source again and write the certificate into attest/."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

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
    from ...schemas.recipe import read_recipe, recipe_from_dict
    from ..certification import CertifyOptions, certify_artifact
    from ..prepare import prepare
    from ..progress import for_terminal

    opened = open_artifact(artifact)
    opened.attest.require_folder()  # measuring takes minutes
    prepared = prepare(source, recipe_from_dict(opened.manifest.provenance.recipe, f"{artifact}: recipe"))
    how = CertifyOptions(name=artifact.name, device=device, gate=read_recipe(recipe_file).gate if recipe_file else None)
    certificate = certify_artifact(opened, prepared, for_terminal(quiet=as_json), how)
    where = write_certificate(opened, certificate)
    data = {"verdict": certificate.predicate.verdict, "attestation": where, "certificate": msgspec.to_builtins(certificate)}
    emit(as_json, data, [*summary(certificate), f"written to {artifact}/attest/{where}"])
    if certificate.predicate.verdict != "pass":
        raise GateError(f"{artifact}: verdict {certificate.predicate.verdict}")
