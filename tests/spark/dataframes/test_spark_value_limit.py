"""`max_value_bytes` on Spark: a longer value is null, and the other values of its row stay."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changes.test_value_limit import FAULT, TABLE, T, slot
from pyspark.sql import SparkSession

from spark_udfs import changes, decode_files, from_pgoutput, parse_pgoutput, register, snapshot, table_changes

pytest_plugins = ["support.spark_session"]

ROWS = [(1, None, "ok", FAULT.format(50)), (2, "y" * 20, "z", None), (3, None, "w", FAULT.format(70))]
ROWS.append((4, None, "e", FAULT.format(80)))
COLUMNS = ("id", "v", "w", "_error")


@pytest.mark.full
def test_each_function_has_the_limit(spark: SparkSession, tmp_path: Path) -> None:
    payloads = slot().payloads
    folder = tmp_path / "raw"
    folder.mkdir()
    pq.write_table(pa.table({"seq": range(len(payloads)), "data": payloads}), folder / "0.parquet")
    df = spark.read.parquet(str(folder))
    limit = {"mode": "PERMISSIVE", "max_value_bytes": 20}

    found = table_changes(df, TABLE, **limit).orderBy("_position").select(*COLUMNS)
    assert [tuple(row) for row in found.collect()] == ROWS
    assert table_changes(df, TABLE).where("_error is not null").count() == 0
    errors = [row["error"] for row in changes(df, **limit).orderBy("position").collect()]
    assert errors == [row[-1] for row in ROWS]
    assert snapshot(df, TABLE, mode="DROPMALFORMED", max_value_bytes=20).select("id").collect() == [(2,)]

    rows = df.where("seq = 2").select(from_pgoutput("data", payloads[1], **limit).alias("r")).select("r.*")
    assert [tuple(row) for row in rows.select(*COLUMNS).collect()] == ROWS[:1]
    (message,) = df.where("seq = 2").select(parse_pgoutput("data", **limit).alias("m")).select("m.*").collect()
    assert (message["kind"], message["error"].split()[0]) == (None, "LIMIT_VALUE")

    for what, n_bad in ((TABLE, 3), ("messages", 3)):
        done = decode_files(spark, str(folder), str(tmp_path / what), what=what, **limit)
        assert done.bad_rows == {"LIMIT_VALUE": n_bad}
    register(spark)
    source = spark.read.format("pgoutput").options(what=TABLE, **limit).load(str(folder))
    assert [tuple(row) for row in source.orderBy("_position").select(*COLUMNS).collect()] == ROWS


@pytest.mark.parametrize("value", [0, 2**30])
def test_a_limit_that_no_value_has_is_refused(spark: SparkSession, value: int) -> None:
    df = spark.createDataFrame([], "seq bigint, data binary")
    with pytest.raises(ValueError, match="max_value_bytes is from 1 to 1073741823, not"):
        table_changes(df, f"public.t{T}", max_value_bytes=value)
