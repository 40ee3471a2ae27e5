"""Compare every byte of an artifact with what its manifest says: all rules of SPEC.md.

In: a path, threads. Out: the rules that its files, headers and pages break (empty = intact), each naming the file or page.
What can't even be opened raises (reader.py). Bytes are hashed where they are mapped, a page at a time by each thread, never copied; in a packed
file the same pass makes the CRC-32 of every member.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..schemas.errors import ArtifactError
from ..schemas.manifest import FileEntry, PageKind
from . import check, check_pages
from .crc import combined, crc32
from .packed import PackedStore, a03_member_crc
from .reader import Artifact, open_artifact
from .store import a04_limit

Check = Callable[[], object]
_BATCH = 16 << 20  # bytes of pages that a thread takes at a time


def verify_artifact(path: Path | str, threads: int | None = None) -> list[ArtifactError]:
    """All integrity errors; ArtifactError or InputError when the artifact can't be opened. `threads`: one per core unless given."""
    return verify_open(open_artifact(path), threads)


def verify_open(artifact: Artifact, threads: int | None = None) -> list[ArtifactError]:
    """As verify_artifact, for an open artifact; pages that are intact are not compared again when they are read."""
    crcs: dict[int, int] = {}  # of each record of the index, in a packed file
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        broken = [error for errors in pool.map(_outcomes, _tasks(artifact, crcs)) for error in errors]
    return broken + _outcomes(_weight_crcs(artifact, crcs))


def require_intact(artifact: Artifact) -> None:
    """Raise the first integrity error of an open artifact."""
    if errors := verify_open(artifact):
        raise errors[0]


def _tasks(artifact: Artifact, crcs: dict[int, int]) -> Iterator[list[Check]]:
    """Work in pieces that threads share; the model's meaning and the small files first, then headers and pages."""
    store, manifest, table = artifact.store, artifact.manifest, artifact.table
    yield [lambda: artifact.plan]
    yield [partial(_check_file, artifact, entry) for entry in manifest.files]
    yield [partial(_check_attestation, artifact, path) for path in store.sizes if path.startswith(check.ATTEST)]
    if isinstance(store, PackedStore):
        weights = {file.path for file in table.files}
        yield [partial(a03_member_crc, store, path) for path in store.sizes if path not in weights]
    yield [partial(_check_record, artifact, n, crcs) for n in range(len(table.files))]
    for kind in manifest.page_kinds:
        yield from _page_tasks(artifact, kind, crcs)


def _page_tasks(artifact: Artifact, kind: PageKind, crcs: dict[int, int]) -> Iterator[list[Check]]:
    manifest, table = artifact.manifest, artifact.table
    tensors = [tensor for tensor in manifest.tensors if tensor.layout.first_page == kind.first_page]
    slabs = [check_pages.slabs_of(tensor, artifact.format(tensor.name)) for tensor in tensors]
    full, tail = sorted(s.full for s in slabs), sorted(s.tail for s in slabs)
    batch, size = [], 0
    for k in range(kind.count):
        number = len(table.files) + kind.first_page + k
        batch.append(partial(_check_page, artifact, number, crcs, tail if k == kind.count - 1 else full))
        size += int(table.records[number]["length"])
        if size >= _BATCH or k == kind.count - 1:
            yield batch
            batch, size = [], 0


def _check_file(artifact: Artifact, entry: FileEntry) -> None:
    a04_limit(artifact.path, f"bytes in {entry.path}", entry.bytes, check.FILE_LIMIT)
    check.a09_file_digest(artifact.store, entry, artifact.store.view(entry.path).data)


def _check_attestation(artifact: Artifact, path: str) -> None:
    a04_limit(artifact.path, f"bytes in {path}", artifact.store.sizes[path], check.FILE_LIMIT)
    check.a22_attestation(artifact.store, path, artifact.store.view(path).data)


def _check_record(artifact: Artifact, number: int, crcs: dict[int, int]) -> None:
    if isinstance(artifact.store, PackedStore):
        crcs[number] = crc32(check_pages.page_bytes(artifact.store, artifact.table, number))
    artifact.pages.check(number)


def _check_page(artifact: Artifact, number: int, crcs: dict[int, int], spans: list[tuple[int, int]]) -> None:
    _check_record(artifact, number, crcs)
    check_pages.a20_padding(artifact.store, artifact.manifest, artifact.table, number, spans)


def _weight_crcs(artifact: Artifact, crcs: dict[int, int]) -> Iterator[Check]:
    """The CRC-32 of each weight file of a packed artifact, put together from those of its records."""
    store, table = artifact.store, artifact.table
    if not isinstance(store, PackedStore):
        return
    for n, file in enumerate(table.files):
        mine = [number for number in range(len(table.records)) if table.records[number]["file"] == n]
        parts = ((crcs[number], int(table.records[number]["length"])) for number in mine)
        yield partial(a03_member_crc, store, file.path, combined(parts))


def _outcomes(checks: Iterable[Check]) -> list[ArtifactError]:
    return [error for check_one in checks if (error := _outcome(check_one))]


def _outcome(check_one: Check) -> ArtifactError | None:
    try:
        check_one()
    except ArtifactError as e:
        return e
    return None
