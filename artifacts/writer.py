"""Write an artifact: pages streamed in any order into a hidden folder beside the target, which one atomic rename publishes.

In: a PagePlan (sizes of everything, before any weight), page bytes kind by kind, small files, and the compiler's claims.
Out: NAME.thin, or NAME.thin.rejected. Use:

    writer = ArtifactWriter(target, plan)
    for group in plan.groups:
        if group.name not in writer.done:                         # with resume=True some are
            writer.add_page_kind(group.name, fill_pages(group, encode))
    writer.add_file("graph.json", ...)                            # and plan.json, tokenizer.json, ...
    manifest = writer.finish(claims)                              # writer.folder can be opened now, and attested
    path = writer.publish()                                       # reads everything back first

Refused: UsageError for a target that may not be written (target.py) or is not named *.thin; InputError for pages or files that the plan does not
have, or too few; ArtifactError when what was read back is not what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..schemas.canonical import canonical_bytes
from ..schemas.errors import InputError, UsageError
from ..schemas.manifest import SCHEMA, Claims, FileEntry, Manifest, PageIndex, PageKind, TensorEntry, WeightFile
from . import check
from .disk import publish_folder, remove, sync_file, write_durable
from .identity import artifact_id, payload_root, sha256_hex
from .index import RECORD, PageTable, weight_header
from .journal import Journal
from .layouts import PageGroup, PagePlan, Slot
from .store import a02_plain_paths
from .target import JOURNAL, PARTIAL, hidden, rejected_name, require_free
from .verify import verify_artifact

SHARD_BYTES = 4 << 30


class ArtifactWriter:
    """Builds one artifact in `folder`; memory is bounded by a page. `done` names the page kinds that are on the disk."""

    def __init__(
        self, target: Path, plan: PagePlan, *, force: bool = False, resume: bool = False, key: str = "", shard_bytes: int = SHARD_BYTES
    ) -> None:
        """`key` (the build key) and the plan decide whether `resume` may continue what an earlier writer left."""
        if target.suffix != ".thin":
            raise UsageError(f"{target}: the name of an artifact ends in .thin")
        require_free(target, force=force)
        self.target, self.plan, self.done = target, plan, set[str]()
        self.folder = hidden(target, PARTIAL)
        self._files: dict[str, FileEntry] = {}
        self._kinds, self._table = _empty_table(plan, shard_bytes)
        build = {"key": key, "kinds": self._kinds, "files": self._table.files, "tensors": [_entry(slot) for slot in plan.slots()]}
        self._journal = Journal(hidden(target, JOURNAL), sha256_hex(canonical_bytes(build)))
        finished = self._journal.finished() if resume else None
        self._restart() if finished is None or not self.folder.is_dir() else self._continue(finished)

    def add_page_kind(self, name: str, pages: Iterable[bytes]) -> None:
        """Write all pages of one kind, each of exactly the planned length."""
        group = self._group(name)
        records, digests, left = self._records(group), [], iter(pages)
        path = self.folder / self._table.files[records[0]["file"]].path
        with open(path, "r+b") as file:
            for record in records:
                page = next(left, b"")
                if len(page) != record["length"]:
                    raise InputError(f"page {len(digests)} of {name}: {len(page)} bytes, planned {record['length']}")
                file.seek(int(record["offset"]))
                file.write(page)
                digests.append(hashlib.sha256(page).digest())
        if next(left, None) is not None:
            raise InputError(f"{name}: more pages than the {group.count} that were planned")
        self._journal.add(name, digests)
        self._note(group, digests)

    def add_file(self, path: str, data: bytes) -> None:
        """Write a small file: graph.json, plan.json (both canonical JSON objects), or a tokenizer, template or generation file."""
        a02_plain_paths(self.target, (check.MANIFEST, check.INDEX, check.TRAILER, *self._files, path))
        if path in self._files or path in (check.MANIFEST, check.INDEX, check.TRAILER) or path.startswith((check.ATTEST, "weights/")):
            raise InputError(f"{path}: written twice, or a name that the writer keeps for itself")
        write_durable(self.folder / path, data)
        self._files[path] = FileEntry(path=path, bytes=len(data), sha256=sha256_hex(data))

    def finish(self, claims: Claims) -> Manifest:
        """Write pages.idx, manifest.json and artifact_id; after this `folder` is a complete artifact under a hidden name."""
        missing = {group.name for group in self.plan.groups} - self.done | {check.GRAPH, check.PLAN} - set(self._files)
        if missing:
            raise InputError(f"{self.target}: not written yet: {sorted(missing)[:3]} ({len(missing)} in all)")
        for file in self._table.files:
            sync_file(self.folder / file.path)
        index = self._table.to_bytes()
        write_durable(self.folder / check.INDEX, index)
        manifest = self._manifest(claims, index)
        data = canonical_bytes(manifest)
        write_durable(self.folder / check.MANIFEST, data)
        write_durable(self.folder / check.TRAILER, check.trailer(artifact_id(data)))
        return manifest

    def publish(self, *, rejected: bool = False) -> Path:
        """Read everything back, then rename to the target, or to TARGET.rejected (replacing an older one). Returns that path."""
        if errors := verify_artifact(self.folder):
            raise errors[0]
        path = rejected_name(self.target) if rejected else self.target
        publish_folder(self.folder, path)
        remove(self._journal.path)
        return path

    def discard(self) -> None:
        """Remove what was written so far."""
        remove(self.folder)
        remove(self._journal.path)

    def _restart(self) -> None:
        """Empty weight files of their full size (sparse), with their headers. The old journal goes first: it must never outlive its pages."""
        remove(self._journal.path)
        remove(self.folder)
        (self.folder / "weights").mkdir(parents=True)
        for n, file in enumerate(self._table.files):
            with open(self.folder / file.path, "wb") as out:
                out.write(self._header(n))
                out.truncate(file.bytes)
        self._journal.start()

    def _continue(self, finished: dict[str, list[bytes]]) -> None:
        for path in self.folder.iterdir():
            if path.name != "weights":
                remove(path)  # small files are cheap; attestations were about an unfinished artifact
        for name, digests in finished.items():
            group = self._group(name)
            if list(self._written(group)) == digests:  # after a power failure the journal may know more than the disk
                self._note(group, digests)

    def _written(self, group: PageGroup) -> Iterator[bytes]:
        """Digests of a group's pages as they are on the disk."""
        records = self._records(group)
        with open(self.folder / self._table.files[records[0]["file"]].path, "rb") as file:
            for record in records:
                file.seek(int(record["offset"]))
                yield hashlib.sha256(file.read(int(record["length"]))).digest()

    def _group(self, name: str) -> PageGroup:
        group = next((group for group in self.plan.groups if group.name == name), None)
        if group is None or name in self.done:
            raise InputError(f"page kind {name!r} is {'written already' if group else 'not in the page plan'}")
        return group

    def _records(self, group: PageGroup) -> np.ndarray:
        return self._table.pages[group.first_page : group.first_page + group.count]

    def _note(self, group: PageGroup, digests: list[bytes]) -> None:
        self._records(group)["sha256"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        self.done.add(group.name)

    def _header(self, n: int) -> bytes:
        return _header([(kind, group) for kind, group in zip(self._kinds, self.plan.groups, strict=True) if kind.file == n])

    def _manifest(self, claims: Claims, index: bytes) -> Manifest:
        files = dict(self._files)
        graph, plan = files.pop(check.GRAPH), files.pop(check.PLAN)
        others = tuple(sorted(files.values(), key=lambda entry: entry.path.encode("utf-8")))
        small = {entry.path: [bytes.fromhex(entry.sha256)] for entry in (graph, *others)}
        slots = list(self.plan.slots())
        return Manifest(
            schema=SCHEMA,
            requires=claims.requires,
            model=claims.model,
            source=claims.source,
            formats={slot.tensor.format.name: slot.tensor.format.spec for slot in slots},
            tensors=tuple(_entry(slot) for slot in slots),
            dropped=claims.dropped,
            page_kinds=self._kinds,
            page_index=PageIndex(path=check.INDEX, bytes=len(index), sha256=sha256_hex(index), pages=len(self._table.pages)),
            weights=self._table.files,
            graph=graph,
            plan=plan,
            files=others,
            ledger=claims.ledger,
            provenance=claims.provenance,
            build_key=claims.build_key,
            payload_root=payload_root(small | self._table.pieces()),
            optional=claims.optional,
        )


def _entry(slot: Slot) -> TensorEntry:
    t = slot.tensor
    return TensorEntry(name=t.name, shape=t.shape, dtype=t.dtype, role=t.role, layer=t.layer, encoding=t.format.name, layout=slot.layout)


def _header(members: list[tuple[PageKind, PageGroup]]) -> bytes:
    return weight_header([kind for kind, _ in members], [group.total_bytes for _, group in members])


def _empty_table(plan: PagePlan, shard_bytes: int) -> tuple[tuple[PageKind, ...], PageTable]:
    """Page kinds, and the index with every place filled in but no page digests."""
    kinds: list[PageKind] = []
    files, headers, pages = [], [], []
    for n, groups in enumerate(plan.shards(shard_bytes)):
        mine = [PageKind(name=g.name, file=n, first_page=g.first_page, count=g.count) for g in groups]
        header = _header(list(zip(mine, groups, strict=True)))
        headers.append((n, 0, len(header), np.frombuffer(hashlib.sha256(header).digest(), np.uint8)))
        at = len(header)
        for group in groups:
            for k in range(group.count):
                pages.append((n, at, group.length(k), 0))
                at += group.length(k)
        kinds += mine
        files.append(WeightFile(path=check.WEIGHT_PATH.format(n), bytes=at))
    return tuple(kinds), PageTable(tuple(files), np.array(headers + pages, RECORD))
