"""`thinc` in processes of its own, in environments that a test chooses: nothing of the test's own environment but where Python finds things."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MAIN = "from thinlm.compiler.cli import main; main()"
ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + MAIN
INHERITED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where and how a command runs; `prefix` is what it is run by (`unshare -rn`)."""

    cwd: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    umask: int = -1  # the caller's
    one_core: bool = False
    prefix: Sequence[str] = ()

    def command(self, arguments: Sequence[object]) -> list[str]:
        """The whole command line of `thinc ARGUMENTS`."""
        return [*self.prefix, sys.executable, "-c", ONE_CORE if self.one_core else MAIN, *map(str, arguments)]

    def variables(self) -> dict[str, str]:
        """The whole environment; one thread where nothing else is asked for."""
        kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
        return {**kept, "OMP_NUM_THREADS": "1", **self.environment}


HERE = Surroundings()


def start(arguments: Sequence[object], where: Surroundings, said: IO[str]) -> subprocess.Popen[str]:
    """A running `thinc` that writes all it says to the file `said`."""
    variables = where.variables()
    return subprocess.Popen(where.command(arguments), cwd=where.cwd, env=variables, umask=where.umask, stdout=said, stderr=said, text=True)


def thinc(*arguments: object, where: Surroundings = HERE, text: str = "") -> subprocess.CompletedProcess[str]:
    """A finished `thinc`, `text` being its standard input."""
    command, variables = where.command(arguments), where.variables()
    return subprocess.run(command, cwd=where.cwd, env=variables, umask=where.umask, input=text, capture_output=True, text=True, check=False)
