"""Prints the size of the source: lines per folder, and the longest files and functions. A report; it never fails.

In: nothing; it reads the repository it lies in. Out: a table on stdout. Lines are lines of text, blank ones and comments left out.
"""

import ast
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("schemas", "artifacts", "runtime_min", "passes", "certify", "compiler", "examples", "scripts", "benchmarks", "tests")
FILE_AIM, FUNCTION_AIM = 250, 50
SHOWN = 8


def code_lines(text: str) -> int:
    """Lines that hold more than blanks or a comment."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def functions(tree: ast.AST) -> list[tuple[str, int]]:
    """(name, lines) of every function, methods and nested ones included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in ast.walk(tree) if isinstance(node, kinds)]


def main() -> None:
    """Print the three tables."""
    long_files: list[tuple[int, str]] = []
    long_functions: list[tuple[int, str]] = []
    print(f"{'folder':<14}{'files':>6}{'lines':>8}{'median file':>13}{'median function':>17}")
    for folder in FOLDERS:
        sizes, lengths = [], []
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(ROOT).as_posix()
            sizes.append(code_lines(text))
            if folder != "tests":
                long_files.append((len(text.splitlines()), name))
            for function, lines in functions(ast.parse(text)):
                lengths.append(lines)
                if folder != "tests":
                    long_functions.append((lines, f"{name}: {function}"))
        if sizes:
            print(f"{folder:<14}{len(sizes):>6}{sum(sizes):>8}{median(sizes):>13g}{median(lengths or [0]):>17g}")
    for title, rows, aim in (("longest files", long_files, FILE_AIM), ("longest functions", long_functions, FUNCTION_AIM)):
        print(f"\n{title} (aim: at most {aim} lines)")
        for lines, name in sorted(rows, reverse=True)[:SHOWN]:
            print(f"{lines:>6}  {name}{'  <- over' if lines > aim else ''}")


if __name__ == "__main__":
    main()
