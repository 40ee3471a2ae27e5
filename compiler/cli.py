"""The `thinc` command: finds a verb, runs it, turns every error into one message and the exit code of design.md section 8.

Verbs import lazily, so that `plan` or `verify` never load torch. With `--json` a verb prints one JSON object to standard output, errors
included; progress and messages go to standard error. This is the only file that reads the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from importlib import import_module
from typing import Any

import click

from ..schemas.errors import DiskError, Interrupted, ThincError, UsageError
from .terminal import escape_what_the_terminal_lacks, tell

VERBS = ("compile", "plan", "certify", "gate", "verify", "inspect", "run", "chat", "pack", "unpack", "doctor")
_NO_MEMORY = "out of memory: nothing was published; use a machine with more memory or a shorter --context"


class _Verbs(click.Group):
    """The verbs, each imported when it is named; its module in `commands/` is called after it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f".commands.{cmd_name}_", __package__).command
        return command


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="thinlm", prog_name="thinc")
def thinc() -> None:
    """Compile a language model under a byte budget, certify the packed bytes, and run what came out."""


def main() -> None:
    """The entry point; never returns."""
    # Before numpy or torch is loaded: work is spread over threads by us, and matrix products on one thread have the same bits anywhere.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # waiting threads sleep after some microseconds and leave the core to others
    escape_what_the_terminal_lacks()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    as_json = "--json" in arguments
    try:
        thinc.main(arguments, prog_name="thinc", standalone_mode=False)
    except DiskError as e:
        return _fail(f"{e}{_go_on(arguments)}", e.exit_code, as_json)
    except ThincError as e:
        return _fail(str(e), e.exit_code, as_json)
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.UsageError as e:
        hint = f" (see {e.ctx.command_path} --help)" if e.ctx else ""
        return _fail(e.format_message() + hint, UsageError.exit_code, as_json)
    except click.ClickException as e:
        return _fail(e.format_message(), UsageError.exit_code, as_json)
    except (KeyboardInterrupt, click.Abort):
        return _fail(f"interrupted{_go_on(arguments)}", Interrupted.exit_code, as_json)
    except MemoryError:
        return _fail(_NO_MEMORY, 7, as_json)
    except OSError as e:
        return _fail(_os_error(e), 7, as_json)
    except Exception as e:  # the last resort: a bug of ours, said in one line
        if isinstance(e, RuntimeError) and "can't allocate memory" in str(e):  # torch has no error of its own for it
            return _fail(_NO_MEMORY, 7, as_json)
        if os.environ.get("THINC_TRACEBACK"):
            raise
        return _fail(f"internal error: {type(e).__name__}: {e}; this is a bug in thinc (set THINC_TRACEBACK=1 for details)", 1, as_json)
    return 0


def _go_on(arguments: list[str]) -> str:
    """How a compile or certification that was stopped goes on where it was."""
    if arguments[:1] not in (["compile"], ["certify"]):
        return ""
    again = arguments if "--resume" in arguments or arguments[0] == "certify" else [*arguments, "--resume"]
    return f"; go on with: {shlex.join(['thinc', *again])}"


def _os_error(e: OSError) -> str:
    where = f" ({e.filename})" if e.filename else ""
    return f"the system refused: {e.strerror or e}{where}; nothing is half written, so put that right and run it again (compile: with --resume)"


def _terminate(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int, as_json: bool) -> int:
    tell("thinc: " + " ".join(message.split("\n")), err=True)
    if as_json:
        tell(json.dumps({"error": message, "exit_code": code}))
    return code
