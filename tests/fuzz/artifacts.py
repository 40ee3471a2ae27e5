"""Fuzz targets in artifacts: the parts that are parsed, and every byte of a folder or a packed file."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from .mutate import bytes_case
from .targets import Finding, Target, of_bytes, of_json


def artifact(work: Path) -> Path:
    """A tiny artifact, and a copy to damage."""
    import tiny_artifact

    if not (work / "good.thin").exists():
        tiny_artifact.build(work / "good.thin")
        shutil.copytree(work / "good.thin", work / "bad.thin")
    return work / "bad.thin"


def _manifest(work: Path) -> list[bytes]:
    return [(artifact(work) / "manifest.json").read_bytes()]


def _read_manifest(work: Path, case: bytes) -> object:
    from thinlm.artifacts import open_artifact

    (work / "bad.thin" / "manifest.json").write_bytes(case)
    return open_artifact(work / "bad.thin")


def _index(work: Path) -> list[bytes]:
    return [(artifact(work) / "pages.idx").read_bytes()]


def _read_index(work: Path, case: bytes) -> object:
    """The manifest is made to agree, so that the index itself is read."""
    from attacks.tamper import write_index
    from thinlm.artifacts import open_artifact

    write_index(work / "bad.thin", case)
    return open_artifact(work / "bad.thin")


def _small(name: str) -> Callable[[Path], list[bytes]]:
    return lambda work: [(artifact(work) / name).read_bytes()]


def _read_small(name: str) -> Callable[[Path, bytes], object]:
    """graph.json or plan.json, with everything else made to agree."""

    def read(work: Path, case: bytes) -> object:
        from attacks.tamper import seal
        from thinlm.artifacts import open_artifact
        from thinlm.runtime_min import graph_of, options_of

        (work / "bad.thin" / name).write_bytes(case)
        seal(work / "bad.thin")
        opened = open_artifact(work / "bad.thin")
        return graph_of(opened), options_of(opened)

    return read


def _files(work: Path) -> list[bytes]:
    """Every file of the folder as NAME, NUL, bytes."""
    folder = artifact(work)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [name.encode() + b"\0" + (folder / name).read_bytes() for name in names]


def _one_file(rng: random.Random, seeds: list[bytes]) -> bytes:
    name, _, data = rng.choice(seeds).partition(b"\0")
    return name + b"\0" + bytes_case(rng, [data])


def _read_folder(work: Path, case: bytes) -> None:
    """A changed byte anywhere must be noticed."""
    name, _, data = case.partition(b"\0")
    path = work / "bad.thin" / name.decode()
    good = (work / "good.thin" / name.decode()).read_bytes()
    try:
        path.write_bytes(data)
        _must_notice(work / "bad.thin", data != good)
    finally:
        path.write_bytes(good)


def _packed(work: Path) -> list[bytes]:
    from thinlm.artifacts import pack

    return [pack(artifact(work), work / "good.thin.zip", force=True).read_bytes()]


def _read_packed(work: Path, case: bytes) -> None:
    (work / "bad.thin.zip").write_bytes(case)
    _must_notice(work / "bad.thin.zip", case != (work / "good.thin.zip").read_bytes())


def _must_notice(path: Path, changed: bool) -> None:
    from thinlm.artifacts import verify_artifact

    errors = verify_artifact(path, threads=1)
    if changed and not errors:
        raise Finding("changed bytes pass verification")
    if errors:
        raise errors[0]


def _certificate(work: Path) -> list[bytes]:
    import tiny_compiled
    from thinlm.artifacts import open_artifact
    from thinlm.certify import certify, write_certificate

    path = work / "certified.thin"
    if not path.exists():
        made = tiny_compiled.build(work, name="making")
        certificate = certify(tiny_compiled.open_candidate(made), tiny_compiled.open_reference(), tiny_compiled.inputs(made))
        write_certificate(open_artifact(made), certificate)
        made.rename(path)
        (path / "attest").rename(work / "attest")
        (path / "attest").mkdir()
    return [file.read_bytes() for file in (work / "attest").iterdir()]


def _read_certificate(work: Path, case: bytes) -> object:
    """Under the name that its bytes ask for."""
    from thinlm.artifacts import open_artifact
    from thinlm.artifacts.attest import self_named
    from thinlm.artifacts.identity import sha256_hex
    from thinlm.certify import read_certificates, rejudge, summary

    path = work / "certified.thin" / "attest" / self_named("certificate-x.json", sha256_hex(case))
    path.write_bytes(case)
    try:
        found = read_certificates(open_artifact(work / "certified.thin"))
    finally:
        path.unlink()
    if len(found) != 1:
        raise Finding("the certificate was not read")
    return rejudge(found[0]), summary(found[0])


TARGETS: dict[str, Target] = {
    "manifest": Target(start=_manifest, make=of_json, read=_read_manifest),
    "index": Target(start=_index, make=of_bytes, read=_read_index),
    "graph": Target(start=_small("graph.json"), make=of_json, read=_read_small("graph.json")),
    "plan": Target(start=_small("plan.json"), make=of_json, read=_read_small("plan.json")),
    "artifact": Target(start=_files, make=_one_file, read=_read_folder),
    "packed": Target(start=_packed, make=of_bytes, read=_read_packed),
    "certificate": Target(start=_certificate, make=of_json, read=_read_certificate),
}
