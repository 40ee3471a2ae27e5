"""Stop a compile again and again, each time at a moment of its own, and go on with --resume: nothing may be lost, nothing half made shown.

    python -m tests.soak.kill MODEL --kills 40 --seed 0 --signal KILL -- --weights-budget 36%

What must hold: chains.py; and SIGINT and SIGTERM end with 130 and one line that says how to go on.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from .chains import PUBLISHED, Disturb, Soak, soak
from .job import Job, check

STOPS_WITHIN = 60.0  # seconds from a signal to the end


def send(number: signal.Signals) -> Disturb:
    """Sends the signal and checks how the compile ends."""

    def disturb(job: Job, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(number)
        code = process.wait(STOPS_WITHIN)
        if code in PUBLISHED:  # it had ended by itself
            return code
        if number == signal.SIGKILL:
            check(code == -number, f"ended with {code}: {job.said()[-600:]}")
            return code
        *_, last = job.said().strip().split("\n")
        check(code == 130, f"ended with {code}, not 130: {job.said()[-600:]}")
        check("interrupted" in last and "--resume" in last and "Traceback" not in job.said(), f"does not say how to go on: {job.said()[-600:]}")
        return code

    return disturb


def options(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """What every soak is asked for, and the arguments of `thinc compile` after `--`."""
    parser.add_argument("model", type=Path)
    parser.add_argument("--chain", type=int, default=5, help="disturbances along one compile")
    parser.add_argument("--seed", type=int, default=0)
    parser.epilog = "after -- : arguments of thinc compile"
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:at]), tuple(arguments[at + 1 :])


def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--signal", choices=("KILL", "INT", "TERM"), default="KILL")
    asked, compile_arguments = options(parser, arguments)
    disturb = send(signal.Signals[f"SIG{asked.signal}"])
    with tempfile.TemporaryDirectory(prefix="thinc-soak-") as folder:
        job = Job(asked.model, Path(folder) / "out" / "T.thin", compile_arguments)
        report = soak(job, Soak(disturb=disturb, times=asked.kills, chain=asked.chain, seed=asked.seed, tell=sys.stderr.write))
    sys.stdout.writelines(f"SIG{asked.signal}: {line}\n" for line in report.lines())


if __name__ == "__main__":
    main(sys.argv[1:])
