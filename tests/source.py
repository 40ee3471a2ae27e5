"""What the tests of the house share: the floors, the source files, and their imports resolved to files.

The source is read from the repository that this file lies in, so that the checks see every file, importable or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"schemas": 1, "artifacts": 2, "runtime_min": 3, "passes": 4, "certify": 4, "compiler": 5}


@dataclass(frozen=True, slots=True)
class Source:
    """One source file: `name` is its path from the root (`schemas/graph.py`)."""

    name: str
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The floor's folder, `schemas`."""
        return self.name.split("/", 1)[0]

    @property
    def package(self) -> tuple[str, ...]:
        """The package that relative imports start from, ("artifacts", "formats")."""
        return tuple(self.name.split("/")[:-1])


def source(name: str, text: str) -> Source:
    """A Source from its text."""
    return Source(name, text, ast.parse(text, name))


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the six folders."""
    files = [path for folder in FLOORS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in files)


@dataclass(frozen=True, slots=True)
class Imported:
    """One imported module: `path` from the root, ("schemas", "graph"), for a relative import; its dotted name for an absolute one."""

    line: int
    relative: bool
    path: tuple[str, ...]


def imports(file: Source, modules: frozenset[tuple[str, ...]]) -> Iterator[Imported]:
    """Every import statement of a file, those inside functions and under TYPE_CHECKING included.

    `modules` is all known modules; `from .formats import base` is the module `base` when there is one, else the package `formats`.
    """
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, False, tuple(alias.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            named = tuple((node.module or "").split(".")) if node.module else ()
            if node.level == 0:
                yield Imported(node.lineno, False, named)
                continue
            base = file.package[: len(file.package) - (node.level - 1)] + named
            for alias in node.names:
                deeper = (*base, alias.name)
                yield Imported(node.lineno, True, deeper if deeper in modules or len(base) == 0 else base)


def module_path(name: str) -> tuple[str, ...]:
    """artifacts/formats/base.py -> ("artifacts", "formats", "base"); a package's __init__ is the package."""
    parts = name.removesuffix(".py").split("/")
    return tuple(parts[:-1] if parts[-1] == "__init__" else parts)


def module_set(files: tuple[Source, ...]) -> frozenset[tuple[str, ...]]:
    """The module paths of some files."""
    return frozenset(module_path(file.name) for file in files)
