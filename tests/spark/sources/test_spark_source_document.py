"""The code of docs/spark-source.md and docs/spark.md runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgdecode import ChangeDecoder
from support import captures, clone
from support.docs import markdown

pytest_plugins = ["support.spark_session"]

READ, STREAM, _PIPELINE, SCHEMA = markdown.code_blocks(clone.path_of("docs/spark-source.md").read_text(), "python")


@pytest.mark.full
def test_the_code_of_the_document_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = pq.read_table(captures.DATA / "16.shop.v1.parquet").select(["seq", "data"])
    n = len(payloads) // 3
    monkeypatch.chdir(tmp_path)
    Path("raw").mkdir()
    # Spark resolves relative paths from where the JVM was started.
    absolute = f'"{tmp_path}/raw/"'
    names: dict[str, Any] = {"spark": spark}
    exec(compile(STREAM, "docs/spark-source.md", "exec"), names)
    for day, start in enumerate((0, n, 2 * n)):
        pq.write_table(payloads.slice(start, n if day < 2 else None), f"raw/{day}.parquet")
        names["decode_new_files"](spark, f"{tmp_path}/raw", f"{tmp_path}/out", f"{tmp_path}/checkpoint")
    decoder = ChangeDecoder()
    expected = decoder.table(payloads["data"], "public.orders", payloads["seq"])
    found = pq.read_table(tmp_path / "out").sort_by([("_commit_position", "ascending"), ("_position", "ascending")])
    for name in ("_position", "_op", "id", "total", "ref"):
        assert found[name].to_pylist() == expected[name].to_pylist()
    exec(compile(READ.replace('"raw/"', absolute), "docs/spark-source.md", "exec"), names)
    assert names["orders"].count() == len(expected)
    assert names["messages"].count() == len(payloads)
    assert names["changes"].count() == len(ChangeDecoder().decode(payloads["data"], payloads["seq"]))
    exec(compile(SCHEMA.replace('"raw/"', absolute), "docs/spark-source.md", "exec"), names)
    query = names["orders"].writeStream.format("memory").queryName("orders").trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.table("orders").count() == len(expected)
    assert pa.types.is_decimal(expected["total"].type)


@pytest.mark.full
def test_the_code_of_the_page_on_spark_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").symlink_to(clone.ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    blocks = markdown.code_blocks(clone.path_of("docs/spark.md").read_text(), "python")
    # The others need a file system of Hadoop, and tables of Delta or Iceberg.
    code = [block for block in blocks if "hdfs:" not in block and "lake.shop" not in block]
    assert len(code) == 5
    names: dict[str, Any] = {}
    # The last one writes files: a second call finds nothing new.
    for block in [*code, code[-1]]:
        # Spark resolves relative paths from where the JVM was started.
        here = block.replace('"tests/', f'"{tmp_path}/tests/').replace('"shop', f'"{tmp_path}/shop')
        exec(compile(here, "docs/spark.md", "exec"), names)
