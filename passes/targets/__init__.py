"""Targets: what a device class executes well and what weights cost on it. A new target is one file and one line in TARGETS."""

from __future__ import annotations

from ...schemas.errors import UsageError
from .base import Target
from .cpu import CPU

__all__ = ["TARGETS", "Target", "get_target"]

TARGETS: dict[str, Target] = {t.name: t for t in (CPU,)}


def get_target(name: str) -> Target:
    """The target of that name; UsageError listing the valid names."""
    if name not in TARGETS:
        raise UsageError(f"target {name!r} is unknown; valid names: {', '.join(TARGETS)}")
    return TARGETS[name]
