"""What `merge_into` and `apply_stream` refuse, on any Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgdecode.datasets.errors import RunError
from spark_udfs import apply_stream, merge_into, net_changes, table_changes
from support import captures

pytest_plugins = ["support.spark_session"]


@pytest.mark.full
def test_what_cannot_be_merged_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    column = captures.capture("16.shop.v1").column
    raw = spark.createDataFrame(pa.table({"seq": pa.array(range(len(column)), pa.int64()), "data": column}))
    net = net_changes(table_changes(raw, "public.products"))
    with pytest.raises(
        ValueError, match=r"the columns '_action', '_key_before'.* are missing: net is what net_changes"
    ):
        merge_into(raw, "t")
    with pytest.raises(TypeError, match="use apply_stream, or call merge_into in foreachBatch"):
        merge_into(spark.readStream.format("rate").load(), "t")
    with pytest.raises(ValueError, match="table t does not exist: pass using='delta' or using='iceberg' to make it"):
        merge_into(net, "t")
    with pytest.raises(ValueError, match="using must be one of 'delta', 'iceberg', not 'hudi'"):
        merge_into(net, "t", using="hudi")  # type: ignore[arg-type]
    spark.sql("CREATE TABLE of_files (id INT) USING parquet")
    with pytest.raises(RunError, match="table of_files has the format 'parquet': merge needs Delta or Iceberg"):
        merge_into(net, "of_files")
    spark.sql("DROP TABLE of_files")
    with pytest.raises(TypeError, match="tables is a mapping"):
        apply_stream(spark, tmp_path, {}, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"key has the table 'public\.b', which is not one of tables"):
        apply_stream(spark, tmp_path, {"public.a": "a"}, checkpoint=tmp_path / "c", key={"public.b": ["id"]})
