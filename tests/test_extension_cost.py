"""Adding a unit is one new file, one registry line and one test row: no unit's name occurs in any other source file.

Kinds: architecture families (compiler/frontends), number formats (artifacts/formats), passes (passes). A unit's own file and its
folder's registry may name it. A pass called by one everyday word, such as `relayout`, is looked for by its class name alone. Below
floor 5 a family may not even be mentioned in a comment: there the graph is all that is known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source import FLOORS, Source, source, sources

ARCHITECTURE = re.compile(r"[A-Z]\w+For(CausalLM|ConditionalGeneration)")
# A program whose file format we read and write, and a way to scale rope frequencies that many families use.
NO_FAMILY = re.compile(r"llama\.cpp|\bllama3\b")
FRONTENDS, FORMATS, PASSES = "compiler/frontends/", "artifacts/formats/", "passes/"
PASS_REGISTRIES = ("passes/__init__.py", "passes/pipeline.py")


def strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """The string constants of a file that are not docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)}
    return (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs)


def words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of everything a program says in code: names, attributes, arguments, imports and strings, but no docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.FunctionDef(name=text) | ast.ClassDef(name=text):
                yield node.lineno, text
            case ast.keyword(arg=str(text)):
                yield node.lineno, text
            case ast.ImportFrom(module=module, names=names):
                yield from ((node.lineno, text) for text in (module or "", *(alias.name for alias in names)))
    yield from ((node.lineno, node.value) for node in strings(tree))


def is_family(file: Source) -> bool:
    """A frontends file that names a checkpoint's architecture."""
    return file.name.startswith(FRONTENDS) and any(ARCHITECTURE.fullmatch(node.value) for node in strings(file.tree))


def family_problems(files: tuple[Source, ...]) -> list[str]:
    """Places outside compiler/frontends' family files and registry that name a family."""
    families = {file.name.rsplit("/", 1)[1].removesuffix(".py") for file in files if is_family(file)}
    if not families:
        return []
    named = re.compile("|".join(sorted(families)), re.IGNORECASE)
    problems = []
    for file in files:
        if is_family(file) or file.name == FRONTENDS + "__init__.py":
            continue
        lines = enumerate(file.text.splitlines(), 1) if FLOORS[file.folder] < 5 else words(file.tree)
        problems += [f"{file.name}:{line}: {found[0]}" for line, text in lines if (found := named.search(NO_FAMILY.sub("", text)))]
    return problems


def format_problems(files: tuple[Source, ...], names: set[str]) -> list[str]:
    """Strings outside artifacts/formats that name a packed number format, with or without its version."""
    words = names | {name.split("/")[0] for name in names}
    outside = [file for file in files if not file.name.startswith(FORMATS)]
    return [f"{file.name}:{node.lineno}: {node.value}" for file in outside for node in strings(file.tree) if node.value in words]


def passes(file: Source) -> set[str]:
    """The class names and hyphened names of the passes that a file defines: classes with a string `name` and a `run`."""
    found = set()
    for node in file.tree.body:
        if isinstance(node, ast.ClassDef) and any(isinstance(item, ast.FunctionDef) and item.name == "run" for item in node.body):
            for item in node.body:
                match item:
                    case (
                        ast.AnnAssign(target=ast.Name(id="name"), value=ast.Constant(value=str(name)))
                        | ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(name)))
                    ):
                        found |= {node.name, name} if "-" in name else {node.name}
    return found


def pass_problems(files: tuple[Source, ...]) -> list[str]:
    """Places that name a pass outside its own file and the registry."""
    homes = {name: file.name for file in files if file.name.startswith(PASSES) for name in passes(file)}
    return [
        f"{file.name}:{line}: {text}"
        for file in files
        if file.name not in PASS_REGISTRIES
        for line, text in words(file.tree)
        if homes.get(text, file.name) != file.name
    ]


def test_families_are_known_in_one_place() -> None:
    assert len([file for file in sources() if is_family(file)]) >= 5
    assert family_problems(sources()) == []


def test_formats_are_known_in_one_place() -> None:
    from thinlm.artifacts.formats import FORMATS as table

    assert format_problems(sources(), {name for name in table if "-" in name}) == []


def test_passes_are_known_in_one_place() -> None:
    assert any(passes(file) for file in sources())
    assert pass_problems(sources()) == []


def test_family_names_are_found() -> None:
    family = source(FRONTENDS + "opal.py", 'OPAL = Family(arch="OpalForCausalLM")')
    others = [
        ("schemas/a.py", "# as Opal does", 1),
        ("compiler/a.py", "# as Opal does", 0),
        ("compiler/a.py", "if kind == 'opal': pass", 1),
        ("compiler/frontends/__init__.py", "from .opal import OPAL", 0),
        ("compiler/frontends/blocks.py", "def opal_block(): ...", 1),
    ]
    assert [len(family_problems((family, source(name, text)))) for name, text, _ in others] == [count for *_, count in others]


def test_format_names_are_found() -> None:
    files = (source("passes/a.py", '"""int9-g8/1 is fine here."""\nx = "int9-g8"'), source("artifacts/formats/int9.py", 'NAME = "int9-g8/1"'))
    assert format_problems(files, {"int9-g8/1"}) == ["passes/a.py:2: int9-g8"]


def test_pass_names_are_found() -> None:
    own = source("passes/fold.py", 'class Fold:\n    name: ClassVar = "fold-it"\n    def run(self, graph): ...')
    files = (own, source("passes/__init__.py", "from .fold import Fold"), source("compiler/driver.py", "from ..passes import Fold\nx = 'fold-it'"))
    assert pass_problems(files) == ["compiler/driver.py:1: Fold", "compiler/driver.py:2: fold-it"]
