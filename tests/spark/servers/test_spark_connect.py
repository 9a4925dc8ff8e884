"""All functions on a server of Spark Connect. The client is a process of its own: it can have no classic session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.spark_servers import connect_server

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.full
pytest.importorskip("grpc", reason="Spark Connect needs: pip install 'pgdecode[connect]'")

PROGRAM = """
import json, sys, warnings
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
import pgdecode, spark_udfs
from pgdecode.datasets.target import target_at
from pathlib import Path

warnings.simplefilter("ignore", FutureWarning)
remote, source, out = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
raw = spark.read.parquet(source)
column = pq.read_table(source)
payloads, positions = column["data"], column["seq"]

[executor] = spark_udfs.check_executors(spark)
assert (executor.pgdecode, executor.python) == (pgdecode.__version__, sys.executable), executor

kinds = pgdecode.decode_messages(payloads, fields=["kind"])["kind"].to_pylist()
parsed = raw.select("seq", spark_udfs.parse_pgoutput("data", fields=["kind"]).alias("m")).orderBy("seq").collect()
assert [row.m.kind for row in parsed] == kinds

spark_udfs.register(spark, fields=["kind"])
raw.createOrReplaceTempView("raw")
(n,) = spark.sql("SELECT count(*) FROM raw WHERE parse_pgoutput(data).kind = 'insert'").first()
assert n == kinds.count("insert") > 0

relations = pgdecode.RelationCatalog.from_messages(payloads, positions)
assert spark_udfs.relation_catalog(raw).to_json() == relations.to_json()

decoder = pgdecode.ChangeDecoder()
expected = decoder.decode(payloads, positions)
found = spark_udfs.changes(raw).orderBy("commit_position", "position").toArrow()
assert found.select(["position", "op", "relation_name"]).to_pylist() == expected.select(
    ["position", "op", "relation_name"]
).to_pylist()

table = pgdecode.ChangeDecoder().table(payloads, "public.orders", positions)
rows = spark_udfs.table_changes(raw, "public.orders").orderBy("_commit_position", "_position").toArrow()
assert rows["_position"].to_pylist() == table["_position"].to_pylist()
assert rows["id"].to_pylist() == table["id"].to_pylist()

last = pgdecode.snapshot(payloads, "public.orders")
state = spark_udfs.snapshot(raw, "public.orders").toArrow()
assert sorted(state["id"].to_pylist()) == sorted(last["id"].to_pylist())

relation = next(pgdecode.decode(item) for item in payloads.to_pylist() if item[:1] == b"R" and b"orders" in item)
typed = raw.select(spark_udfs.from_pgoutput("data", relation, others="null").alias("r")).where("r._op is not null")
assert typed.count() == sum(
    item[:1] in (b"I", b"U", b"D") and item[1:5] == relation.relation_id.to_bytes(4, "big")
    for item in payloads.to_pylist()
)

for what in ("messages", "changes", "public.orders"):
    done = spark_udfs.decode_files(spark, source, f"{out}/{what}", what=what)
    n_rows = spark.read.parquet(f"{out}/{what}").count()
    assert n_rows == {"messages": len(payloads), "changes": expected.num_rows}.get(what, table.num_rows), (what, n_rows)
assert target_at(Path(out, "changes")).last().rows == expected.num_rows
print("all is well")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with connect_server({"spark.sql.shuffle.partitions": "2"}, {"PYSPARK_PYTHON": sys.executable}) as url:
        yield url


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )


def test_all_functions_give_the_rows_of_the_library(server: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = python(program, server, ROOT / "tests/data/16.shop.v1.parquet", tmp_path)
    assert done.stdout.splitlines()[-1:] == ["all is well"], done.stderr


def test_the_command_line_decodes_on_a_server(server: str, tmp_path: Path) -> None:
    source = ROOT / "tests/data/16.shop.v1.parquet"
    options = ["--changes", "--engine", "spark", "--remote", server, "--conf", "spark.sql.session.timeZone=UTC"]
    done = python("-m", "pgdecode", "decode", source, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "_pgdecode" / "0000000001.json").exists()
