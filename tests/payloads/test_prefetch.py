"""Items that another thread makes ahead of their use: the same, in the same order, and no more than one too early."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pgdecode.payloads.workers import prefetched


def test_items_are_made_by_another_thread_while_those_before_are_used() -> None:
    made_by = []
    is_used = threading.Event()

    def items() -> Iterator[int]:
        for item in range(3):
            made_by.append(threading.get_ident())
            yield item
            # Else the test would wait for ever: the next one is asked for before this one is given away.
            assert is_used.wait(60)

    found = []
    for item in prefetched(items()):
        is_used.set()
        found.append(item)
    assert found == [0, 1, 2]
    assert threading.get_ident() not in made_by


def test_no_more_than_one_item_is_made_before_its_time() -> None:
    n_made = 0

    def items() -> Iterator[int]:
        nonlocal n_made
        for item in range(100):
            n_made += 1
            yield item

    for item in prefetched(items()):
        assert n_made <= item + 2


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    found = prefetched(items())
    assert next(found) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)


def test_whoever_stops_early_closes_what_makes_the_items() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    found = prefetched(items())
    next(found)
    found.close()
    assert closed == [True]


def test_where_no_thread_can_be_started_items_are_made_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(prefetched(range(3))) == [0, 1, 2]
