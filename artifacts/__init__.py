"""Floor 2: number formats, page layouts, and the artifact's writer, reader, checks and identity (SPEC.md)."""

from __future__ import annotations

from .formats import FORMATS, Format, get_format
from .identity import artifact_id, build_key, payload_root
from .layouts import PagePlan, Region, StoredTensor, fill_pages, plan_pages
from .packing import pack, unpack
from .reader import Artifact, open_artifact
from .verify import verify_artifact
from .writer import ArtifactWriter

__all__ = [
    "FORMATS",
    "Artifact",
    "ArtifactWriter",
    "Format",
    "PagePlan",
    "Region",
    "StoredTensor",
    "artifact_id",
    "build_key",
    "fill_pages",
    "get_format",
    "open_artifact",
    "pack",
    "payload_root",
    "plan_pages",
    "unpack",
    "verify_artifact",
]
