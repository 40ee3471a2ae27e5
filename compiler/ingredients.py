"""Everything that a build's bits can depend on, by name: what the build key is made of.

In: a prepared compile and its texts. Out: JSON values, each named below, none of which is computed by the compile itself.
  source       config.json and every weight file, by content
  tokenizer    every tokenizer, template and generation file, by content
  recipe       resolved: budgets in bytes, context, batch, candidates, target, seed, gate, ...
  calibration  the text that statistics are computed from, "" where none are
  stats        recorded statistics that are read instead, "" where there are none
  code         the version and the digest of the package's own files, so that two states of development share nothing
  libraries    versions of what computes or tokenizes
  device       the class of processor: which code paths matrix products take
No path, time, user, environment variable or number of threads: those change nothing.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..artifacts.identity import sha256_hex
from ..certify.device import library_version, processor_field
from ..passes.calibrate import Stats
from ..schemas.canonical import canonical_bytes
from .prepare import Prepared

FOLDERS = ("artifacts", "certify", "compiler", "passes", "runtime_min", "schemas")
CODE_SUFFIXES = (".py", ".json", ".txt")  # code, and the data that it reads
LIBRARIES = ("numpy", "scipy", "tokenizers", "torch")


def ingredients(prepared: Prepared, calibration: str, recorded: Stats | None) -> dict[str, Any]:
    """See the module docstring; `calibration` is the digest of the text. Reads the checkpoint once."""
    return {
        "source": prepared.source.digest(),
        "tokenizer": {name: sha256_hex(data) for name, data in prepared.source.tokenizer_files().items()},
        "recipe": msgspec.to_builtins(prepared.recipe),
        "calibration": calibration if recorded is None else "",
        "stats": "" if recorded is None else recorded.digest(),
        "code": code_version(),
        "libraries": library_versions(),
        "device": device_class(),
    }


@cache
def code_version() -> dict[str, str]:
    """The package's version and the digest of its files as they are installed; computed once in a process."""
    root = Path(__file__).parents[1]
    return {"version": metadata.version("thinlm"), "files": code_digest(root / name for name in FOLDERS)}


def toolchain() -> list[Any]:
    """What every computed figure follows from beside its input: code, libraries, processor."""
    return [code_version(), library_versions(), device_class()]


def code_digest(folders: Iterable[Path]) -> str:
    """SHA-256 over the names below `folders` and contents of all code files; of two trees with equal files it is equal."""
    files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for folder in folders for name, path in _code_files(folder, folder.name)}
    return sha256_hex(canonical_bytes(files))


def library_versions() -> Mapping[str, str]:
    """Version by name, "" for what is not installed."""
    return {name: library_version(name) for name in LIBRARIES}


@cache
def device_class() -> dict[str, Any]:
    """The processors that give equal bits: architecture, vendor (MKL asks for it) and the vector extensions that numpy found."""
    simd = np.show_config(mode="dicts")
    assert simd is not None
    extensions = simd["SIMD Extensions"]
    found = sorted({*extensions.get("baseline", ()), *extensions.get("found", ())})
    return {"kind": "cpu", "machine": platform.machine(), "vendor": processor_field("vendor_id"), "extensions": found}


def _code_files(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir():
        if path.name.startswith((".", "__pycache__")):
            continue
        if path.is_dir():
            yield from _code_files(path, f"{name}/{path.name}")
        elif path.suffix in CODE_SUFFIXES:
            yield f"{name}/{path.name}", path
