"""Names that follow from content: payload_root, artifact_id, build_key. All are lower-case hex SHA-256.

payload_root is the Merkle tree hash of RFC 6962: leaf SHA-256(00 || entry), node SHA-256(01 || left || right), the left subtree the largest
power of two below n; the empty tree is SHA-256(""). Entries are sorted by UTF-8 path, then index; each binds a digest to its place:

  entry = path || 00 || index as 8 bytes, little-endian || SHA-256 of the content, 32 bytes

A small file is one entry of index 0. A weight file is its header (index 0), then its pages (1, 2, ...). So the root follows from pages.idx
and the small files alone: graph.json, weights/*, and the manifest's `files`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..schemas.canonical import canonical_bytes
from ..schemas.manifest import Manifest

BUILD_KEY_SCHEMA = "thinc.build-key/1"


def sha256_hex(data: bytes | memoryview) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def merkle_root(entries: Iterable[bytes]) -> bytes:
    """RFC 6962 Merkle tree hash of `entries` in the given order: 32 bytes."""
    stack: list[tuple[int, bytes]] = []  # (size, hash) of perfect subtrees, sizes strictly falling
    for entry in entries:
        size, node = 1, hashlib.sha256(b"\0" + entry).digest()
        while stack and stack[-1][0] == size:
            node = _parent(stack.pop()[1], node)
            size *= 2
        stack.append((size, node))
    if not stack:
        return hashlib.sha256(b"").digest()
    node = stack.pop()[1]
    while stack:
        node = _parent(stack.pop()[1], node)
    return node


def payload_root(contents: Mapping[str, Sequence[bytes]]) -> str:
    """Root over path -> SHA-256 digests (32 bytes each) of its pieces, in order."""
    ordered = sorted((path.encode("utf-8"), digests) for path, digests in contents.items())
    entries = (path + b"\0" + index.to_bytes(8, "little") + digest for path, ds in ordered for index, digest in enumerate(ds))
    return merkle_root(entries).hex()


def artifact_id(manifest: Manifest | bytes) -> str:
    """SHA-256 of the canonical manifest."""
    return sha256_hex(manifest if isinstance(manifest, bytes) else canonical_bytes(manifest))


def build_key(ingredients: Mapping[str, Any]) -> str:
    """Digest of all inputs of a build (source, tokenizer, template, recipe, calibration, code version, target class) as JSON values."""
    return sha256_hex(canonical_bytes({"schema": BUILD_KEY_SCHEMA, "ingredients": dict(ingredients)}))


def _parent(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
