"""Work side by side: in order, no more of it at a time than is taken, and an end when something is raised."""

from __future__ import annotations

import threading
import time

import pytest

from thinlm.runtime_min.parallel import in_order, one_thread_each, threads


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order_and_few_wait(workers: int) -> None:
    started: list[int] = []

    def task(n: int) -> int:
        started.append(n)
        return n * n

    for at, result in enumerate(in_order(workers, task, range(20))):
        assert result == at * at
        assert len(started) <= at + 1 + workers
    assert sorted(started) == list(range(20))


def test_an_error_reaches_the_caller_and_ends_the_rest() -> None:
    started: list[int] = []

    def task(n: int) -> int:
        started.append(n)
        if n == 3:
            raise ValueError("three")
        return n

    with pytest.raises(ValueError, match="three"):
        list(in_order(2, task, range(1000)))
    assert len(started) < 10


def test_what_waits_is_not_started_after_an_interrupt() -> None:
    """Ctrl-C in the middle of a long list waits for what is running only."""
    done: list[int] = []
    running = threading.Event()

    def task(n: int) -> None:
        running.set()
        time.sleep(0.01)
        done.append(n)

    def interrupted() -> None:
        with threads(2) as pool:
            pool.map(task, range(1000))
            running.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(done) < 100


def test_torch_gets_its_threads_back() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    with one_thread_each(2) as each:
        assert list(each(lambda n: torch.get_num_threads() + n, [0, 1])) == [1, 2]
    assert torch.get_num_threads() == before
