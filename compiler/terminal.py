"""Words to standard output and error: a reader that went away ends the words, never the work or its exit code (`thinc gate ART | head -1`)."""

from __future__ import annotations

import os
import sys
from typing import IO

import click


def tell(text: str, *, end: str = "\n", err: bool = False) -> bool:
    """Print; False when nobody reads any more, now and from then on."""
    try:
        click.echo(text + end, nl=False, err=err)
    except BrokenPipeError:
        _discard(sys.stderr if err else sys.stdout)
        return False
    return True


def escape_what_the_terminal_lacks() -> None:
    """Characters that the locale's encoding has not are printed as escapes instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]


def _discard(stream: IO[str]) -> None:
    """Send what is still buffered, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
