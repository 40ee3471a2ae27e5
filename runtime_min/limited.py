"""Runs a native call for at most so much processor time, so that a stranger's file can't hold a process for ever, and without its noise.

In: a call that lets go of the interpreter lock while it works. It runs in a thread of its own. Out: what it returns and the time it took.
When the time is up the caller goes on and the thread is left behind (native code can't be stopped): the process should end soon, as `thinc`
does on an error. What the library objects to, and its panics, which are BaseExceptions, become InputErrors like a call that takes too long;
what it prints then is not seen, as the thread has file descriptors of its own, where the system allows that (else it is seen beside the error).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from ..schemas.errors import InputError, ThincError

T = TypeVar("T")

_LIBC = ctypes.CDLL(None)
CLONE_FILES = 0x400  # of unshare(2); Python has a name for it from 3.12 on
STEP = 0.1  # seconds between two looks at the clock
PATIENCE = 20.0  # wall time may be this many times the limit, for a busy machine


class _Call(Generic[T]):
    """The call, its outcome, and the clock of its thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.result: list[tuple[T, float]] = []
        self.error: BaseException | None = None
        self.clock: int | None = None

    def work(self) -> None:
        _quiet_thread()
        self.clock = time.pthread_getcpuclockid(threading.get_ident())
        start = time.thread_time()
        try:
            self.result.append((self.call(), time.thread_time() - start))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, panics included
            self.error = error

    def used(self) -> float:
        """Processor seconds so far; 0 before it starts or once its thread has ended."""
        try:
            return 0.0 if self.clock is None else time.clock_gettime(self.clock)
        except OSError:
            return 0.0


def _quiet_thread() -> None:
    """Give this thread its own table of files, and no standard error in it."""
    if _LIBC.unshare(CLONE_FILES) == 0:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        os.close(null)


def limited(call: Callable[[], T], seconds: float, what: str) -> tuple[T, float]:
    """(call(), its processor seconds), or InputError saying that `what` takes longer than `seconds` of processor time or made its library panic."""
    job = _Call(call)
    thread = threading.Thread(target=job.work, daemon=True)
    thread.start()
    end = time.monotonic() + PATIENCE * seconds
    thread.join(STEP)
    while thread.is_alive():
        if job.used() > seconds or time.monotonic() > end:
            raise InputError(f"{what}: more than {seconds:.1f} s of processor time")
        thread.join(STEP)
    if job.error is not None:
        _raise(job.error, what)
    return job.result[0]


def guarded(call: Callable[[], T], what: str) -> T:
    """call() in this thread, without a limit; what its library objects to and its panics as InputErrors."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - handed on, panics included
        _raise(error, what)


def _raise(error: BaseException, what: str) -> NoReturn:
    """A panic of the library, or whatever else it objects to, as InputError; what has nothing to do with the input as it is."""
    if isinstance(error, ThincError | MemoryError | KeyboardInterrupt | SystemExit):
        raise error
    reason = (str(error).splitlines() or ["no reason given"])[0][:300]
    panic = type(error).__name__ == "PanicException"
    raise InputError(f"{what}: the tokenizers library gave up: {reason}" if panic else f"{what}: {reason}") from error
