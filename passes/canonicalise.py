"""canonicalise: the one form of a graph that later passes, goldens and the structure check see (simplify.py has the rewrites)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..schemas.graph import Graph
from .base import Numerics
from .facts import CANONICAL
from .simplify import simplify


@dataclass(frozen=True, slots=True)
class Canonicalise:
    """Drop identities, duplicates and dead values; number values in order."""

    name: ClassVar[str] = "canonicalise"
    requires: ClassVar[frozenset[str]] = frozenset()
    ensures: ClassVar[frozenset[str]] = frozenset({CANONICAL})
    drops: ClassVar[frozenset[str]] = frozenset()
    numerics: ClassVar[Numerics] = "exact"

    def run(self, graph: Graph) -> Graph:
        """The simplified graph."""
        return simplify(graph)
