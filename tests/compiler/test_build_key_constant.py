"""The build key: what does not change it - where things lie, their order, times and modes, the environment - and the digest of the code."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tiny_source
from source import ROOT
from thinlm.compiler.claims import key_of
from thinlm.compiler.ingredients import CODE_SUFFIXES, FOLDERS, code_digest
from thinlm.compiler.prepare import prepare
from thinlm.schemas.recipe import Recipe
from tiny_source import copy_reversed, flip

RECIPE = Recipe(weights_budget="60%", context=100)
TEXT = "a" * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_source.write(tmp_path / "model")


@pytest.fixture
def key(model: Path) -> str:
    return key_in(model)


def key_in(folder: Path, recipe: Recipe = RECIPE) -> str:
    return key_of(prepare(folder, recipe), TEXT, None)


def _extra(folder: Path) -> Path:
    for name in ("README.md", "pytorch_model.bin.index.json", ".gitattributes", "tokenizer.model", "training_args.txt"):
        (folder / name).write_text("{}")
    (folder / "model").mkdir()
    return folder


def _linked(folder: Path) -> Path:
    """As in a hub cache: every file is a link to one that is named by its content."""
    snapshot, blobs = folder.with_name("snapshots") / "main", folder.with_name("blobs")
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / f"blob{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob{number}")
    return snapshot


PLACES: dict[str, Callable[[Path], Path]] = {
    "another name": lambda f: f.rename(f.with_name("something else")),
    "another order, times and modes": lambda f: copy_reversed(f, f.parent / "deeper" / "model"),
    "files that nobody reads": _extra,
    "links": _linked,
    "a path with dots": lambda f: f / ".." / f.name,
}


@pytest.mark.parametrize("what", PLACES)
def test_where_the_checkpoint_lies_does_not_count(what: str, model: Path, key: str) -> None:
    assert key_in(PLACES[what](model)) == key


def test_the_spelling_of_a_recipe_does_not_count(model: Path, key: str) -> None:
    resolved = prepare(model, RECIPE).recipe
    assert isinstance(resolved.weights_budget, int)
    assert key_in(model, resolved) == key_in(model, msgspec.structs.replace(RECIPE, weights_budget="60.0 %")) == key


PRINT_KEY = """
import sys
from pathlib import Path
from thinlm.compiler.claims import key_of
from thinlm.compiler.prepare import prepare
from thinlm.schemas.recipe import Recipe
print(key_of(prepare(Path(sys.argv[1]), Recipe(weights_budget="60%", context=100)), "a" * 64, None))
"""


def environments(folder: Path, tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, str], int]]:
    """(path as given, working directory, environment, umask)."""
    yield str(folder), tmp_path, {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC", "OMP_NUM_THREADS": "1"}, 0o022
    odd = {"LC_ALL": "tr_TR.UTF-8", "LANG": "ja_JP.eucJP", "TZ": "Pacific/Kiritimati", "HOME": "/nonexistent", "USER": "nobody"}
    yield folder.name, folder.parent, {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2", "HF_HOME": "x", "PYTHONDONTWRITEBYTECODE": "1", **odd}, 0o077


def test_the_environment_does_not_count(model: Path, tmp_path: Path, key: str) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    for path, folder, environment, mask in environments(model, tmp_path):
        command = [sys.executable, "-c", PRINT_KEY, path]
        done = subprocess.run(command, cwd=folder, env=kept | environment, umask=mask, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == key


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "first" / "passes"
    (folder / "round").mkdir(parents=True)
    for name, text in (("a.py", "x = 1\n"), ("b.py", "x = 2\n"), ("round/__init__.py", ""), ("data.json", "{}")):
        (folder / name).write_text(text)
    return folder


EDITS: dict[str, Callable[[Path], Any]] = {
    "one bit": lambda f: flip(f / "a.py", 4),
    "data": lambda f: (f / "data.json").write_text("[]"),
    "deeper": lambda f: (f / "round" / "__init__.py").write_text("\n"),
    "one file more": lambda f: (f / "c.py").write_text(""),
    "one file less": lambda f: (f / "round" / "__init__.py").unlink(),
    "renamed": lambda f: (f / "a.py").rename(f / "c.py"),
    "moved": lambda f: (f / "a.py").rename(f / "round" / "a.py"),
    "swapped": lambda f: [(f / name).write_text(text) for name, text in (("a.py", "x = 2\n"), ("b.py", "x = 1\n"))],
}


@pytest.mark.parametrize("what", EDITS)
def test_every_code_file_counts(what: str, code: Path) -> None:
    before = code_digest([code])
    EDITS[what](code)
    assert code_digest([code]) != before


def test_nothing_else_about_the_code_counts(code: Path, tmp_path: Path) -> None:
    before = code_digest([code])
    copy = copy_reversed(code, tmp_path / "elsewhere" / "passes")
    (copy / "__pycache__").mkdir()
    for name in ("__pycache__/a.cpython-311.pyc", "__pycache__/left.py", ".a.py.swp", "a.py~", "notes.md"):
        (copy / name).write_bytes(b"x")
    assert code_digest([copy]) == before


def test_the_installed_package_has_the_same_code() -> None:
    """Data that counts as code is shipped: otherwise an installed thinc and a checkout of it would differ."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    shipped = {package: patterns.split(", ") for package, patterns in setup["options.package_data"].items()}

    def ships(path: Path) -> bool:
        parts = path.relative_to(ROOT).parts
        owners = (("thinlm." + ".".join(parts[:n]), "/".join(parts[n:])) for n in range(1, len(parts)))
        return path.suffix == ".py" or any(fnmatch(rest, pattern) for owner, rest in owners for pattern in shipped.get(owner, ()))

    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in CODE_SUFFIXES and "__pycache__" not in p.parts]
    assert len(found) > 100 and [path for path in found if not ships(path)] == []
