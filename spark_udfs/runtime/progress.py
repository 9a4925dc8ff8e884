"""The progress of Spark's tasks, while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

from spark_udfs.runtime.jvm import SPARK_ERRORS, is_connect

_SECONDS = 0.2

# Called with the number of tasks that are complete, and of all tasks, of the stages that run now.
OnTasks = Callable[[int, int], None]


@contextmanager
def watched(spark: SparkSession | None, on_tasks: OnTasks) -> Iterator[None]:
    """Report the progress of all jobs.

    Parameters
    ----------
    spark : SparkSession or None
        None: a classic session of this process, which may be created later.
    on_tasks : callable
        Called in another thread.
    """
    if spark is not None and is_connect(spark):
        session: Any = spark

        def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            if stages and not done:
                on_tasks(sum(item.num_completed_tasks for item in stages), sum(item.num_tasks for item in stages))

        session.registerProgressHandler(handle)
        try:
            yield
        finally:
            session.removeProgressHandler(handle)
        return
    ended = threading.Event()
    thread = threading.Thread(target=_poll, args=(ended, on_tasks), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _poll(ended: threading.Event, on_tasks: OnTasks) -> None:
    from pyspark import SparkContext

    while not ended.wait(_SECONDS):
        context = SparkContext._active_spark_context
        if context is None:
            continue
        # The session may be stopped at any time.
        with suppress(*SPARK_ERRORS, AttributeError, OSError):
            tracker = context.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            found = [stage for stage in stages if stage is not None]
            if found:
                on_tasks(sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found))
