"""House rules that a linter doesn't know: no machine paths, the environment is read in one file, libraries neither print nor swallow
errors, every package and its tests lie where they are looked for, and JSON schemas are closed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest

from source import FLOORS, ROOT, Source, source, sources

CLI = "compiler/cli.py"
PANICS = "runtime_min/limited.py"  # hands on whatever a call in its thread raises, a native library's panic included
# Where text is shipped data rather than ours.
DATA = ("certify/data/", "examples/pico/", "tests/archive/", "tests/golden/")
TEXTS = (".py", ".sh", ".md", ".cfg", ".toml", ".json", ".txt")
TOP_FILES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LOG.md", "setup.cfg", "pyproject.toml", "ruff.toml", "pyrightconfig.json")
FOLDERS = (*FLOORS, "examples", "scripts", "benchmarks", "tests", ".ci")
MACHINE_PATH = re.compile(r"(?<![\w.}*~])/(?:work|tmp|home|root|opt|Users|mnt)/\w")
TEST_KINDS = {"golden", "archive", "attacks", "attacks_hf", "data", "fuzz", "soak"}
# What an assert may call: it must do no work, because `python -O` leaves it out.
IN_ASSERTS = {
    *("all", "any", "get", "get_args", "isinstance", "items", "keys", "len", "map", "max", "min"),
    *("set", "sorted", "startswith", "sum", "values"),
}


def texts() -> Iterator[tuple[str, str]]:
    """(name, text) of every file that we wrote."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            scripted = path.suffix == "" and folder in ("scripts", ".ci")
            if path.is_file() and (scripted or path.suffix in TEXTS) and not name.startswith(DATA):
                yield name, path.read_text(encoding="utf-8")
    for name in TOP_FILES:
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def problems(file: Source) -> Iterator[str]:
    """Rules that one source file breaks, as `name:line: what`."""
    for node in ast.walk(file.tree):
        line = f"{file.name}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.ExceptHandler(type=None) | ast.ExceptHandler(type=ast.Name(id="Exception" | "BaseException")):
                yield f"{line}: catches everything"
            case ast.ExceptHandler(type=ast.Tuple(elts=kinds)) if any(isinstance(k, ast.Name) and k.id.endswith("eException") for k in kinds):
                yield f"{line}: catches everything"
            case ast.Call(func=ast.Name(id="print" | "input" | "breakpoint" as name)):
                yield f"{line}: calls {name}"
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "putenv" as name):
                yield f"{line}: reads os.{name}"
            case ast.ImportFrom(module="os", names=names) if any(alias.name in ("environ", "getenv") for alias in names):
                yield f"{line}: reads the environment"
            case ast.Assert(test=test) if any(works(n) for n in ast.walk(test)):
                yield f"{line}: works inside an assert"
            case ast.FunctionDef(decorator_list=[*_, ast.Call(func=ast.Attribute(attr="register"))]):
                yield f"{line}: registers itself on import"


def works(node: ast.AST) -> bool:
    """Assigns, or calls what may change something."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name not in IN_ASSERTS
        case _:
            return isinstance(node, (ast.NamedExpr, ast.Call, ast.Await))


def test_no_machine_paths() -> None:
    found = [f"{name}: {match[0]}" for name, text in texts() for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_source_rules() -> None:
    found = [problem for file in sources() if file.name != CLI for problem in problems(file)]
    assert [problem for problem in found if not problem.startswith(f"{PANICS}:") or "catches everything" not in problem] == []


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("try: f()\nexcept Exception: pass", "catches everything"),
        ("try: f()\nexcept: pass", "catches everything"),
        ("try: f()\nexcept (OSError, BaseException): pass", "catches everything"),
        ("print(1)", "calls print"),
        ("import os\nx = os.environ.get('A')", "reads os.environ"),
        ("from os import getenv", "reads the environment"),
        ("@TABLE.register('x')\ndef f(): ...", "registers itself"),
        ("assert owner.pop(1) == 2", "works inside"),
        ("assert (x := f) == 2", "works inside"),
    ],
)
def test_source_rules_refuse(code: str, what: str) -> None:
    assert [what in problem for problem in problems(source("passes/a.py", code))] == [True]


def test_machine_paths_are_found() -> None:
    assert MACHINE_PATH.search("open('/" + "tmp/x')")
    assert not MACHINE_PATH.search("see network/opt/x and ~/work/x")


def test_json_schemas_are_closed() -> None:
    """Every object of a schema that names its properties also says what happens to others."""
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "schemas/json").glob("*.json")}
    assert schemas
    assert [name for name, schema in schemas.items() if "$schema" not in schema] == []
    nodes = [found for name, schema in schemas.items() for found in objects(schema, name)]
    assert [where for where, node in nodes if "properties" in node and "additionalProperties" not in node] == []


def objects(node: object, where: str) -> Iterator[tuple[str, dict]]:
    """Every dict inside a JSON value, with where it is."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield where, node
    for key, child in children:
        yield from objects(child, f"{where}.{key}")


def test_every_folder_is_a_package() -> None:
    missing = {"/".join(file.package) for file in sources()} - {"/".join(f.package) for f in sources() if f.name.endswith("/__init__.py")}
    assert missing == set()


def test_tests_mirror_the_folders() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert set(FLOORS) <= folders <= set(FLOORS) | TEST_KINDS
    assert [folder for folder in FLOORS if not list((ROOT / "tests" / folder).rglob("test_*.py"))] == []
