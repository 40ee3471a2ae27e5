"""The headers and pages of an open artifact: mapped, and each compared with its digest before the first byte of it is used.

In: a store, the manifest and the page index. Out: bytes of records of the index, u8 views. Threads may share it; each record is hashed once.
Refused: A-19, naming page and file.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from ..schemas.manifest import Manifest
from .check_pages import a19_page_digest, page_bytes
from .index import PageTable
from .store import Store

_LOCKS = 64  # threads that touch different pages seldom wait for each other


class Pages:
    """See the module docstring."""

    def __init__(self, store: Store, manifest: Manifest, table: PageTable) -> None:
        self._store, self._manifest, self._table = store, manifest, table
        self._intact = bytearray(len(table.records))
        self._locks = tuple(Lock() for _ in range(_LOCKS))

    def read(self, number: int) -> np.ndarray:
        """Record `number` of the index; ArtifactError A-19 when its bytes are others."""
        if not self._intact[number]:
            with self._locks[number % _LOCKS]:
                if not self._intact[number]:
                    self.check(number)
        return page_bytes(self._store, self._table, number)

    def check(self, number: int) -> None:
        """Hash record `number`, whether or not that was done before."""
        a19_page_digest(self._store, self._manifest, self._table, number)
        self._intact[number] = 1
