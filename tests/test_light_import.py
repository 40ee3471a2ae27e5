"""What a verb or package loads: tables of what may be loaded, held in a subprocess.

`plan`, `inspect`, `verify` and `gate` answer in well under two seconds because they never load torch; a package on a low floor loads
nothing that its floor has no use for. Real runs of a verb are rows of RUNS.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after one line of code, without those that it started with."""
    probe = PROBE.format(code=code, separator=SEPARATOR)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert SEPARATOR in done.stdout, done.stderr
    return set(json.loads(done.stdout.split(SEPARATOR)[1]))


def third_party(modules: set[str]) -> set[str]:
    """The top packages from outside the standard library."""
    tops = {name.split(".")[0] for name in modules}
    return {top for top in tops if top not in sys.stdlib_module_names and not top.startswith("_")} - {"thinlm", *BORROWED}


def verb(*arguments: str) -> str:
    """Code that runs `thinc` with these arguments."""
    return f"sys.argv = {['thinc', *arguments]!r}; from thinlm.compiler.cli import main; main()"


@pytest.mark.parametrize("package", PACKAGES)
def test_package_loads_little(package: str) -> None:
    assert third_party(loaded(f"import {package}")) <= PACKAGES[package]


@pytest.mark.parametrize("name", VERBS)
def test_help_loads_little(name: str) -> None:
    modules = loaded(verb(name, "--help"))
    assert "click" in modules
    assert third_party(modules) & HEAVY == set()


def test_the_probe_sees_an_import() -> None:
    assert {"scipy", "numpy"} <= third_party(loaded("import scipy"))
