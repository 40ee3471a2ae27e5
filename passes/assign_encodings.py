"""assign-encodings: write the allocation's formats into the graph's params.

In: (param, format name) pairs for every param. Out: the same graph with `Param.encoding` set.
Refused with PassError: a param without a format, a format for no param. The fact `encoded` checks the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..schemas.errors import PassError
from ..schemas.graph import Graph
from .base import Numerics
from .facts import CANONICAL, ENCODED


@dataclass(frozen=True, slots=True)
class AssignEncodings:
    """Give every param its number format."""

    encodings: tuple[tuple[str, str], ...]

    name: ClassVar[str] = "assign-encodings"
    requires: ClassVar[frozenset[str]] = frozenset({CANONICAL})
    ensures: ClassVar[frozenset[str]] = frozenset({ENCODED})
    drops: ClassVar[frozenset[str]] = frozenset()
    numerics: ClassVar[Numerics] = "bounded"

    def run(self, graph: Graph) -> Graph:
        """The graph with encodings."""
        given, names = dict(self.encodings), {p.name for p in graph.params}
        if given.keys() != names:
            missing, extra = sorted(names - given.keys())[:3], sorted(given.keys() - names)[:3]
            raise PassError(f"{self.name}: params without a format: {missing}, formats without a param: {extra}")
        return graph.with_encodings(given)
