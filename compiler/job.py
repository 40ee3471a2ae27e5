"""What a compile is asked for, and what is refused before any work: a target that may not be written, a disk or a context that is too small.

In: a Job, and later the prepared checkpoint. Out: nothing, or texts and the build key. Refused: UsageError, DiskError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..artifacts.disk import require_space, used_bytes
from ..artifacts.target import LEFT, hidden, rejected_name, require_free, require_writable
from ..certify.data import load_documents
from ..certify.texts import SKIP
from ..passes.calibrate import load_stats
from ..schemas.errors import UsageError
from ..schemas.recipe import Recipe
from ..schemas.texts import Document, documents_digest
from .claims import key_of
from .prepare import Prepared
from .room import disk_bytes
from .search import as_stored
from .text_data import read_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `thinc compile` was asked for. `stats` reads recorded calibration statistics, `save_stats` records them.

    `max_ram`: bytes of anonymous memory that the process may take, None for what the machine has; it changes the speed, never the artifact.
    """

    model: Path
    output: Path
    recipe: Recipe
    calibration: Path | None = None
    stats: Path | None = None
    save_stats: Path | None = None
    force: bool = False
    resume: bool = False
    certify: bool = True
    max_ram: int | None = None


def calibration_text(job: Job) -> Sequence[Document]:
    """The user's own, or the shipped."""
    return read_documents(job.calibration) if job.calibration else load_documents("calibration")


def build_key_of(job: Job, prepared: Prepared, calibration: Sequence[Document]) -> str:
    """build_key, before anything was computed."""
    text = documents_digest(calibration) if as_stored(prepared) is None else ""
    return key_of(prepared, text, load_stats(job.stats) if job.stats and text else None)


def require_room(job: Job, prepared: Prepared) -> None:
    """DiskError when the artifact and the steps that are kept until it is published can't fit."""
    there = sum(used_bytes(hidden(job.output, kind)) for kind in LEFT)
    require_space(job.output.parent, disk_bytes(prepared) - there, f"compiling {job.output.name}")


def require_positions(job: Job, prepared: Prepared) -> None:
    """UsageError for a context in which nothing could be measured."""
    assert prepared.recipe.context is not None
    if job.certify and prepared.recipe.context <= SKIP:
        raise UsageError(f"context: {prepared.recipe.context} positions, certification needs more than {SKIP}; pass more, or --no-certify")


def require_targets(job: Job) -> None:
    """UsageError for a target that may not be written, before the work and not after it."""
    if job.output.suffix != ".thin":
        raise UsageError(f"{job.output}: the name of an artifact ends in .thin")
    require_free(job.output, force=job.force)
    require_free(rejected_name(job.output), force=True)
    if job.save_stats:
        require_writable(job.save_stats)
