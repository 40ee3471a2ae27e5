"""Compare every byte of an artifact with what its manifest says: rules A-01 to A-20.

In: a path, threads. Out: the rules that its listed files, headers and pages break (empty = intact), each naming the file or page.
What can't even be opened raises (reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..schemas.errors import ArtifactError
from ..schemas.manifest import PageKind
from . import check, check_pages
from .reader import Artifact, open_artifact

Check = Callable[[], object]


def verify_artifact(path: Path | str, threads: int = 2) -> list[ArtifactError]:
    """All integrity errors of listed files and pages; ArtifactError or InputError when the artifact can't be opened."""
    artifact = open_artifact(path)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        broken = pool.map(lambda checks: [error for check_one in checks if (error := _outcome(check_one))], _tasks(artifact))
        return [error for errors in broken for error in errors]


def _tasks(artifact: Artifact) -> Iterator[Iterator[Check]]:
    """Work in pieces that threads share: small files, headers, then the pages of each kind."""
    store, manifest, table = artifact.store, artifact.manifest, artifact.table
    yield (partial(check.a09_file_digest, store, entry) for entry in manifest.files)
    yield (partial(check_pages.a19_page_digest, store, manifest, table, n) for n in range(len(table.files)))
    for kind in manifest.page_kinds:
        yield _page_checks(artifact, kind)


def _page_checks(artifact: Artifact, kind: PageKind) -> Iterator[Check]:
    manifest, table = artifact.manifest, artifact.table
    tensors = [tensor for tensor in manifest.tensors if tensor.layout.first_page == kind.first_page]
    slabs = [check_pages.slabs_of(tensor, artifact.format(tensor.name)) for tensor in tensors]
    full, tail = sorted(s.full for s in slabs), sorted(s.tail for s in slabs)
    for k in range(kind.count):
        number = len(table.files) + kind.first_page + k
        yield partial(_check_page, artifact, number, tail if k == kind.count - 1 else full)


def _check_page(artifact: Artifact, number: int, spans: list[tuple[int, int]]) -> None:
    check_pages.a19_page_digest(artifact.store, artifact.manifest, artifact.table, number)
    check_pages.a20_padding(artifact.store, artifact.manifest, artifact.table, number, spans)


def _outcome(check_one: Check) -> ArtifactError | None:
    try:
        check_one()
    except ArtifactError as e:
        return e
    return None
