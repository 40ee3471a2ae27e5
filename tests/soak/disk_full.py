"""Fill the disk under a compile again and again, make room, and go on with --resume: nothing may be lost, nothing half made shown.

    python -m tests.soak.disk_full MODEL --times 12 --seed 0 -- --weights-budget 36%

The output folder is a memory file system in a mount namespace of its own (Linux, `unshare -rm`); at each moment another file takes all of
it but some bytes. What must hold: chains.py; and the compile ends with 7 and one line that names the folder, bytes and how to go on, or
has nothing more to write. Before that: a folder that is too small from the start is refused, before any work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .chains import PUBLISHED, Disturb, Soak, fresh, soak
from .job import Job, check
from .kill import options

FULL = 7  # exit code
INSIDE = "--inside"
SIZE = 1 << 30  # of the folder; memory is used only by what lies in it
LEFT = (0, 1 << 12, 1 << 14, 1 << 16)  # bytes that are left free, in turn
ENDS_WITHIN = 600.0  # seconds


def fill(folder: Path) -> Disturb:
    """Takes the room in `folder` until the compile has ended, and checks how it ends."""
    turn = iter(range(1 << 30))

    def disturb(job: Job, process: subprocess.Popen[bytes]) -> int:
        ballast = _take(folder, LEFT[next(turn) % len(LEFT)])
        code = process.wait(ENDS_WITHIN)
        ballast.unlink()
        if code not in PUBLISHED:
            _require_told(job, folder, code)
        return code

    return disturb


def _take(folder: Path, left: int) -> Path:
    """A file that takes all free bytes but `left`."""
    path = folder / "ballast"
    with open(path, "wb") as file:
        while (free := shutil.disk_usage(folder).free) > left:  # the compile goes on writing meanwhile
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free - left)
            except OSError:
                continue
    return path


def _require_told(job: Job, folder: Path, code: int) -> None:
    *_, last = job.said().strip().split("\n")
    check(code == FULL, f"ended with {code}, not {FULL}: {job.said()[-600:]}")
    told = str(folder) in last and "bytes" in last and "--resume" in last
    check(told and "Traceback" not in job.said(), f"does not say where, how much and how to go on: {job.said()[-600:]}")


def require_refusal(job: Job) -> None:
    """A folder with no room is refused at once, and nothing is left in it."""
    fresh(job)
    ballast = _take(job.target.parent, 1 << 12)
    code = job.start(resume=False).wait(ENDS_WITHIN)
    check(code == FULL and "bytes" in job.said() and job.says.stat().st_size < 1000, f"ended with {code}: {job.said()[-600:]}")
    ballast.unlink()
    check(list(job.target.parent.iterdir()) == [], f"left behind: {job.leftovers()}")


def refusal() -> str:
    """Why there can be no mount here, "" where there can."""
    try:
        done = subprocess.run(["unshare", "-rm", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare command"
    return "" if done.returncode == 0 else f"the system refuses unprivileged user namespaces: {done.stderr.strip()}"


def main(arguments: list[str]) -> None:
    """The command line; starts itself again in a namespace in which it may mount."""
    if INSIDE not in arguments:
        command = ["unshare", "-rm", sys.executable, "-m", __spec__.name if __spec__ else "tests.soak.disk_full", INSIDE, *arguments]
        os.execvp(command[0], command)
    parser = argparse.ArgumentParser(prog="python -m tests.soak.disk_full", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    asked, compile_arguments = options(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="thinc-soak-") as root:
        folder = Path(root) / "out"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)], check=True)
        try:
            job = Job(asked.model, folder / "T.thin", compile_arguments)
            require_refusal(job)
            report = soak(job, Soak(disturb=fill(folder), times=asked.times, chain=asked.chain, seed=asked.seed, tell=sys.stderr.write))
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
    sys.stdout.writelines(f"disk full: {line}\n" for line in report.lines())


if __name__ == "__main__":
    main(sys.argv[1:])
