"""The journal beside a half-written artifact: which page kinds were written, with the digests of their pages.

A text file of JSON lines. The first names the build (a digest of the page plan, shard limit and the caller's key); each other line is one
finished page kind. Nothing is synced here: whoever resumes compares pages with digests (writer.py), so a journal that got ahead of the
pages costs work, never truth. A torn last line is ignored. A journal of another build counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..schemas.canonical import NOT_JSON, canonical_bytes
from .disk import write_durable


class _Done(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Journal:
    """Append-only record of finished page kinds for the build named `build`."""

    path: Path
    build: str

    def start(self) -> None:
        """Forget everything."""
        write_durable(self.path, canonical_bytes({"build": self.build}) + b"\n")

    def add(self, kind: str, digests: list[bytes]) -> None:
        """Record that the pages of `kind` were written."""
        with open(self.path, "ab") as file:
            file.write(canonical_bytes(_Done(kind, tuple(digest.hex() for digest in digests))) + b"\n")

    def finished(self) -> dict[str, list[bytes]] | None:
        """Page kind -> digests of its pages; None when there is no journal of this build."""
        lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
        if not lines or lines[0] != canonical_bytes({"build": self.build}):
            return None
        done: dict[str, list[bytes]] = {}
        for line in lines[1:-1]:  # the last piece is empty, or torn
            try:
                entry = msgspec.json.decode(line, type=_Done)
            except NOT_JSON:
                return done
            done[entry.kind] = [bytes.fromhex(digest) for digest in entry.sha256]
        return done
