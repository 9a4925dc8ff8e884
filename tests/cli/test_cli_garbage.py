"""Commands free the memory of a batch when they are done with it.

Python's garbage collector runs after a number of new objects. Batches have few, but large ones, so cycles of references
among them would keep the memory of many batches.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from support import captures
from support.shell import Shell


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """What the collector would have freed, in place of freeing it."""
    # Otherwise the collector looks at all objects of the tests before, which takes a second.
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("name", "table"), [("18.shop.v1", "public.products"), ("16.streams.v2", "public.s1")])
@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["decode", "out.parquet"],
        ["decode", "out.parquet", "--changes"],
        ["decode", "out.parquet", "--table", "TABLE"],
        ["decode", "out.parquet", "--snapshot", "TABLE"],
    ],
    ids=["inspect", "messages", "changes", "table", "snapshot"],
)
def test_no_batch_waits_for_the_garbage_collector(
    run: Shell, garbage: list[object], words: list[str], name: str, table: str, workers: int
) -> None:
    command, *rest = (table if word == "TABLE" else word for word in words)
    done = run(command, captures.DATA / f"{name}.parquet", *rest, "--workers", str(workers))
    assert done.code == 0, done.err
    gc.collect()
    assert [item for item in garbage if isinstance(item, pa.Array | pa.RecordBatch | pa.ChunkedArray)] == []
