"""Independent pieces of work side by side: each in one thread, results in order, so the numbers don't depend on how many there are."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextmanager
def threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool whose end, when something was raised inside (Ctrl-C), waits for what is running but starts nothing more."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def one_thread_each(workers: int) -> Iterator[Map]:
    """A `map` over `workers` threads, in which torch, where it is loaded, uses a single thread per piece of work."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        with threads(workers) as pool:
            yield pool.map
    finally:
        if torch:
            torch.set_num_threads(before)


def in_order(workers: int, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`map` over threads that starts at most one item per worker more than were taken: results that wait are few, however large they are."""
    waiting: deque[Any] = deque()
    with threads(workers) as pool:
        for item in items:
            waiting.append(pool.submit(task, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
