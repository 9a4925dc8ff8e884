"""Workers: results and errors come in the order of the items, whichever worker is first."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import pytest

from pgdecode.payloads import workers as workers_module
from pgdecode.payloads.workers import OrderedResults, Workers, map_io

SLOW = 0.02


def _later_for_the_first(item: int) -> int:
    time.sleep(SLOW if item % 3 == 0 else 0)
    return item


@pytest.mark.parametrize("n", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(n: int) -> None:
    with Workers(n) as workers:
        assert list(workers.map(_later_for_the_first, range(20))) == list(range(20))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_no_more_items_are_taken_than_are_in_progress(n: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    with Workers(n) as workers:
        results = workers.map(_later_for_the_first, items())
        for done in range(5):
            next(results)
            assert len(taken) <= done + 1 + n + 1
        results.close()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_an_error_comes_after_the_results_of_all_earlier_items(n: int) -> None:
    def items() -> Iterator[int]:
        yield from range(4)
        raise ValueError("the items end here")

    def fail_at_two(item: int) -> int:
        if item == 2:
            time.sleep(SLOW)
            raise KeyError(item)
        return item

    found: list[int] = []
    with Workers(n) as workers, pytest.raises(KeyError):
        found.extend(workers.map(fail_at_two, items()))
    assert found == [0, 1]
    found = []
    with Workers(n) as workers, pytest.raises(ValueError, match="the items end here"):
        found.extend(workers.map(_later_for_the_first, items()))
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_results_are_passed_on_in_order_in_the_calling_thread(n: int) -> None:
    found = []

    def take(item: int) -> None:
        found.append((item, threading.current_thread()))

    with Workers(n) as workers:
        results = OrderedResults(workers, take)
        for item in range(20):
            results.put(_later_for_the_first, item)
            assert len(found) >= item - n
        results.finish()
    assert found == [(item, threading.current_thread()) for item in range(20)]


@pytest.mark.parametrize(("n", "caller_works"), [(2, True), (2, False), (5, True), (5, False)])
def test_as_many_calls_run_as_there_are_workers(n: int, caller_works: bool) -> None:
    running: set[int] = set()
    most: list[int] = []
    threads = set()

    def note(item: int) -> int:
        running.add(item)
        most.append(len(running))
        threads.add(threading.get_ident())
        time.sleep(SLOW / 10)
        running.discard(item)
        return item

    with Workers(n, caller_works=caller_works) as workers:
        assert list(workers.map(note, range(50))) == list(range(50))
    # The substitute may still be in a call when the calling thread goes on, or begin none because it goes on soon.
    assert n - caller_works <= max(most) <= n + caller_works
    assert caller_works or threading.get_ident() not in threads
    if caller_works and n == 2:
        assert threading.get_ident() in threads


@pytest.mark.parametrize("caller_works", [True, False])
@pytest.mark.parametrize("n", [2, 5])
def test_as_many_long_calls_run_as_there_are_workers_and_none_in_the_calling_thread(n: int, caller_works: bool) -> None:
    together, threads = threading.Barrier(n), set()

    def wait_for_the_others() -> None:
        together.wait(60)
        threads.add(threading.get_ident())

    with Workers(n, caller_works=caller_works) as workers:
        results: OrderedResults[object] = OrderedResults(workers, lambda result: None)
        for _ in range(4 * n):
            results.put(wait_for_the_others)
        results.finish()
    assert len(threads) == n
    assert threading.get_ident() not in threads


def test_long_calls_run_while_the_calling_thread_waits_for_a_short_one() -> None:
    is_encoded = threading.Event()
    with Workers(2) as workers:
        results: OrderedResults[object] = OrderedResults(workers, lambda result: None)
        waiting = workers.submit(is_encoded.wait, 60)
        results.put(is_encoded.set)
        assert workers.result(waiting)
        results.finish()


class _Item:
    pass


def _fail(item: _Item) -> None:
    raise ValueError


@contextmanager
def _freed_item() -> Iterator[list[_Item]]:
    """Yield a list with an item. Check at the end that nothing refers to the item, not even a cycle."""
    found = [_Item()]
    kept = weakref.ref(found[0])
    gc.disable()
    try:
        yield found
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n", [1, 2])
def test_an_error_of_a_map_keeps_nothing_in_memory(n: int) -> None:
    with _freed_item() as items, Workers(n) as workers, suppress(ValueError):
        list(workers.map(_fail, iter([items.pop()])))


@pytest.mark.parametrize(("n", "busy_seconds"), [(1, 0), (2, 0), (2, 10 * SLOW)])
def test_an_error_of_a_long_call_keeps_nothing_in_memory(n: int, busy_seconds: float) -> None:
    with _freed_item() as items, Workers(n) as workers:
        busy = workers.submit(time.sleep, busy_seconds)
        results: OrderedResults[object] = OrderedResults(workers, lambda result: None)
        with suppress(ValueError):
            results.put(_fail, items.pop())
            results.finish()
        results.cancel()
        # If the other worker is busy, another thread has made the call.
        assert not (busy_seconds and busy.done())


def _raise_here(error: type[BaseException]) -> Callable[..., None]:
    """Make a function that raises an error in the main thread, and takes some time in others."""

    def called(*arguments: object) -> None:
        if threading.current_thread() is threading.main_thread():
            raise error
        time.sleep(SLOW / 10)

    return called


@pytest.mark.parametrize("in_handler", [False, True])
def test_an_interruption_of_a_call_ends_the_run(in_handler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_handler:
        monkeypatch.setattr(Future, "set_exception", _raise_here(KeyboardInterrupt))
    function = _raise_here(ValueError if in_handler else KeyboardInterrupt)
    with Workers(2) as workers, pytest.raises(KeyboardInterrupt):
        list(workers.map(function, range(50)))


def test_calls_that_have_not_begun_are_canceled_at_the_end() -> None:
    with Workers(2, caller_works=False) as workers:
        futures = [workers.submit(time.sleep, SLOW) for _ in range(10)]
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()


def test_no_thread_runs_afterwards() -> None:
    before = threading.active_count()
    with Workers(4) as workers:
        next(workers.map(_later_for_the_first, range(100)))
    assert threading.active_count() == before


def _thread_after(seconds: float) -> int:
    time.sleep(seconds)
    return threading.get_ident()


def test_threads_are_used_only_once_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()
    waited = list(map_io(_thread_after, [SLOW] * 20, 4))
    assert set(waited[:16]) == {here}
    assert here not in waited[16:]
    assert here not in map_io(_thread_after, [0.0] * 40, 4, is_remote=True)
    monkeypatch.setattr(workers_module, "perf_counter", lambda: 0.0)
    assert set(map_io(_thread_after, [0.0] * 40, 4)) == {here}


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("n_items", [0, 1, 16, 17, 40])
def test_results_of_reading_come_in_order(n_items: int, is_remote: bool) -> None:
    found = map_io(_later_for_the_first, range(n_items), 4, is_remote=is_remote)
    assert list(found) == list(range(n_items))
