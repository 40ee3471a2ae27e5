"""Tools of the attacks: change one thing in a good artifact and make everything else agree again, so that only one rule can object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from thinlm.artifacts.identity import payload_root
from thinlm.artifacts.index import PageTable, parse_index
from thinlm.schemas.canonical import canonical_bytes

Change = Callable[[Any], object]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_bytes())


def edit(folder: Path, change: Change) -> None:
    """Change the manifest's JSON object in place; keep it canonical, and artifact_id its digest; touch nothing else."""
    value = manifest(folder)
    change(value)
    put_manifest(folder, canonical_bytes(value))


def put_manifest(folder: Path, data: bytes) -> None:
    """Other bytes for manifest.json, and their digest in artifact_id."""
    (folder / "manifest.json").write_bytes(data)
    (folder / "artifact_id").write_text(hashlib.sha256(data).hexdigest() + "\n")


def put(*path: str | int, to: object) -> Change:
    """A change that sets one field, by its path."""

    def change(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return change


def seal(folder: Path) -> None:
    """Sizes and digests of small files, and payload_root, as they now are on the disk."""

    def refresh(value: dict[str, Any]) -> None:
        for entry in (value["graph"], value["plan"], value["page_index"], *value["files"]):
            data = (folder / entry["path"]).read_bytes()
            entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        small = {entry["path"]: [bytes.fromhex(entry["sha256"])] for entry in (value["graph"], *value["files"])}
        value["payload_root"] = payload_root(small | table(folder).pieces())

    edit(folder, refresh)


def table(folder: Path) -> PageTable:
    return parse_index((folder / "pages.idx").read_bytes())


def edit_index(folder: Path, change: Callable[[np.ndarray, int], object]) -> None:
    """change(records, number of weight files) on a writable copy of the index, then seal."""
    old = table(folder)
    records = old.records.copy()
    change(records, len(old.files))
    write_index(folder, PageTable(old.files, records).to_bytes())
    if (records["file"] < len(old.files)).all():
        seal(folder)


def write_index(folder: Path, data: bytes) -> None:
    """Other bytes for pages.idx, and their size and digest in the manifest."""
    (folder / "pages.idx").write_bytes(data)
    edit(folder, lambda m: m["page_index"].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))


def rehash(folder: Path) -> None:
    """Digests of headers and pages as they now are on the disk, then seal."""

    def change(records: np.ndarray, _: int) -> None:
        for record in records:
            data = (folder / table(folder).files[record["file"]].path).read_bytes()
            piece = data[int(record["offset"]) : int(record["offset"] + record["length"])]
            record["sha256"] = np.frombuffer(hashlib.sha256(piece).digest(), np.uint8)

    edit_index(folder, change)


def poke(path: Path, at: int, data: bytes) -> None:
    """Overwrite bytes in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def grow(path: Path, size: int) -> None:
    """Make a file `size` bytes long without using the disk."""
    with open(path, "r+b") as file:
        file.truncate(size)
