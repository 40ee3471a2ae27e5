"""The rules of SPEC.md about the manifest and the set of files, one function per rule; check_pages.py has those about pages.

In: a store and what was parsed so far. Out: nothing, or the parsed object. Each function raises ArtifactError with its own code only.
None of them reads a weight; together they cost the small files and the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..schemas.canonical import as_struct, parse_canonical
from ..schemas.errors import ArtifactError, InputError
from ..schemas.graph import DTYPES
from ..schemas.manifest import FEATURES, SCHEMA, FileEntry, Manifest
from .formats import FORMATS
from .identity import artifact_id, payload_root, sha256_hex
from .index import PageTable
from .store import Store, a02_plain_paths, read_file

MANIFEST, INDEX, GRAPH, PLAN, ATTEST = "manifest.json", "pages.idx", "graph.json", "plan.json", "attest/"
TRAILER = "artifact_id"  # holds what its name says; written last
WEIGHT_PATH = "weights/{:05d}.safetensors"
LIMITS = {MANIFEST: 64 << 20, INDEX: 1 << 30, GRAPH: 256 << 20, PLAN: 64 << 20, TRAILER: 65}
FILE_LIMIT = 256 << 20  # a tokenizer file, or an attestation
_DIGEST = re.compile("[0-9a-f]{64}")
SELF_NAMED = re.compile(r"(?P<stem>.*[^/])\.(?P<digest>[0-9a-f]{64})(?P<suffix>\.[^./]+)?")


def a05_canonical_manifest(store: Store) -> tuple[bytes, Any]:
    """A-05: manifest.json is there and canonical JSON. Returns its bytes and its value."""
    if MANIFEST not in store.sizes:
        raise ArtifactError("A-05", f"{store.path}: no {MANIFEST}; this is not an artifact")
    data = read_file(store, MANIFEST, LIMITS[MANIFEST])
    try:
        return data, parse_canonical(data, where=f"{store.path}: {MANIFEST}", max_bytes=LIMITS[MANIFEST])
    except InputError as e:
        raise ArtifactError("A-05", str(e)) from e


def a06_known_features(raw: Any, where: Path) -> None:
    """A-06: its schema is ours, and it requires no feature that we lack."""
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise ArtifactError("A-06", f"{where}: {MANIFEST}: schema {schema!r}, expected {SCHEMA!r}")
    requires = raw.get("requires")
    unknown = [name for name in requires if name not in FEATURES] if isinstance(requires, list) else []
    if unknown:
        raise ArtifactError("A-06", f"{where}: needs the features {unknown}; this version knows {list(FEATURES)}, update thinlm")


def a07_manifest_fields(raw: Any, where: Path) -> Manifest:
    """A-07: exactly the fields of the schema, of the right types, counts not negative, digests 64 lower-case hex digits."""
    try:
        manifest = as_struct(raw, Manifest, where=f"{where}: {MANIFEST}")
    except InputError as e:
        raise ArtifactError("A-07", str(e)) from e
    for path, value in _leaves(manifest):
        name = path.rpartition(".")[2]
        if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < 1 << 63:
            raise ArtifactError("A-07", f"{where}: {MANIFEST}: {path} is {value}")
        if name in ("sha256", "payload_root", "build_key") and not _DIGEST.fullmatch(str(value)):
            raise ArtifactError("A-07", f"{where}: {MANIFEST}: {path} is {value!r}, expected 64 hex digits")
    return manifest


def a08_file_set(store: Store, manifest: Manifest) -> None:
    """A-08: outside attest/ there are exactly the files that the manifest lists, once each, in order, with the sizes that it states."""
    listed = listed_files(manifest)
    a02_plain_paths(store.path, (MANIFEST, TRAILER, *listed))
    others = [entry.path for entry in manifest.files]
    fixed = [manifest.graph.path, manifest.plan.path, manifest.page_index.path, *(file.path for file in manifest.weights)]
    expected = [GRAPH, PLAN, INDEX, *(WEIGHT_PATH.format(n) for n in range(len(manifest.weights)))]
    if fixed != expected or others != sorted(set(others), key=lambda p: p.encode("utf-8")):
        raise ArtifactError("A-08", f"{store.path}: the manifest names its files otherwise than SPEC.md does, or not in order")
    if {*others} & {*fixed, MANIFEST, TRAILER} or any(path.startswith((ATTEST, "weights/")) for path in others):
        raise ArtifactError("A-08", f"{store.path}: the manifest lists one of {sorted(others)} that it must not")
    present = {path: size for path, size in store.sizes.items() if path not in (MANIFEST, TRAILER) and not path.startswith(ATTEST)}
    for path in sorted(present.keys() | listed.keys()):
        if present.get(path) != listed.get(path):
            got, want = present.get(path, "not there"), listed.get(path, "not listed")
            raise ArtifactError("A-08", f"{store.path}: {path}: bytes on disk: {got}; in the manifest: {want}")


def a09_file_digest(store: Store, entry: FileEntry, data: bytes | memoryview) -> None:
    """A-09: a small file has the SHA-256 that the manifest states."""
    if (got := sha256_hex(data)) != entry.sha256:
        raise ArtifactError("A-09", f"{store.path}: {entry.path}: its SHA-256 is {got}, the manifest says {entry.sha256}")


def checked_file(store: Store, entry: FileEntry) -> bytes:
    """A small file's bytes, of the digest that the manifest states."""
    data = read_file(store, entry.path, LIMITS.get(entry.path, FILE_LIMIT))
    a09_file_digest(store, entry, data)
    return data


def a10_canonical_object(store: Store, path: str, data: bytes) -> None:
    """A-10: graph.json and plan.json are canonical JSON objects."""
    try:
        value = parse_canonical(data, where=f"{store.path}: {path}", max_bytes=LIMITS[path])
    except InputError as e:
        raise ArtifactError("A-10", str(e)) from e
    if not isinstance(value, dict):
        raise ArtifactError("A-10", f"{store.path}: {path} is not a JSON object")


def a15_tensors(store: Store, manifest: Manifest) -> None:
    """A-15: tensors are named once and have a plain dtype; formats are keyed by name, all used, and a name that we know means our format."""
    names = [tensor.name for tensor in manifest.tensors]
    used = {tensor.encoding for tensor in manifest.tensors}
    if len(set(names)) != len(names) or {tensor.dtype for tensor in manifest.tensors} - set(DTYPES):
        raise ArtifactError("A-15", f"{store.path}: a tensor is listed twice, or its dtype is none of {DTYPES}")
    if used != set(manifest.formats):
        raise ArtifactError("A-15", f"{store.path}: formats {sorted(manifest.formats)} are described, {sorted(used)} are used")
    for key, spec in manifest.formats.items():
        if spec.name != key or (key in FORMATS and FORMATS[key].spec != spec):
            raise ArtifactError("A-15", f"{store.path}: format {key!r} is described as another one; one name means one layout")


def a17_ledger(store: Store, manifest: Manifest, page_bytes: int) -> None:
    """A-17: the ledger adds up, agrees with the pages, and keeps the limits that it states."""
    ledger = manifest.ledger
    sums = (("encoded_weight_bytes", ledger.encoded_weight_bytes, page_bytes), ("total", ledger.total_device_bytes, ledger.parts))
    for name, got, want in sums:
        if got != want:
            raise ArtifactError("A-17", f"{store.path}: ledger: {name} is {got}, expected {want}")
    for name, limit in ledger.budgets.items():
        if ledger.figure(name) > limit:
            raise ArtifactError("A-17", f"{store.path}: ledger: {ledger.figure(name)} bytes exceed {name} {limit}")


def a18_payload_root(store: Store, manifest: Manifest, table: PageTable) -> None:
    """A-18: payload_root is the Merkle root over the graph, the weights and the listed files."""
    small = {entry.path: [bytes.fromhex(entry.sha256)] for entry in (manifest.graph, *manifest.files)}
    root = payload_root(small | table.pieces())
    if root != manifest.payload_root:
        raise ArtifactError("A-18", f"{store.path}: payload_root is {root}, the manifest says {manifest.payload_root}")


def a21_trailer(store: Store, manifest: bytes) -> None:
    """A-21: the file artifact_id holds the SHA-256 of manifest.json, in hex, and a newline."""
    want = artifact_id(manifest)
    got = read_file(store, TRAILER, LIMITS[TRAILER]) if TRAILER in store.sizes else b"nothing"
    if got != trailer(want):
        raise ArtifactError("A-21", f"{store.path}: {MANIFEST} has SHA-256 {want}, the file {TRAILER} says {got!r}; one of them was changed")


def a22_attestation(store: Store, path: str, data: bytes | memoryview) -> None:
    """A-22: a file below attest/ has in its name the SHA-256 of its bytes."""
    match = SELF_NAMED.fullmatch(path)
    if match is None:
        raise ArtifactError(
            "A-22", f"{store.path}: {path} has no digest in its name (NAME.<64 hex digits>.json): nothing that thinc wrote; remove it"
        )
    if (got := sha256_hex(data)) != match["digest"]:
        raise ArtifactError("A-22", f"{store.path}: {path} was changed: its SHA-256 is {got}; remove it, or certify again")


def trailer(artifact_id: str) -> bytes:
    """Content of the file artifact_id."""
    return f"{artifact_id}\n".encode("ascii")


def listed_files(manifest: Manifest) -> dict[str, int]:
    """Path -> bytes of every file that the manifest lists."""
    entries = (manifest.graph, manifest.plan, manifest.page_index, *manifest.weights, *manifest.files)
    return {entry.path: entry.bytes for entry in entries}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, scalar) of everything typed in a struct; free-form dicts are left out."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from _leaves(item, f"{path}[{n}]")
    elif not isinstance(value, dict):
        yield path, value
