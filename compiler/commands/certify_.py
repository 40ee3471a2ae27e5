"""`thinc certify`: measure an artifact against its source again and write the certificate into attest/."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from ...schemas.errors import GateError
from .options import artifact_argument, device_option, emit, json_flag, max_ram_option


@click.command("certify")
@artifact_argument
@click.option("--source", required=True, type=click.Path(path_type=Path), help="The checkpoint that ARTIFACT was made from.")
@click.option("--recipe", "recipe_file", type=click.Path(path_type=Path), help="Recipe whose gate to use [the artifact's own].")
@device_option
@max_ram_option
@json_flag
def command(artifact: Path, source: Path, recipe_file: Path | None, device: str, max_ram: int | None, as_json: bool) -> None:
    """Certify ARTIFACT against --source on --device; exit 4 when a gate fails. What was measured is kept: stopped, it goes on when run again."""
    from ...artifacts import open_artifact
    from ...artifacts.target import CERTIFYING, hidden
    from ...artifacts.work import Work
    from ...certify import summary, write_certificate
    from ...schemas.recipe import read_recipe, recipe_from_dict
    from ..certification import CertifyOptions, certify_artifact
    from ..ingredients import toolchain
    from ..prepare import prepare
    from ..progress import for_terminal
    from ..room import room_for

    opened = open_artifact(artifact)
    opened.attest.require_folder()  # measuring takes minutes
    prepared = prepare(source, recipe_from_dict(opened.manifest.provenance.recipe, f"{artifact}: recipe"))
    path = artifact.resolve()
    room = room_for(prepared, max_ram, path.parent, searching=False)
    work = Work(hidden(path, CERTIFYING) if os.access(path.parent, os.W_OK) else None, toolchain())
    gate = read_recipe(recipe_file).gate if recipe_file else None
    how = CertifyOptions(name=artifact.name, device=device, gate=gate, spill=room.spill, max_ram=max_ram, work=work)
    certificate = certify_artifact(opened, prepared, for_terminal(quiet=as_json), how)
    where = write_certificate(opened, certificate)
    work.discard()
    data = {"verdict": certificate.predicate.verdict, "attestation": where, "certificate": msgspec.to_builtins(certificate)}
    emit(as_json, data, [*summary(certificate), f"written to {artifact}/attest/{where}"])
    if certificate.predicate.verdict != "pass":
        raise GateError(f"{artifact}: verdict {certificate.predicate.verdict}")
