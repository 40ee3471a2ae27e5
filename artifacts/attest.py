"""attest/: what others say about an artifact - certificates, signatures, search evidence, timestamps. Never listed in the manifest.

Each file carries its own digest: the attestation `scores.json` is the file `scores.<64 hex digits>.json`, so that a changed byte is found
without a list that would have to be rewritten (rule A-22). An attestation as a whole may come and go.

In: a store. Names are paths below attest/, as on the disk; to read, the name without its digest will do. A packed artifact can be read but
not added to (unpack it first).
Refused: A-02 names that leave the folder; A-04 files above 256 MiB; A-22 bytes that are not those of the digest; InputError for a name that
is not there or a packed artifact; UsageError while another process adds something.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..schemas.errors import InputError
from .check import ATTEST, FILE_LIMIT, SELF_NAMED, a22_attestation
from .disk import remove, sync_folder, write_durable
from .identity import sha256_hex
from .store import FolderStore, Store, a02_plain_paths, open_folder, read_file
from .target import hold


@dataclass(frozen=True, slots=True)
class Attestations:
    """The files below attest/ of one artifact, as they are now."""

    store: Store

    def names(self) -> list[str]:
        """Paths below attest/, sorted."""
        return sorted(path.removeprefix(ATTEST) for path in self._now().sizes if path.startswith(ATTEST))

    def read(self, name: str) -> bytes:
        """One file, compared with its digest; of several that differ by their digest alone the last. InputError listing what there is."""
        a02_plain_paths(self.store.path, (name,))
        found = [stored for stored in self.names() if name in (stored, plain_name(stored))]
        if not found:
            raise InputError(f"{self.store.path}: no attestation {name!r}; there are {self.names()}")
        store, path = self._now(), ATTEST + found[-1]
        data = read_file(store, path, FILE_LIMIT)
        a22_attestation(store, path, data)
        return data

    def require_folder(self) -> None:
        """InputError when nothing can be added, because the artifact is packed."""
        if not isinstance(self.store, FolderStore):
            raise InputError(f"{self.store.path}: a packed artifact is not changed; `thinc unpack` it, add to the folder, pack it again")

    def add(self, name: str, data: bytes) -> str:
        """Write or replace one attestation; returns the path below attest/ that it got.

        The new file appears by one rename from outside the artifact, then older ones of that name go: a crash leaves both, each whole.
        """
        stored = self_named(name, sha256_hex(data))
        a02_plain_paths(self.store.path, (ATTEST + name,))
        a02_plain_paths(self.store.path, (ATTEST + stored,))
        self.require_folder()
        folder = self.store.path.resolve()
        path, temporary = folder / ATTEST / stored, folder.with_name(f".{folder.name}.attest")
        with hold(folder):
            write_durable(temporary, data)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, path)
            sync_folder(path.parent)
            for other in self.names():
                if plain_name(other) == name and other != stored:
                    remove(folder / ATTEST / other)
        return stored

    def _now(self) -> Store:
        return open_folder(self.store.path) if isinstance(self.store, FolderStore) else self.store


def self_named(name: str, digest: str) -> str:
    """The file's name: the digest goes before the last suffix."""
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    return f"{folder}{slash}{stem}.{digest}.{suffix}" if stem and dot else f"{name}.{digest}"


def plain_name(stored: str) -> str:
    """The name without its digest; itself where it has none."""
    match = SELF_NAMED.fullmatch(stored)
    return stored if match is None else match["stem"] + (match["suffix"] or "")
