"""Payloads in frames and text, and captured files: Spark decodes them as the local engine does."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from spark.jobs.test_spark_files import ORDER, read_back

import pgdecode
from pgdecode.files.payload_file import CAPTURE_KEY
from spark_udfs import changes, decode_files, relation_catalog, snapshot
from support import captures
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

COLUMN = captures.capture("18.shop.v1").column.slice(0, 300)
KEEPALIVE = b"k" + struct.pack("!qqb", 9, 0, 0)


def framed() -> list[bytes | None]:
    """Each payload in a frame, some keepalives between them, and a null."""
    found: list[bytes | None] = [None]
    for row, payload in enumerate(COLUMN.to_pylist()):
        found += [b"w" + struct.pack("!qqq", row, row, 0) + payload, *[KEEPALIVE] * (row % 7 == 0)]
    return found


FORMS = {
    "frames": pa.array(framed(), pa.binary()),
    "hexadecimal": pa.array(["\\x" + payload.hex() for payload in COLUMN.to_pylist()]),
    "base64 of frames": pa.array([None if v is None else base64.encodebytes(v).decode() for v in framed()]),
}
EXPECTED = pgdecode.ChangeDecoder().decode(COLUMN)
PLACES = {"position", "commit_position"}


def values(rows: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in PLACES} for row in rows.to_pylist()]


def write(path: Path, column: pa.Array, first_seq: int = 0, footer: dict[str, Any] | None = None) -> None:
    table = pa.table({"seq": range(first_seq, first_seq + len(column)), "data": column})
    if footer is not None:
        table = table.replace_schema_metadata({CAPTURE_KEY: json.dumps(footer)})
    pq.write_table(table, path)


@pytest.mark.full
@pytest.mark.parametrize("form", [*list(FORMS)[:2], *map(long, list(FORMS)[2:])])
def test_functions_of_dataframes_recognise_the_form_of_payloads(spark: SparkSession, tmp_path: Path, form: str) -> None:
    write(tmp_path / "raw.parquet", FORMS[form])
    rows = spark.read.parquet(str(tmp_path / "raw.parquet"))
    assert values(changes(rows).toArrow().sort_by(ORDER).cast(EXPECTED.schema)) == values(EXPECTED)
    assert len(relation_catalog(rows)) == len(pgdecode.RelationCatalog.from_messages(COLUMN))
    assert snapshot(rows, "public.orders").count() == len(pgdecode.snapshot(COLUMN, "public.orders"))


@pytest.mark.parametrize("form", ["frames", *map(full, list(FORMS)[1:])])
def test_jobs_recognise_the_form_of_payloads(spark: SparkSession, tmp_path: Path, form: str) -> None:
    write(tmp_path / "raw.parquet", FORMS[form])
    decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", what="changes")
    assert values(read_back(tmp_path / "out").sort_by(ORDER).cast(EXPECTED.schema)) == values(EXPECTED)
    decode_files(spark, tmp_path / "raw.parquet", tmp_path / "messages", in_stream="ordered")
    kinds = [kind for kind in read_back(tmp_path / "messages")["kind"].to_pylist() if kind is not None]
    assert kinds == pgdecode.decode_messages(COLUMN)["kind"].to_pylist()


@pytest.mark.full
def test_a_column_of_nulls_without_a_type_has_no_changes(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1L AS seq, null AS data")
    assert changes(rows).count() == 0


BEGIN = bytes.fromhex("4200000000000002000000000000000000000002bd")  # B, final LSN, time, xid
RELATION = bytes.fromhex("52000040007075626c69630074006400010169640000000017ffffffff")
INSERT = bytes.fromhex("49000040004e0001740000000137")  # I, oid, N, 1 column, text, 1 byte, "7"
COMMIT = bytes.fromhex("4300000000000000020000000000000003000000000000000000")  # C
STREAM = [
    bytes.fromhex("53000002bc01"),  # S, xid 700, first segment
    RELATION[:1] + bytes.fromhex("000002bc") + RELATION[1:],
    INSERT[:1] + bytes.fromhex("000002bc") + INSERT[1:],
    b"E",
]


def test_a_stream_that_a_captured_session_left_open_is_not_undecided(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for number, (first_seq, column) in enumerate([(0, STREAM), (4, [BEGIN, RELATION, INSERT, COMMIT])]):
        file = {"session": number + 1, "first_seq": first_seq, "open_streams": 1 - number}
        origin = {"system": "1", "timeline": 1, "database": "d", "slot": "s", "publications": ["p"]}
        write(tmp_path / "raw" / f"{number}.parquet", pa.array(column), first_seq, {"file": file, "origin": origin})
    done = decode_files(spark, tmp_path / "raw", tmp_path / "out", what="changes")
    assert done.undecided == 0
    assert read_back(tmp_path / "out")["xid"].to_pylist() == [701]
