"""The data source in Spark: reads equal the functions, and streams continue from their checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from stream_engine import cut, write_file

from pgdecode import ChangeDecoder, decode_messages
from spark_udfs import changes, register, table_changes
from spark_udfs.schema.spark_types import session_has_time
from spark_udfs.sources.stream_reader import HAS_LIMITS
from support import captures
from support.compare import rows_of
from support.generators.slot import Slot
from support.oracles import expected_changes
from support.tiers import full

pytest_plugins = ["support.spark_session"]

T = 16385
Reader = Callable[..., DataFrame]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, folder: Path, *, stream: bool = False, **options: Any) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    return reader.format("pgoutput").options(**options).load(str(folder))


def capture_files(folder: Path, name: str, n_files: int, rng: random.Random) -> list[bytes]:
    """Write a capture as files."""
    payloads = captures.capture(name).payloads
    folder.mkdir()
    for start, end in cut(payloads, n_files, rng):
        write_file(folder / f"{start:06}.parquet", payloads[start:end], start, rng)
    return payloads


def run(found: DataFrame, target: Path) -> list[int]:
    """Stream what is available, and return the numbers of rows of the micro-batches."""
    query = (
        found.writeStream.format("parquet")
        .option("checkpointLocation", str(target.with_name("checkpoint")))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination()
    return [int(item["numInputRows"]) for item in query.recentProgress]


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Sort changes as they are to be applied. Spark writes timestamps to files as nanoseconds by default."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.timestamp("us", "UTC")))
    prefix = "_" if "_position" in rows.column_names else ""
    keys = [(f"{prefix}{name}", "ascending") for name in ("commit_position", "position")]
    return rows_of(rows.sort_by(keys).combine_chunks().to_batches()[0]) if len(rows) else []


# -- reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", ["18.streams.v4", "18.txns.v2bin"])
def test_a_read_equals_one_decoder_over_all_payloads(
    session: SparkSession, tmp_path: Path, rng: random.Random, name: str
) -> None:
    payloads = capture_files(tmp_path / "raw", name, 4, rng)
    found = load(session, tmp_path / "raw", what="changes", mode="PERMISSIVE").toArrow()
    expected = ChangeDecoder(mode="PERMISSIVE").decode(pa.array(payloads, pa.binary()))
    assert sorted_rows(found) == sorted_rows(pa.Table.from_batches([expected]))


@pytest.mark.full
def test_a_read_of_a_table_has_the_columns_and_rows_of_table_changes(
    session: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    capture_files(tmp_path / "raw", "18.types.v1", 2, rng)
    raw = session.read.parquet(str(tmp_path / "raw"))
    tables = ChangeDecoder()
    tables.decode(captures.capture("18.types.v1").column)
    for table in tables._engine.layout_catalog.names[:6]:
        options = {"mode": "PERMISSIVE", "unrepresentable": "null"}
        found = load(session, tmp_path / "raw", what=table, **options)
        expected = table_changes(raw, table, **options)  # type: ignore[arg-type]
        assert found.schema == expected.schema
        # As text, because NaN does not equal itself.
        assert str(sorted_rows(found.toArrow())) == str(sorted_rows(expected.toArrow()))


@pytest.mark.full
def test_messages_are_read_with_other_columns(session: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    payloads = capture_files(tmp_path / "raw", "18.streams.v2", 3, rng)
    found = load(session, tmp_path / "raw", keep="seq", fields="kind,xid,new", in_stream="ordered").toArrow()
    assert found.column_names == ["seq", "kind", "xid", "new"]
    auto = load(session, tmp_path / "raw", keep="seq", fields='["kind", "xid"]').toArrow().sort_by("seq")
    expected = decode_messages(pa.array(payloads, pa.binary()), fields=["kind"])
    assert auto["kind"].to_pylist() == expected["kind"].to_pylist()


@pytest.mark.full
def test_a_read_is_divided_into_tasks(
    session: SparkSession, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = capture_files(tmp_path / "raw", "18.streams.v4", 5, rng)
    # Tasks have at least 8 MiB, unless these files are repeated until they have more.
    wide = [payload[:1] + payload[1:] for payload in payloads]
    slot = Slot()
    for xid in range(40):
        slot.begin(xid + 1)
        slot.relation(T, ["id", "v"])
        slot.insert(T, str(xid), random.Random(xid).randbytes(300_000).hex())
        slot.commit()
    assert wide == payloads
    (tmp_path / "wide").mkdir()
    table = {"seq": pa.array(range(len(slot.payloads)), pa.int64()), "data": pa.array(slot.payloads, pa.binary())}
    pq.write_table(pa.table(table), tmp_path / "wide" / "0.parquet", row_group_size=16)
    found = load(session, tmp_path / "wide", what="public.t16385", fields="_position,id")
    assert found.rdd.getNumPartitions() >= 2
    assert sorted(int(row["id"]) for row in found.collect()) == list(range(40))


@pytest.mark.full
def test_a_given_schema_selects_columns_and_adds_those_that_the_table_does_not_have(
    session: SparkSession, tmp_path: Path
) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"])
    slot.insert(T, "1", "a")
    slot.commit()
    (tmp_path / "raw").mkdir()
    write_file(tmp_path / "raw" / "0.parquet", slot.payloads, 0, random.Random(0))

    def read(schema: str, **options: Any) -> list[tuple[Any, ...]]:
        reader = session.read.format("pgoutput").schema(schema).options(what="public.t16385", **options)
        return [tuple(row) for row in reader.load(str(tmp_path / "raw")).collect()]

    assert read("_op string, id string, v string, later int") == [("insert", "1", "a", None)]
    assert read("v string", fields="v") == [("a",)]
    with pytest.raises(Exception, match="column 'v' is not in the schema of the query"):
        read("id string")
    with pytest.raises(Exception, match="column 'id' is string in the payloads, but int in the schema of the query"):
        read("id int, v string")


@pytest.mark.full
def test_times_have_the_type_of_the_session(session: SparkSession, tmp_path: Path) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["at"], types=[1083])
    slot.insert(T, "12:34:56.7")
    slot.commit()
    (tmp_path / "raw").mkdir()
    write_file(tmp_path / "raw" / "0.parquet", slot.payloads, 0, random.Random(0))
    found = load(session, tmp_path / "raw", what="public.t16385", fields="at")
    (row,) = found.selectExpr("CAST(at AS STRING)").collect()
    assert row[0] == "12:34:56.7"
    assert (found.schema["at"].dataType.simpleString() == "string") == (not session_has_time(session))


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("name", "n_restarts"), [("18.streams.v4", 1), ("18.txns.v3nostream", 5)])
def test_a_stream_over_a_growing_folder_that_is_restarted_returns_each_change_once(
    session: SparkSession, tmp_path: Path, rng: random.Random, name: str, n_restarts: int
) -> None:
    payloads = captures.capture(name).payloads
    folder = tmp_path / "raw"
    folder.mkdir()
    files = cut(payloads, 4 + n_restarts, rng)
    for number in range(1 + n_restarts):
        # The checkpoint continues in another query each time. The last ones add one file each.
        for start, end in files[: 4 if number == 0 else 1]:
            write_file(folder / f"{rng.getrandbits(32):08x}.parquet", payloads[start:end], start, rng)
        files = files[4 if number == 0 else 1 :]
        limit = {"maxFilesPerTrigger": 2} if HAS_LIMITS else {}
        n_rows = run(load(session, folder, stream=True, what="changes", **limit), tmp_path / "out")
        assert len(n_rows) >= (2 if number == 0 and HAS_LIMITS else 1)
    assert not files
    found = sorted_rows(pq.read_table(tmp_path / "out"))
    expected = ChangeDecoder().decode(pa.array(payloads, pa.binary()))
    assert found == sorted_rows(pa.Table.from_batches([expected]))
    changes = [
        {**row, **{part: None if row[part] is None else dict(row[part]) for part in ("old", "new")}} for row in found
    ]
    assert expected_changes.differences_from_test_decoding(name, changes) == []


@pytest.mark.full
def test_a_new_column_stops_the_stream_and_a_restart_has_it(session: SparkSession, tmp_path: Path) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.insert(T, "1")
    slot.commit()
    folder = tmp_path / "raw"
    folder.mkdir()
    write_file(folder / "0.parquet", slot.payloads, 0, random.Random(0))
    found = load(session, folder, stream=True, what="public.t16385")
    assert run(found, tmp_path / "out") == [1]
    n = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id", "price"])
    slot.insert(T, "2", "9.99")
    slot.commit()
    write_file(folder / "1.parquet", slot.payloads[n:], n, random.Random(0))
    with pytest.raises(Exception, match=r"SchemaDiffers: table public.t16385: column 'price' is not in the schema"):
        run(found, tmp_path / "out")
    run(load(session, folder, stream=True, what="public.t16385"), tmp_path / "out")
    rows = pq.ParquetDataset(tmp_path / "out").files
    ids = [row for path in rows for row in pq.read_table(path, columns=["id"])["id"].to_pylist()]
    assert sorted(ids) == ["1", "2"]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["changes", full("messages"), full("public.t16385")])
def test_a_bad_payload_is_reported_with_its_file_and_row(session: SparkSession, tmp_path: Path, what: str) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.commit()
    slot.begin(8)
    slot.payloads.append(b"I\x00")
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw" / "0.parquet"
    write_file(path, slot.payloads, 0, random.Random(0))
    found = load(session, tmp_path / "raw", what=what)
    with pytest.raises(Exception, match=f"FileFault: {path}: row 4[:,].*TRUNCATED at offset 1"):
        found.collect()
    if what == "changes":
        assert load(session, tmp_path / "raw", what=what, mode="DROPMALFORMED").count() == 0


@pytest.mark.full
def test_a_file_that_comes_too_late_stops_the_stream(session: SparkSession, tmp_path: Path) -> None:
    slot = Slot()
    for xid in range(3):
        slot.begin(xid + 7)
        slot.relation(T, ["id"])
        slot.commit()
    folder = tmp_path / "raw"
    folder.mkdir()
    write_file(folder / "1.parquet", slot.payloads[3:6], 3, random.Random(0))
    found = load(session, folder, stream=True, what="changes")
    run(found, tmp_path / "out")
    write_file(folder / "0.parquet", slot.payloads[:3], 0, random.Random(0))
    write_file(folder / "2.parquet", slot.payloads[6:], 6, random.Random(0))
    with pytest.raises(
        Exception, match=r"FilesChanged: .*files came too late: the stream has read 0 files that begin before seq 3"
    ):
        run(found, tmp_path / "out")


def test_wrong_options_are_refused(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(Exception, match=r'what is "messages", "changes" or a table as "schema.table", not .rows.'):
        load(session, tmp_path / "raw", what="rows")
    if not HAS_LIMITS:
        found = load(session, tmp_path / "raw", stream=True, what="changes", maxFilesPerTrigger=1)
        with pytest.raises(Exception, match=r"maxFilesPerTrigger needs pyspark 4.2 or later"):
            run(found, tmp_path / "out")


@pytest.mark.full
def test_a_read_has_the_schema_of_changes(session: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    capture_files(tmp_path / "raw", "18.shop.v1", 3, rng)
    raw = session.read.parquet(str(tmp_path / "raw"))
    found = load(session, tmp_path / "raw", what="changes", fields="commit_position,position,op")
    assert found.schema == changes(raw, fields=["commit_position", "position", "op"]).schema
