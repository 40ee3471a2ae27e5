"""The contract of a pass: a frozen dataclass that turns a graph into a graph.

Its fields are its only options, its class attributes its contract:
  name       what pipelines print, imperative ("canonicalise")
  requires   facts that must hold before it
  ensures    facts that hold after it
  drops      facts that may no longer hold after it
  numerics   "exact": equal on the interpreter for integer inputs, or within 1e-12 in float64; "bounded": only inside a stage with a gate
No environment, globals, files or clock; a seed is a field. Checking is the pipeline's work (pipeline.py), facts are in facts.py.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

from ..schemas.graph import Graph

Numerics = Literal["exact", "bounded"]


class Pass(Protocol):
    """See module docstring."""

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]]
    ensures: ClassVar[frozenset[str]]
    drops: ClassVar[frozenset[str]]
    numerics: ClassVar[Numerics]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def run(self, graph: Graph) -> Graph:
        """The new graph; the old one is untouched. PassError when it can't be done."""
        ...
