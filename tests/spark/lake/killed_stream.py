"""Streams into a lake that are killed: `python killed_stream.py FORMAT FOLDER PAYLOADS TABLE...`, for stream_cases.

It adds the payload files that are missing one by one, and applies each. The next call goes on from what is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spark.lake.lake_session import settings

from spark_udfs import apply_stream
from spark_udfs.runtime.session import local_session

CATALOGS = {"delta": "spark_catalog", "iceberg": "iceberg"}


def main(format: str, folder: Path, payloads: Path, tables: list[str]) -> None:
    targets = {f"public.{table}": f"{CATALOGS[format]}.lake.{table}" for table in tables}
    (folder / "raw").mkdir(exist_ok=True)
    with local_session("local[2]", settings(folder)) as spark:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {CATALOGS[format]}.lake")
        for table, target in zip(tables, targets.values(), strict=True):
            # The catalog of this session does not know the tables of the former one.
            path = folder / "delta" / "lake.db" / table
            if format == "delta" and [*path.glob("_delta_log/*.json")]:
                spark.sql(f"CREATE TABLE {target} USING delta LOCATION '{path}'")
        print("started", flush=True)
        for path in [None, *sorted(payloads.glob("*.parquet"))]:
            if path is not None and (folder / "raw" / path.name).exists():
                continue
            if path is not None:
                os.link(path, folder / "raw" / path.name)
            if [*(folder / "raw").iterdir()]:
                apply_stream(spark, folder / "raw", targets, checkpoint=folder / "checkpoint").awaitTermination()
                print("applied", flush=True)
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
