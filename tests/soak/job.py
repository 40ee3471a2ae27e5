"""A compile in a process of its own, and what it leaves beside its target while it runs.

An *event* is a finished part: a line of the journal (a page kind that was written) or a file in the work folder, named `STAGE.WHAT`. What
happens between two events belongs to the stage of the second; what follows the last one is called "publish".
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from thinlm.artifacts import open_artifact

MAIN = "from thinlm.compiler.cli import main; main()"
POLL = 0.004  # seconds
PATIENCE = 1200.0  # seconds without an event, in which a compile is taken to hang
WRITE, PUBLISH = "write", "publish"


class Broken(AssertionError):
    """Something that must never be."""


def check(holds: bool, what: str) -> None:
    """Broken unless it holds."""
    if not holds:
        raise Broken(what)


def stage_of(event: str) -> str:
    """`calibrate.backward-0003` -> `calibrate`."""
    return re.split(r"[.-]", event, maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished compile published."""

    code: int
    payload_root: str
    artifact_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """`thinc compile MODEL -o TARGET ARGUMENTS`."""

    model: Path
    target: Path
    arguments: tuple[str, ...]

    @property
    def says(self) -> Path:
        """The file that receives all output of the last process."""
        return self.target.parent.parent / f"{self.target.parent.name}.log"

    def start(self, *, resume: bool) -> subprocess.Popen[bytes]:
        """A running compile."""
        more = ("--resume",) if resume else ()
        command = [sys.executable, "-c", MAIN, "compile", str(self.model), "-o", str(self.target), *self.arguments, *more]
        with open(self.says, "wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def said(self) -> str:
        """Everything that the last process said."""
        return self.says.read_text(encoding="utf-8", errors="replace")

    def events(self) -> Iterator[str]:
        """Events whose traces lie on the disk now."""
        hidden = self.target.with_name(f".{self.target.name}.journal")
        lines = hidden.read_bytes().split(b"\n")[1:-1] if hidden.is_file() else []
        yield from (f"{WRITE}.{json.loads(line)['kind']}" for line in lines)
        work = self.target.with_name(f".{self.target.name}.work")
        if work.is_dir():
            yield from (path.name for path in sorted(work.iterdir()) if not path.name.startswith("."))

    def leftovers(self) -> list[str]:
        """Hidden names beside the target."""
        return sorted(path.name for path in self.target.parent.iterdir() if path.name.startswith(f".{self.target.name}"))

    def watch(self, process: subprocess.Popen[bytes], enough: Callable[[], bool], seen: dict[str, float]) -> bool:
        """Note events in `seen` (with the seconds since now) until `enough` or the end of the process; False at its end."""
        start = last = time.monotonic()
        while process.poll() is None:
            for event in self._quietly():
                if event not in seen:
                    last = time.monotonic()
                    seen[event] = last - start
            if enough():
                return True
            if time.monotonic() - last > PATIENCE:
                process.kill()
                raise Broken(f"no event for {PATIENCE:.0f} s after {list(seen)[-1:]}")
            time.sleep(POLL)
        return False

    def require_whole(self) -> None:
        """Nothing lies under a public name, or something that verifies."""
        for path in (self.target, self.target.with_name(f"{self.target.name}.rejected")):
            if path.exists():
                done = subprocess.run([sys.executable, "-c", MAIN, "verify", str(path)], capture_output=True, text=True, check=False)
                check(done.returncode == 0, f"{path.name} does not verify: {done.stdout}{done.stderr}")

    def result(self, code: int) -> Result:
        """What was published, by a compile that ended with `code`."""
        check(code in (0, 4), f"the compile ended with {code}: {self.said()[-600:]}")
        rejected = self.target.with_name(f"{self.target.name}.rejected")
        artifact = open_artifact(self.target if self.target.exists() else rejected)
        check(self.leftovers() == [], f"left behind: {self.leftovers()}")
        self.require_whole()
        return Result(code, artifact.identity, artifact.artifact_id)

    def _quietly(self) -> list[str]:
        try:
            return list(self.events())
        except (OSError, ValueError):  # removed, or half written, while it was read
            return []


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """How the compile goes when nobody disturbs it: its result, its events with their seconds, its end, the processor seconds it took."""

    result: Result
    events: tuple[tuple[str, float], ...]
    seconds: float
    cpu: float

    @property
    def stages(self) -> tuple[str, ...]:
        """In order, "publish" last."""
        return tuple(dict.fromkeys([*(stage_of(name) for name, _ in self.events), PUBLISH]))

    def gap(self, n: int) -> tuple[str, float]:
        """Stage and length of the n-th gap: what leads to event n, or to the end."""
        times = [0.0, *(t for _, t in self.events), self.seconds]
        stage = stage_of(self.events[n][0]) if n < len(self.events) else PUBLISH
        return stage, times[n + 1] - times[n]

    def place(self, seen: dict[str, float]) -> str:
        """The stage that works when the events in `seen` have happened: that of the first one that has not."""
        return next((stage_of(name) for name, _ in self.events if name not in seen), PUBLISH)


def undisturbed(job: Job) -> Undisturbed:
    """Run the compile to its end."""
    seen: dict[str, float] = {}
    clock = Clock()
    process = job.start(resume=False)
    job.watch(process, lambda: False, seen)
    cpu, seconds = clock.cpu(), clock.wall()
    return Undisturbed(job.result(process.returncode), tuple(seen.items()), seconds, cpu)


class Clock:
    """Processor time of children that have ended, and wall time, since now."""

    def __init__(self) -> None:
        self._cpu, self._wall = _children(), time.monotonic()

    def cpu(self) -> float:
        """Seconds."""
        return _children() - self._cpu

    def wall(self) -> float:
        """Seconds."""
        return time.monotonic() - self._wall


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
