"""What a verb or package loads: tables of what may be loaded, held in a subprocess.

`plan`, `inspect`, `verify` and `gate` answer in well under two seconds because they never load torch; a package on a low floor loads
nothing that its floor has no use for. Real runs of a verb are rows of RUNS.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from source import ROOT
from tiny_artifact import build

HEAVY = {"torch", "transformers", "triton", "scipy", "safetensors", "gguf", "onnx", "pandas", "networkx", "sympy"}

# Importing the package loads these third-party packages and no other.
PACKAGES = {
    "thinlm.schemas": {"msgspec", "numpy"},
    "thinlm.artifacts": {"msgspec", "numpy"},
    "thinlm.runtime_min": {"msgspec", "numpy"},
    "thinlm.certify": {"msgspec", "numpy"},
    "thinlm.passes": {"msgspec", "numpy"},
    "thinlm.compiler": {"msgspec", "numpy"},
}

# What numpy (Cython's runtime) and msgspec (where it is installed) load themselves.
BORROWED = {"cython_runtime", "typing_extensions"}

VERBS = ("compile", "plan", "certify", "gate", "verify", "inspect", "run", "chat", "pack", "unpack", "doctor")

SEPARATOR = "\n--loaded--\n"
PROBE = """
import sys
before = set(sys.modules)
try:
    {code}
finally:
    print({separator!r} + __import__("json").dumps(sorted(set(sys.modules) - before)))
"""

# Real runs: arguments, and the exit codes that show that the verb did its work. A tiny artifact has no certificate to judge.
RUNS = (
    (("plan", "MODEL", "--weights-budget", "36%", "--json"), {0}),
    (("inspect", "ARTIFACT", "--json"), {0}),
    (("inspect", "MODEL", "--json"), {0}),
    (("verify", "ARTIFACT", "--json"), {0}),
    (("gate", "ARTIFACT", "--json"), {4, 6}),
)


def loaded(code: str, exit_codes: set[int] | None = None) -> set[str]:
    """The modules that a fresh interpreter holds after one line of code, without those that it started with."""
    probe = PROBE.format(code=code, separator=SEPARATOR)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode in (exit_codes or {0}), done.stdout + done.stderr
    return set(json.loads(done.stdout.split(SEPARATOR)[1]))


def third_party(modules: set[str]) -> set[str]:
    """The top packages from outside the standard library."""
    tops = {name.split(".")[0] for name in modules}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")} - {"thinlm", *BORROWED}


def verb(*arguments: str) -> str:
    """Code that runs `thinc` with these arguments."""
    return f"sys.argv = {['thinc', *arguments]!r}; from thinlm.compiler.cli import main; main()"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("light") / "tiny.thin")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_loads_little(package: str) -> None:
    assert third_party(loaded(f"import {package}")) <= PACKAGES[package]


@pytest.mark.parametrize("name", VERBS)
def test_help_loads_little(name: str) -> None:
    assert third_party(loaded(verb(name, "--help"))) & HEAVY == set()


@pytest.mark.parametrize(("arguments", "exit_codes"), RUNS, ids=[" ".join(run[0][:2]) for run in RUNS])
def test_run_loads_little(arguments: tuple[str, ...], exit_codes: set[int], artifact: Path) -> None:
    places = {"MODEL": str(ROOT / "examples/pico"), "ARTIFACT": str(artifact)}
    assert third_party(loaded(verb(*(places.get(word, word) for word in arguments)), exit_codes)) & HEAVY == set()


def test_the_probe_sees_an_import() -> None:
    assert {"scipy", "numpy"} <= third_party(loaded("import scipy"))
    assert "torch" in third_party(loaded("import thinlm.runtime_min.backends.torch_cpu"))
