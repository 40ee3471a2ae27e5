"""Runs one target for some time in a process of its own, watched by its parent.

The child tells the number of the case that it is about to read; the parent ends it when a case takes too long, and notices when it dies. The
target's name, the seed and the number give the case again. A finding is written as NAME-SEED-NUMBER (the case) and NAME-SEED-NUMBER.txt (what
happened); the child goes on, in a fresh process, with the next number.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from .targets import Target, refusal

SECONDS = 5.0  # of processor time, for one case
PATIENCE = 120.0  # seconds of wall time, for a machine that is busy
MEBIBYTES = 500
TICK = os.sysconf("SC_CLK_TCK")
FRESH, FOUND, BROKEN = 0, 1, 2  # how a child ends: to be started again, after a finding, or by a fault of the fuzzer
LEFT_BEHIND = "left behind"  # a native call goes on in a thread


@dataclass(slots=True)
class Campaign:
    """One target; `work` is its folder, `findings` where findings go. `number` is the next case; `end` is when to stop, once a case was read."""

    name: str
    target: Target
    seed: int
    work: Path
    findings: Path
    number: int = 0
    end: float | None = None
    found: list[Path] = field(default_factory=list)

    def run(self, seconds: float, most: int = 20) -> None:
        """Fuzz for so many seconds, or until there are `most` findings."""
        self.work.mkdir(parents=True, exist_ok=True)
        while (self.end is None or time.monotonic() < self.end) and len(self.found) < most:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                self._child(write)
            os.close(write)
            if why := self._watch(child, read, seconds):
                self._keep(why)
            os.close(read)

    def _child(self, pipe: int) -> NoReturn:
        """Read cases until something happens."""
        try:
            seeds = self.target.start(self.work)
            Path("/proc/self/clear_refs").write_text("5")  # the peak of memory from here on
            before = peak()  # a child shares its parent's pages
            for number in range(self.number, 1 << 62):
                case = self.target.make(random.Random(f"{self.name} {self.seed} {number}"), seeds)
                (self.work / "case").write_bytes(case)
                os.write(pipe, number.to_bytes(8, "little"))
                if why := outcome(self.target, self.work, case, before):
                    (self.work / "why").write_text(why)
                    os._exit(FRESH if why == LEFT_BEHIND else FOUND)
        except BaseException:  # noqa: BLE001 - the child ends here, whatever happens
            (self.work / "why").write_text(traceback.format_exc())
        os._exit(BROKEN)

    def _watch(self, child: int, pipe: int, seconds: float) -> str:
        """Until the child ends or is ended: what it found, "" for nothing."""
        since, used = time.monotonic(), 0.0
        while True:
            ready, _, _ = select.select([pipe], [], [], 0.25)
            data = os.read(pipe, 8 * 4096) if ready else b""
            now = time.monotonic()
            if data:
                self.number = int.from_bytes(data[-8:], "little") + 1
                self.end = self.end or now + seconds  # making seeds may take a second: it does not count
                since, used = now, _used(child)
            elif ready:
                return self._ended(child)
            slow = self.end is not None and (_used(child) - used > SECONDS or now - since > PATIENCE)
            if slow or (self.end is not None and now > self.end):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"a hang: more than {SECONDS:.0f} s of processor time, or {PATIENCE:.0f} s in all" if slow else ""

    def _ended(self, child: int) -> str:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == BROKEN:
            raise RuntimeError(f"{self.name}: the fuzzer itself failed:\n{(self.work / 'why').read_text()}")
        return {FRESH: "", FOUND: "found"}.get(code, f"a crash: the process ended with {code}")

    def _keep(self, why: str) -> None:
        self.findings.mkdir(parents=True, exist_ok=True)
        path = self.findings / f"{self.name}-{self.seed}-{self.number - 1}"
        shutil.copy(self.work / "case", path)
        Path(f"{path}.txt").write_text((self.work / "why").read_text() if why == "found" else why)
        self.found.append(path)


def outcome(target: Target, work: Path, case: bytes, before: int = 0) -> str:
    """"" for a case that was read or refused as it should be, LEFT_BEHIND when a thread may still be at it, else what is wrong.

    `before`: MiB that the process had in use already.
    """
    try:
        target.read(work, case)
    except BaseException as error:  # noqa: BLE001 - the oracle: everything counts
        if why := refusal(target, error):
            return f"{why}\n{traceback.format_exc()}"
        if "processor time" in str(error):
            return LEFT_BEHIND
    most = peak() - before
    return f"{most} MiB of memory" if most > MEBIBYTES else ""


def peak() -> int:
    """The most memory that this process had, MiB."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) >> 10


def _used(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICK
