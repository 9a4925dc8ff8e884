"""`spark_udfs.read_capture`: the same rows and types as in Python, from folders and object stores."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from pyspark.sql import SparkSession

import pgdecode
import spark_udfs
from pgdecode.datasets.errors import RunError
from pgdecode.storage.object_path import object_path
from pgdecode.storage.object_store import store_of
from support import captures
from support.captured_files import GAP, captured
from support.emulators import Emulator

pytest_plugins = ["support.stores", "support.spark_session"]
BINARY = captures.DATA / "capture"


@pytest.mark.full
def test_payloads_with_the_options_of_footers_give_the_rows_of_python(spark: SparkSession) -> None:
    capture = spark_udfs.read_capture(spark, [str(path) for path in BINARY.iterdir()])
    assert capture.df.columns == ["seq", "lsn", "received", "data"]
    local = pgdecode.read_capture(BINARY)
    expected = pgdecode.snapshot(local.payloads, "public.orders", local.positions, **local.options)
    found = spark_udfs.snapshot(capture.df, "public.orders", **capture.options).toArrow()
    columns = ["_position", "id", "status", "ordered_at"]
    assert found.select(columns).sort_by("id").to_pylist() == expected.select(columns).sort_by("id").to_pylist()
    products = spark_udfs.table_changes(capture.df, "public.products", **capture.options)
    assert products.schema["price"].dataType.simpleString() == "decimal(10,2)"
    assert (capture.types, capture.relations, capture.gaps, capture.session) == (local.types, local.relations, (), None)


@pytest.mark.full
def test_a_session_column_is_added_after_an_interrupted_stream(spark: SparkSession, tmp_path: Path) -> None:
    files = [
        {"session": session, "first_seq": 4 * number, "open_streams": streams}
        for number, (session, streams) in enumerate([(1, 0), (1, 1), (2, 0), (3, 0)])
    ]
    capture = spark_udfs.read_capture(spark, captured(tmp_path / "raw[1] {a}", [{"file": file} for file in files]))
    assert capture.options["session"] == capture.session == "capture_session"
    rows = capture.df.select("seq", "capture_session").orderBy("seq").collect()
    assert [row.capture_session for row in rows] == [0] * 8 + [1] * 8
    assert spark_udfs.changes(capture.df, **capture.options).count() == 4


@pytest.mark.full
def test_a_gap_is_refused_unless_it_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{}, {"gaps": [GAP]}])
    with pytest.raises(RunError, match="accept_gap=True"):
        spark_udfs.read_capture(spark, raw)
    capture = spark_udfs.read_capture(spark, raw, accept_gap=True)
    assert (len(capture.gaps), capture.df.count()) == (1, 8)


@pytest.mark.full
def test_tasks_read_an_object_store(spark: SparkSession, store: Emulator) -> None:
    folder = object_path(f"{store.new_bucket()}/raw", store.options)
    for file in BINARY.iterdir():
        obstore.put(store_of(folder), f"raw/{file.name}", file)
    capture = spark_udfs.read_capture(spark, str(folder), storage_options=store.options)
    assert spark_udfs.table_changes(capture.df, "public.orders", **capture.options).count() == 7
    local = pgdecode.read_capture(str(folder), storage_options=store.options)
    assert capture.df.count() == len(local.payloads) == 52
