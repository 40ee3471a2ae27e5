"""Independent pieces of work side by side: each in one thread, results in order, so the numbers don't depend on how many there are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextmanager
def one_thread_each(workers: int) -> Iterator[Map]:
    """A `map` over `workers` threads, in which torch, where it is loaded, uses a single thread per piece of work."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield pool.map
    finally:
        if torch:
            torch.set_num_threads(threads)
