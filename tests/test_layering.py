"""The floors: a folder imports only from floors below it, modules of a folder import each other without circles, and each folder
uses only the packages that its floor allows. Checked on the syntax tree (imports inside functions included) and on sys.modules."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from source import FLOORS, ROOT, Source, imports, module_path, module_set, source, sources

# Packages outside the standard library; the longest prefix that fits a file counts.
BASE = {"numpy", "msgspec"}
ALLOWED = {
    "schemas/": BASE,
    "artifacts/": BASE,
    "runtime_min/": BASE | {"tokenizers", "jinja2"},
    "runtime_min/backends/torch_cpu": BASE | {"torch"},
    "passes/": BASE | {"torch", "scipy"},
    "certify/": BASE,
    "certify/checks/torch_memory": BASE | {"torch"},  # the one peak that only torch's own dispatcher can measure
    "compiler/": BASE | {"torch", "yaml", "tokenizers", "click", "rich"},
}


def floor_problems(files: tuple[Source, ...]) -> list[str]:
    """Imports that go up or sideways, are absolute, or leave the project's folders."""
    modules = module_set(files)
    problems = []
    for file in files:
        for found in imports(file, modules):
            where, top = f"{file.name}:{found.line}", found.path[0]
            if not found.relative:
                if top == "thinlm" or top in FLOORS:
                    problems.append(f"{where}: absolute import of {'.'.join(found.path)}")
            elif top not in FLOORS:
                problems.append(f"{where}: {'.'.join(found.path)} is not in one of the six folders")
            elif top != file.folder and FLOORS[top] >= FLOORS[file.folder]:
                problems.append(f"{where}: {file.folder} (floor {FLOORS[file.folder]}) imports {top} (floor {FLOORS[top]})")
    return problems


def cycle(files: tuple[Source, ...]) -> list[str]:
    """The modules of one import circle, or nothing. Python's own import of parent packages is no edge: it can't fail."""
    modules = module_set(files)
    edges = {module_path(f.name): {i.path for i in imports(f, modules) if i.relative and i.path in modules} for f in files}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return ["/".join(path) for path in error.args[1]]
    return []


def package_problems(files: tuple[Source, ...]) -> list[str]:
    """Third-party packages that a file's floor does not allow."""
    modules, problems = module_set(files), []
    for file in files:
        allowed = ALLOWED[max((prefix for prefix in ALLOWED if file.name.startswith(prefix)), key=len)]
        for found in imports(file, modules):
            if not found.relative and found.path[0] not in allowed | sys.stdlib_module_names:
                problems.append(f"{file.name}:{found.line}: {found.path[0]} is not for this floor, only {sorted(allowed)}")
    return problems


def test_floors() -> None:
    assert floor_problems(sources()) == []


def test_no_cycles() -> None:
    assert cycle(sources()) == []


def test_packages_of_each_floor() -> None:
    assert package_problems(sources()) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("schemas/a.py", "from ..artifacts import b", "schemas (floor 1) imports artifacts"),
        ("artifacts/formats/a.py", "def f():\n    from ...passes.x import y", "artifacts (floor 2) imports passes"),
        ("passes/a.py", "from ..certify import gate", "passes (floor 4) imports certify"),
        ("certify/a.py", "from .. import passes", "certify (floor 4) imports passes"),
        ("compiler/a.py", "import thinlm.schemas", "absolute import of thinlm.schemas"),
        ("compiler/a.py", "from schemas.graph import Graph", "absolute import of schemas.graph"),
        ("compiler/a.py", "from ..tests import x", "tests is not in one of the six folders"),
    ],
)
def test_floors_refuse(name: str, text: str, message: str) -> None:
    assert [message in problem for problem in floor_problems((source(name, text),))] == [True]


def test_cycles_are_found() -> None:
    circle = (
        source("artifacts/a.py", "from . import b"),
        source("artifacts/b.py", "def f():\n    from .formats import c"),
        source("artifacts/formats/__init__.py", ""),
        source("artifacts/formats/c.py", "from ..a import x"),
    )
    assert set(cycle(circle)) == {"artifacts/a", "artifacts/b", "artifacts/formats/c"}
    assert cycle(circle[:-1]) == []


def test_packages_refuse() -> None:
    assert package_problems((source("artifacts/a.py", "def f():\n    import torch.nn"),))
    assert not package_problems((source("runtime_min/backends/torch_cpu.py", "import torch"),))


@pytest.mark.parametrize("folder", FLOORS)
def test_loaded_modules(folder: str) -> None:
    """Importing every module of a folder loads nothing from its own floor or above."""
    names = ["thinlm." + ".".join(module_path(f.name)) for f in sources() if f.folder == folder]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    tops = {name.split(".")[1] for name in loaded if name.startswith("thinlm.")}
    assert tops - {folder} <= {other for other in FLOORS if FLOORS[other] < FLOORS[folder]}
    assert {name.split(".")[0] for name in loaded}.isdisjoint(FLOORS)


def test_setup_lists_every_package() -> None:
    """setuptools can't find packages under a mapped root, so setup.cfg lists them; a forgotten one would miss from the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = setup["options"]["packages"].split()
    assert sorted(listed) == sorted({"thinlm." + ".".join(file.package) for file in sources()})


def test_wheel_holds_only_thinlm(tmp_path: Path) -> None:
    """A plain install puts nothing but thinlm into site-packages, with every source file and the data that goes with them."""
    for name in FLOORS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "."]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = {"schemas/json", "artifacts/SPEC.md", "certify/data"}
    files = [path for name in data for path in (ROOT / name, *(ROOT / name).rglob("*")) if path.is_file()]
    files = [path for path in files if path.suffix != ".pyc" and path.name[0] != "."]
    assert names == {f"thinlm/{path.relative_to(ROOT).as_posix()}" for path in files} | {f"thinlm/{file.name}" for file in sources()}
