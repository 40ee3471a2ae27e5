"""Progress of long work: bars with time left on a terminal, plain lines elsewhere, nothing when silent. All to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from .terminal import tell


class Tick(Protocol):
    """Advance the current stage by `n` units."""

    def __call__(self, n: float = 1) -> None: ...


class Progress(Protocol):
    """Stages of one job; `stage` yields the function that advances it."""

    seconds: dict[str, float]

    def stage(self, name: str, total: float | None = None) -> AbstractContextManager[Tick]: ...

    def say(self, message: str) -> None: ...


class Quiet:
    """Says nothing, but keeps each stage's seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator[Tick]:
        """Time a stage."""
        with self._timed(name):
            yield lambda n=1.0: None

    def say(self, message: str) -> None:
        """Nothing."""


class Lines(Quiet):
    """One line when a stage starts, every 10 s of it, and when it ends."""

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator[Tick]:
        """See class."""
        start = last = time.monotonic()
        done = 0.0
        self.say(f"{name} ...")

        def tick(n: float = 1) -> None:
            nonlocal done, last
            done, now = done + n, time.monotonic()
            if now - last >= 10 and total and done < total:
                last = now
                self.say(f"{name}: {100 * done / total:.0f} %, {(now - start) * (total - done) / done:.0f} s left")

        with self._timed(name):
            yield tick
        self.say(f"{name}: done in {time.monotonic() - start:.1f} s")

    def say(self, message: str) -> None:
        """One line to standard error."""
        tell(message, err=True)


class Bars(Quiet):
    """A bar per stage with elapsed time and time left."""

    @contextmanager
    def stage(self, name: str, total: float | None = None) -> Iterator[Tick]:
        """See class."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress as RichProgress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description:<12}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with self._timed(name), RichProgress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(name, total=total)
            yield lambda n=1.0: bars.advance(task, n)
            bars.update(task, total=total or 1, completed=total or 1)

    def say(self, message: str) -> None:
        """One line to standard error."""
        tell(message, err=True)


def for_terminal(quiet: bool) -> Progress:
    """Bars on a terminal, lines elsewhere, nothing when quiet."""
    if quiet:
        return Quiet()
    return Bars() if sys.stderr.isatty() else Lines()
