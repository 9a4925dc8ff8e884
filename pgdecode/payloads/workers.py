"""Workers: threads that process the items of a sequence side by side or ahead, and give the results in its order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from itertools import islice
from threading import Lock
from time import perf_counter, thread_time
from types import TracebackType
from typing import Any, Generic, TypeVar

from pgdecode.payloads.thread_counts import check_threads

# After how many items `map_io` compares times, and from when it takes the rest of the time for waiting: this many
# times the CPU time, and this many seconds. Being suspended for other processes takes less.
_TRIED_ITEMS = 16
_WAITING = 4
_WAITING_SECONDS = 0.05

Item = TypeVar("Item")
Result = TypeVar("Result")
# A function to call, its arguments, and where to put its result.
_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def all_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """Threads for functions that release the GIL. A context manager: at its end, no thread runs anymore.

    Functions must not use the workers.

    Parameters
    ----------
    n : int
        The number of workers. A single worker is the calling thread itself.
    caller_works : bool
        Whether the calling thread has much work of its own. It is then one of the workers, and calls functions while it
        waits for results. With one more busy thread than cores, the system would often suspend the one that the
        others wait for.
    """

    def __init__(self, n: int = 1, *, caller_works: bool = True) -> None:
        self.n = check_threads(n)
        self._others = None if n == 1 else ThreadPoolExecutor(n - 1 if caller_works else n)
        self._substitute = None if n == 1 or not caller_works else ThreadPoolExecutor(1)
        # Calls that no thread has begun, the one that the calling thread makes, and what it waits for.
        self._calls: deque[_Call] = deque()
        self._long_calls: deque[_Call] = deque()
        self._own: _Call | None = None
        self._awaited: Future[Any] | None = None
        self._has_substitute = False
        self._lock = Lock()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self._cancel)
            for pool in (self._others, self._substitute):
                if pool is not None:
                    stack.callback(pool.shutdown, cancel_futures=True)

    def _cancel(self) -> None:
        for calls in (self._calls, self._long_calls):
            while calls:
                calls.popleft()[0].cancel()

    def submit(self, function: Callable[..., Result], *arguments: Any, is_long: bool = False) -> Future[Result]:
        """Call a function in a worker; with a single worker, call it now.

        The calling thread makes no long calls if there are other workers: it could not submit others meanwhile.
        """
        future: Future[Result] = Future()
        try:
            if self._others is None:
                _make(future, function, arguments)
            else:
                (self._long_calls if is_long else self._calls).append((future, function, arguments))
                self._others.submit(self._make_next)
            return future
        finally:
            # The future refers to an error, and the error to this frame. They must not keep each other in memory.
            del future

    def result(self, future: Future[Result]) -> Result:
        """Return the result of a call, or raise its exception.

        If the calling thread works, it makes calls until then, as long as it leaves some to the other workers. If it
        has to wait, another thread takes its place.
        """
        try:
            if self._substitute is not None:
                while not future.done() and len(self._calls) + len(self._long_calls) >= self.n and self._make_own():
                    pass
                self._awaited = future
                with self._lock:
                    if self._is_waiting_for_calls() and not self._has_substitute:
                        # If no thread can be started, the other workers make these calls.
                        with suppress(RuntimeError):
                            self._substitute.submit(self._make_for_caller)
                            self._has_substitute = True
            return future.result()
        finally:
            self._awaited = None
            del future  # as in `submit`

    def _make_own(self) -> bool:
        """Make the next call that is not long, in the calling thread; return whether there was one."""
        try:
            self._own = self._calls.popleft()
        except IndexError:
            return False
        _make(*self._own)
        self._own = None
        return True

    def _make_next(self) -> None:
        """Make the next call, if there is one; long ones last."""
        for calls in (self._calls, self._long_calls):
            with suppress(IndexError):
                _make(*calls.popleft())
                return

    def _make_for_caller(self) -> None:
        """Make calls until the calling thread goes on."""
        while True:
            with self._lock:
                if not self._is_waiting_for_calls():
                    self._has_substitute = False
                    return
            self._make_next()

    def _is_waiting_for_calls(self) -> bool:
        """Whether the calling thread waits, and there are calls that no thread has begun."""
        awaited = self._awaited
        return awaited is not None and not awaited.done() and bool(self._calls or self._long_calls)

    def stop(self, waiting: deque[Future[Any]]) -> None:
        """Cancel calls, forget them, and wait for those that other threads have begun."""
        own = None if self._own is None else self._own[0]  # if it was interrupted
        running = [future for future in waiting if not future.cancel() and future is not own]
        waiting.clear()
        wait(running)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Call a function for each item, and yield the results in the order of the items.

        At most one item more than there are workers is in progress. An exception, also one of `items`, is raised after
        the results of all earlier items.
        """
        if self.n == 1:
            yield from map(function, items)
            return
        source = iter(items)
        failure: Exception | None = None
        is_complete = False
        waiting: deque[Future[Result]] = deque()
        try:
            while True:
                while not is_complete and len(waiting) <= self.n:
                    try:
                        waiting.append(self.submit(function, next(source)))
                    except StopIteration:
                        is_complete = True
                    except Exception as error:
                        failure, is_complete = error, True
                if not waiting:
                    break
                yield self.result(waiting.popleft())
            if failure is not None:
                raise failure
        finally:
            # An error refers to this frame. It must not keep what is in memory here.
            failure = None
            self.stop(waiting)


def _make(future: Future[Result], function: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(function(*arguments))
    except BaseException as error:
        # An interruption may come after the result.
        if not future.done():
            future.set_exception(error)
        del future  # as in `Workers.submit`
        if not isinstance(error, Exception):
            raise


ONE_WORKER = Workers()


def map_io(
    function: Callable[[Item], Result], items: Iterable[Item], n: int, *, is_remote: bool = False
) -> Iterator[Result]:
    """Call a function that reads a little of each file, and yield the results in order.

    `n` threads call it if files are remote, or once the calls mostly wait, for example for a disk. If they do not wait,
    threads would need several times the CPU time, because each takes the interpreter from the others.
    """
    source = iter(items)
    waited = busy = 0.0
    while not is_remote:
        start, busy_before = perf_counter(), thread_time()
        found = [function(item) for item in islice(source, _TRIED_ITEMS)]
        used = thread_time() - busy_before
        busy += used
        waited += perf_counter() - start - used
        is_remote = waited > max(_WAITING * busy, _WAITING_SECONDS)
        yield from found
        if len(found) < _TRIED_ITEMS:
            return
    with Workers(n, caller_works=False) as workers:
        yield from workers.map(function, source)


class OrderedResults(Generic[Result]):
    """Calls functions that take long, such as encoding, in workers, and passes their results on in order.

    Parameters
    ----------
    workers : Workers
    on_result : callable
        Called with each result, in the thread that calls `put` and `finish`.
    """

    def __init__(self, workers: Workers, on_result: Callable[[Result], object]) -> None:
        self._workers = workers
        self._on_result = on_result
        self._waiting: deque[Future[Result]] = deque()

    def put(self, function: Callable[..., Result], *arguments: Any) -> None:
        """Call a function. If more results than workers are outstanding, wait for the first."""
        self._waiting.append(self._workers.submit(function, *arguments, is_long=True))
        most = self._workers.n if self._workers.n > 1 else 0
        while len(self._waiting) > most:
            self._on_result(self._workers.result(self._waiting.popleft()))

    def finish(self) -> None:
        """Wait for all results."""
        while self._waiting:
            self._on_result(self._workers.result(self._waiting.popleft()))

    def cancel(self) -> None:
        """Drop the outstanding results, and wait until no function runs."""
        self._workers.stop(self._waiting)


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items; another thread makes the next item while the caller uses the current one.

    One more item is in memory than without prefetching.
    """
    made = iter(items)
    with ThreadPoolExecutor(1) as thread:
        try:
            following = thread.submit(lambda: next(made, None))
        except RuntimeError:
            # No thread can be started.
            yield from made
            return
        while (item := following.result()) is not None:
            following = thread.submit(lambda: next(made, None))
            yield item
