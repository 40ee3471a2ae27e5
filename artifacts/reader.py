"""Open an artifact: a folder NAME.thin or a packed NAME.thin.zip, mapped, never extracted.

In: a path. Out: an Artifact, which has the shape of the runtime's weights protocol (identity, kind, encoding, shape, slabs, f32).
Order: list files and their sizes, parse the small ones, check rules A-01 to A-18 and A-21 (SPEC.md), only then map weights. What graph.json
and plan.json mean is checked when it is first asked for, and a page of weights when it is first touched: damaged bytes are never decoded.
Refused: InputError when nothing is there; ArtifactError with the rule's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..schemas.encoding import Slab
from ..schemas.errors import InputError
from ..schemas.graph import Graph
from ..schemas.manifest import FileEntry, Manifest, TensorEntry
from ..schemas.plan import Plan
from . import check, check_model, check_pages
from .attest import Attestations
from .formats import FORMATS, Format
from .identity import artifact_id
from .index import PageTable
from .layouts import matrix_shape
from .layouts.base import Region, region, slab_count
from .packed import open_packed
from .pages import Pages
from .store import Store, a01_regular, open_folder, require_path


@dataclass(frozen=True)
class Artifact:
    """An open artifact that kept rules A-01 to A-18 and A-21. Arrays are read-only views of the mapped files."""

    store: Store
    manifest: Manifest
    manifest_bytes: bytes
    graph_bytes: bytes  # graph.json
    plan_bytes: bytes  # plan.json
    table: PageTable
    pages: Pages

    @property
    def kind(self) -> str:
        """Always "artifact"."""
        return "artifact"

    @property
    def path(self) -> Path:
        return self.store.path

    @property
    def identity(self) -> str:
        """payload_root."""
        return self.manifest.payload_root

    @cached_property
    def artifact_id(self) -> str:
        return artifact_id(self.manifest_bytes)

    @cached_property
    def graph(self) -> Graph:
        """The verified graph; ArtifactError A-23."""
        return check_model.a23_graph(self.path, self.graph_bytes, self.manifest)

    @cached_property
    def plan(self) -> Plan:
        """How the graph is run; ArtifactError A-23, A-24."""
        return check_model.a24_plan(self.path, self.plan_bytes, self.manifest, self.graph)

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """Manifest entries by tensor name, in file order."""
        return {tensor.name: tensor for tensor in self.manifest.tensors}

    @property
    def attest(self) -> Attestations:
        """attest/: certificates and signatures, outside the identity."""
        return Attestations(self.store)

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all files but attest/."""
        return sum(size for path, size in self.store.sizes.items() if not path.startswith(check.ATTEST))

    def file(self, path: str) -> bytes:
        """A listed small file (tokenizer, template, ...), compared with its digest; InputError listing what there is."""
        entry = next((entry for entry in self.manifest.files if entry.path == path), None)
        if entry is None:
            raise InputError(f"{self.path}: no file {path!r}; there are {[entry.path for entry in self.manifest.files]}")
        return check.checked_file(self.store, entry)

    def encoding(self, name: str) -> str:
        """Number format of a tensor."""
        return self._tensor(name).encoding

    def format(self, name: str) -> Format:
        """Number format of a tensor, ready to decode; formats that only the manifest knows included."""
        encoding = self._tensor(name).encoding
        return FORMATS.get(encoding) or Format(self.manifest.formats[encoding])

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as in the source."""
        return self._tensor(name).shape

    def slabs(self, name: str) -> Iterator[Slab]:
        """The encoded tensor in pieces that cover it once, in order along the axis that it was cut."""
        tensor = self._tensor(name)
        for k in range(slab_count(tensor.shape, tensor.layout)):
            yield self._slab(tensor, region(tensor.shape, tensor.layout, k), k)

    def _slab(self, tensor: TensorEntry, part: Region, k: int) -> Slab:
        layout = tensor.layout
        page = self.pages.read(len(self.table.files) + layout.first_page + k)
        start = layout.tail_offset if k == slab_count(tensor.shape, layout) - 1 else layout.offset
        raw = page[start : start + part.nbytes(self.format(tensor.name))].reshape(part.rows, -1)
        return Slab(part.row0, part.row1, part.col0, part.col1, raw)

    def block(self, name: str, rows: slice | np.ndarray = slice(None), cols: slice = slice(None)) -> np.ndarray:
        """See `Weights.block`; only the pages that hold the part are read."""
        tensor, fmt = self._tensor(name), self.format(name)
        height, width = matrix_shape(tensor.shape)
        wanted, (first, last, _) = np.arange(height)[rows], cols.indices(width)
        out = np.empty((len(wanted), last - first), np.float32)
        for k in range(slab_count(tensor.shape, tensor.layout)):
            part = region(tensor.shape, tensor.layout, k)
            here = np.flatnonzero((wanted >= part.row0) & (wanted < part.row1))
            start, stop = max(first, part.col0), min(last, part.col1)
            if len(here) and start < stop:
                raw = self._slab(tensor, part, k).raw[wanted[here] - part.row0]
                out[here, start - first : stop - first] = fmt.decode(raw, part.cols)[:, start - part.col0 : stop - part.col0]
        return out

    def f32(self, name: str) -> np.ndarray:
        """The decoded tensor, float32, in its source shape."""
        fmt, shape = self.format(name), self.shape(name)
        out = np.empty(matrix_shape(shape), np.float32)
        for slab in self.slabs(name):
            fmt.decode(slab.raw, slab.col1 - slab.col0, out[slab.row0 : slab.row1, slab.col0 : slab.col1])
        return out.reshape(shape)

    def _tensor(self, name: str) -> TensorEntry:
        if name not in self.tensors:
            raise InputError(f"{self.path}: no tensor {name!r}; `thinc inspect {self.path}` lists them")
        return self.tensors[name]


def open_artifact(path: Path | str) -> Artifact:
    """Open and check an artifact; no weight is read."""
    store = open_store(Path(path))
    manifest, manifest_bytes = read_manifest(store)
    check.a08_file_set(store, manifest)
    small = {entry.path: check.checked_file(store, entry) for entry in (manifest.graph, manifest.plan, _index_entry(manifest))}
    for name in (check.GRAPH, check.PLAN):
        check.a10_canonical_object(store, name, small[name])
    table = check_pages.a11_index(store, manifest, small[check.INDEX])
    check_pages.a12_tiling(store, table)
    check_pages.a13_page_kinds(store, manifest, table)
    check_pages.a14_headers(store, manifest, table)
    check.a15_tensors(store, manifest)
    check_pages.a16_layouts(store, manifest, table)
    check.a17_ledger(store, manifest, int(table.pages["length"].sum()))
    check.a18_payload_root(store, manifest, table)
    return Artifact(store, manifest, manifest_bytes, small[check.GRAPH], small[check.PLAN], table, Pages(store, manifest, table))


def open_store(path: Path) -> Store:
    """The files of a folder or a packed artifact; rules A-01 to A-04."""
    require_path(path)
    if path.is_dir():
        return open_folder(path)
    info = path.stat()
    a01_regular(path, info, info.st_size)
    return open_packed(path)


def read_manifest(store: Store) -> tuple[Manifest, bytes]:
    """manifest.json, parsed and as bytes; rules A-05, A-21, A-06, A-07."""
    data, raw = check.a05_canonical_manifest(store)
    check.a21_trailer(store, data)
    check.a06_known_features(raw, store.path)
    return check.a07_manifest_fields(raw, store.path), data


def _index_entry(manifest: Manifest) -> FileEntry:
    index = manifest.page_index
    return FileEntry(path=index.path, bytes=index.bytes, sha256=index.sha256)
