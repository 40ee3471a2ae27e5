"""attest/: what others say about an artifact - certificates, signatures, search evidence, timestamps. Never listed in the manifest.

In: a store. Names are paths below attest/. A packed artifact can be read but not added to (unpack it first).
Refused: A-02 names that leave the folder; A-04 files above 256 MiB; InputError for a name that is not there or a packed artifact.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schemas.errors import InputError
from .check import ATTEST, FILE_LIMIT
from .disk import write_durable
from .store import FolderStore, Store, a02_plain_path, open_folder, read_file


@dataclass(frozen=True, slots=True)
class Attestations:
    """The files below attest/ of one artifact, as they are now."""

    store: Store

    def names(self) -> list[str]:
        """Paths below attest/, sorted."""
        return sorted(path.removeprefix(ATTEST) for path in self._now().sizes if path.startswith(ATTEST))

    def read(self, name: str) -> bytes:
        """One file; InputError listing what there is."""
        store = self._now()
        a02_plain_path(name)
        if ATTEST + name not in store.sizes:
            raise InputError(f"{self.store.path}: no attestation {name!r}; there are {self.names()}")
        return read_file(store, ATTEST + name, FILE_LIMIT)

    def require_folder(self) -> None:
        """InputError when nothing can be added, because the artifact is packed."""
        if not isinstance(self.store, FolderStore):
            raise InputError(f"{self.store.path}: a packed artifact is not changed; `thinc unpack` it, add to the folder, pack it again")

    def add(self, name: str, data: bytes) -> None:
        """Write or replace one file, atomically."""
        a02_plain_path(ATTEST + name)
        self.require_folder()
        write_durable(self.store.path / ATTEST / name, data)

    def _now(self) -> Store:
        return open_folder(self.store.path) if isinstance(self.store, FolderStore) else self.store
