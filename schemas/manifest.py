"""manifest.json, the root of an artifact: everything needed to find, decode and attribute its bytes (artifacts/SPEC.md).

`artifact_id` is the SHA-256 of its canonical bytes. No times, host names, absolute paths or code. Field names are settled: later
versions only add fields with defaults, and name what an older reader must not ignore in `requires`. `optional` is kept verbatim.

Arithmetic that a reader needs, and no more: a tensor of shape [..., c] is the matrix [r, c], r the product of the other dims. It is cut
along `layout.axis` every `layout.step` rows or columns into slabs 0..n-1. Slab k lies in page `first_page + k`, at byte `offset` of the
page, the last one at `tail_offset`. Its bytes are rows of its encoding, one after another. pages.idx says where a page lies.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .encoding import FormatSpec
from .plan import Ledger

SCHEMA = "thinc.manifest/1"
FEATURES: tuple[str, ...] = ()  # what `requires` may name; a reader refuses an artifact that needs more than it knows


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class FileEntry(_Record, frozen=True):
    """A file by its path, size and lower-case hex SHA-256."""

    path: str
    bytes: int
    sha256: str


class WeightFile(_Record, frozen=True):
    """A file of weights; its contents are hashed page by page, in pages.idx."""

    path: str
    bytes: int


class ModelInfo(_Record, frozen=True):
    """What the model is, as far as a reader may need it before parsing the graph."""

    family: str  # the frontend's name for it
    architecture: str  # as the source calls it
    layers: int
    parameters: int  # logical weights, aliases once
    vocab_size: int  # rows of logits
    tokenizer_vocab: int  # ids that the tokenizer can produce or decode
    context: int  # positions that the source supports
    eos_ids: tuple[int, ...]
    bos_id: int | None


class SourceInfo(_Record, frozen=True):
    """The checkpoint that was compiled. `note` is what a certificate's first line must say about it (for a GGUF, say), else empty."""

    kind: Literal["hf", "gguf"]
    name: str
    digest: str  # of `files`
    files: tuple[FileEntry, ...]
    note: str = ""


class TensorLayout(_Record, frozen=True):
    """Where the slabs of one tensor lie; see the module docstring."""

    kind: str  # the rule that cut it: "rows", "superblock", "shared"; a reader needs only the numbers
    axis: Literal[0, 1]
    step: int
    first_page: int
    offset: int
    tail_offset: int


class TensorEntry(_Record, frozen=True):
    """One stored tensor: `shape` and `dtype` as in the source, `encoding` a key of `formats`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    layer: int | None
    encoding: str
    layout: TensorLayout


class DroppedTensor(_Record, frozen=True):
    """A tensor of the source that the artifact leaves out on purpose."""

    name: str
    reason: str


class PageKind(_Record, frozen=True):
    """Pages [first_page, first_page + count): one U8 tensor `name` in a weight file."""

    name: str
    file: int  # index into `weights`
    first_page: int
    count: int


class PageIndex(_Record, frozen=True):
    """pages.idx: its bytes and the number of pages in it."""

    path: str
    bytes: int
    sha256: str
    pages: int


class PassEntry(_Record, frozen=True):
    """One pass that ran: its name, options, contract, and the digest of the graph after it."""

    name: str
    numerics: str
    options: dict[str, Any] = {}
    digest: str = ""


class Provenance(_Record, frozen=True):
    """How the artifact was made."""

    tool: str
    version: str
    recipe: dict[str, Any]
    passes: tuple[PassEntry, ...]
    calibration: str = ""  # digest of the calibration text; empty when none was used
    permutations: str = "identity"  # or the path of the listed file that holds the relayout's permutations


class Claims(_Record, frozen=True):
    """What the writer can't see in the bytes and takes from the compiler; these fields are copied into the manifest."""

    model: ModelInfo
    source: SourceInfo
    ledger: Ledger
    provenance: Provenance
    build_key: str
    dropped: tuple[DroppedTensor, ...] = ()
    requires: tuple[str, ...] = ()
    optional: dict[str, Any] = {}


class Manifest(_Record, frozen=True):
    """manifest.json."""

    schema: Literal["thinc.manifest/1"]
    requires: tuple[str, ...]
    model: ModelInfo
    source: SourceInfo
    formats: dict[str, FormatSpec]
    tensors: tuple[TensorEntry, ...]
    dropped: tuple[DroppedTensor, ...]
    page_kinds: tuple[PageKind, ...]
    page_index: PageIndex
    weights: tuple[WeightFile, ...]
    graph: FileEntry
    plan: FileEntry
    files: tuple[FileEntry, ...]  # tokenizer, chat template, generation config
    ledger: Ledger
    provenance: Provenance
    build_key: str
    payload_root: str
    optional: dict[str, Any] = {}
