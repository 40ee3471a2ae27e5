"""python -m tests.fuzz --minutes 30 --seed 0 [--target manifest ...] [--findings DIR]; --replay FILE reads a finding again; --list.

Targets take turns, in equal shares of the time. Exit code 1 when anything was found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that tests share

from . import artifacts, inputs, tokens
from .campaign import Campaign, outcome

TARGETS = {**artifacts.TARGETS, **inputs.TARGETS, **tokens.TARGETS}


def main(arguments: list[str]) -> int:
    """The exit code."""
    p = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    p.add_argument("--minutes", type=float, default=30.0, help="in all")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--target", action="append", choices=sorted(TARGETS), help="may be repeated; default: all")
    p.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    p.add_argument("--replay", type=Path, help="a finding's file")
    p.add_argument("--list", action="store_true")
    a = p.parse_args(arguments)
    if a.list:
        tell("\n".join(TARGETS))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if a.replay:
            return _replay(a.replay, Path(folder))
        names = a.target or list(TARGETS)
        found, cases, start = 0, 0, time.monotonic()
        for name in names:
            one = Campaign(name, TARGETS[name], a.seed, Path(folder) / name, a.findings)
            one.run(a.minutes * 60 / len(names))
            tell(f"{name:12} {one.number:8} cases {len(one.found):3} findings", *map(str, one.found))
            found, cases = found + len(one.found), cases + one.number
        used, passed = sum(os.times()[2:4]) / 60, (time.monotonic() - start) / 60  # of the children, and on the clock
        tell(f"{'all':12} {cases:8} cases {found:3} findings, {passed:.1f} minutes, {used:.1f} of processor time")
    return 1 if found else 0


def tell(*words: str) -> None:
    """A line, at once."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def _replay(path: Path, folder: Path) -> int:
    target = TARGETS[path.name.partition("-")[0]]
    target.start(folder)
    why = outcome(target, folder, path.read_bytes())
    tell(why or "nothing is wrong with it")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
