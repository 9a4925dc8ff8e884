"""Workers: results and errors come in the order of the items, whichever worker is first."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pgdecode.payloads.workers import OrderedResults, Workers

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

    found = []
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


def test_no_thread_runs_afterwards() -> None:
    before = threading.active_count()
    with Workers(4) as workers:
        next(workers.map(_later_for_the_first, range(100)))
    assert threading.active_count() == before
