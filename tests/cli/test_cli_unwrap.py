"""Inputs as servers, tools and drivers write them: commands read them like raw payloads in Parquet."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.shell import BEGIN, COMMIT, SHOP, STREAMS, Shell
from support.tiers import full

KEEPALIVE = b"k" + struct.pack("!qqb", 9, 0, 0)


def frame(payload: bytes) -> bytes:
    return b"w" + struct.pack("!qqq", 0x16B374D848, 0x16B374D849, 0) + payload


def in_parquet(path: Path, values: pa.Array) -> Path:
    pq.write_table(pa.table({"data": values}), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def frames(path: Path, payloads: list[bytes]) -> Path:
    values = [item for payload in payloads for item in (KEEPALIVE, frame(payload))]
    return in_parquet(path, pa.array(values, pa.binary()))


def hexadecimal(path: Path, payloads: list[bytes]) -> Path:
    return in_parquet(path, pa.array(["\\x" + payload.hex() for payload in payloads]))


def base64_text(path: Path, payloads: list[bytes]) -> Path:
    return in_parquet(
        path, pa.array([base64.encodebytes(payload).decode() for payload in payloads]).dictionary_encode()
    )


def csv_of_psql(path: Path, payloads: list[bytes]) -> Path:
    target = path.with_suffix(".csv")
    target.write_text("".join(["lsn,xid,data\n", *(f"0/1,7,\\x{payload.hex()}\n" for payload in payloads)]))
    return target


def json_lines(path: Path, payloads: list[bytes]) -> Path:
    target = path.with_suffix(".jsonl")
    target.write_text("".join(json.dumps({"data": base64.b64encode(payload).decode()}) + "\n" for payload in payloads))
    return target


def recvlogical(path: Path, payloads: list[bytes]) -> Path:
    path.with_suffix(".bin").write_bytes(b"".join(payload + b"\n" for payload in payloads))
    return path.with_suffix(".bin")


FORMS = [frames, hexadecimal, base64_text, csv_of_psql, json_lines, recvlogical]
Form = Callable[[Path, list[bytes]], Path]


@pytest.mark.parametrize("capture", [pytest.param(SHOP, id="shop"), full(STREAMS, id="streams")])
@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_messages_and_changes_of_the_payloads(
    run: Shell, form: Form, capture: Path, tmp_path: Path
) -> None:
    payloads = pq.read_table(capture)["data"].to_pylist()
    path = form(tmp_path / "in", payloads)
    assert run("cat", path).out == run("cat", capture).out
    plain = in_parquet(tmp_path / "plain", pa.array(payloads))
    expected = run("cat", plain, "--changes").objects
    found = run("cat", path, "--changes").objects
    if form is frames:
        # Positions are numbers of rows, and half of the rows are keepalives.
        expected = [
            {**row, **{name: 2 * row[name] + 1 for name in ("position", "commit_position")}} for row in expected
        ]
    assert found == expected
    assert run("inspect", path, "--json").code == 0
    out = tmp_path / "changes.jsonl"
    done = run("decode", path, out, "--changes")
    assert done.code == 0, done.err
    assert [json.loads(line) for line in out.read_text().splitlines()] == found
    assert run("decode", path, tmp_path / "messages.jsonl").code == 0


def test_a_bad_message_is_named_by_its_row_among_keepalives(run: Shell, tmp_path: Path) -> None:
    path = in_parquet(tmp_path / "in", pa.array([KEEPALIVE, frame(b"E"), KEEPALIVE, frame(b"Z")]))
    assert "row 3: UNKNOWN_TAG" in run("decode", path, "out", "--in-stream", "auto").err
    lines = run("cat", path, "--in-stream", "auto", "--mode", "PERMISSIVE").objects
    assert [line.get("row") for line in lines] == [None, 3]


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_a_null_payload_among_frames_is_a_row_and_a_keepalive_is_not(
    run: Shell, tmp_path: Path, batch_rows: int
) -> None:
    path = in_parquet(tmp_path / "in", pa.array([frame(BEGIN), None, KEEPALIVE, None, KEEPALIVE, frame(COMMIT)]))
    assert run("decode", path, "out.parquet", "--batch-rows", batch_rows).code == 0
    assert pq.read_table("out.parquet")["kind"].to_pylist() == ["begin", None, None, "commit"]
    assert json.loads(run("inspect", path, "--json").out)["null_rows"] == 2


def test_messages_before_a_bad_one_are_printed_without_keepalives(run: Shell, tmp_path: Path) -> None:
    path = in_parquet(tmp_path / "in", pa.array([frame(BEGIN), KEEPALIVE, frame(b"Z")]))
    done = run("cat", path)
    assert (done.code, [line["kind"] for line in done.objects]) == (1, ["begin"])


def test_the_lsn_of_a_frame_becomes_a_column(run: Shell, tmp_path: Path) -> None:
    payloads = pq.read_table(SHOP)["data"].to_pylist()[:2]
    path = frames(tmp_path / "in", payloads)
    options = ["--keep", "frame_lsn", "--fields", "kind,lsn"]
    assert run("decode", path, "out.parquet", *options).code == 0
    rows = pq.read_table("out.parquet").to_pylist()
    assert [row["frame_lsn"] for row in rows] == [0x16B374D848] * 2
    assert [row["kind"] for row in rows] == ["begin", "relation"]
    assert rows[0]["lsn"] != rows[0]["frame_lsn"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        pytest.param(b'{"change":[{"kind":"insert"}]}', "wal2json", id="wal2json"),
        pytest.param(b'{"before":null,"after":{"id":1},"source":{},"op":"c"}', "JSON from Debezium", id="Debezium"),
        pytest.param(b"BEGIN 529", "text of test_decoding", id="test_decoding"),
        pytest.param(base64.b64encode(b"B" + bytes(20)), "base64 text: --unwrap base64", id="base64"),
    ],
)
def test_another_format_is_named(run: Shell, value: bytes, what: str, tmp_path: Path) -> None:
    path = in_parquet(tmp_path / "in", pa.array([value] * 3))
    done = run("inspect", path)
    assert (done.code, f"no row is a pgoutput message; it looks like {what}" in done.err) == (1, True)
    for options in ((), ("--changes",)):
        done = run("decode", path, "out", *options)
        assert (done.code, f"it looks like {what}" in done.err) == (1, True)


def test_base64_in_a_binary_column_is_read_on_request(run: Shell, tmp_path: Path) -> None:
    payloads = pq.read_table(SHOP)["data"].to_pylist()
    path = in_parquet(tmp_path / "in", pa.array([base64.b64encode(payload) for payload in payloads]))
    assert run("cat", path, "--unwrap", "base64").out == run("cat", SHOP).out
    assert run("cat", path).code == 1


def test_a_column_of_nulls_without_a_type_has_null_payloads(run: Shell, tmp_path: Path) -> None:
    path = in_parquet(tmp_path / "in", pa.nulls(2))
    assert run("cat", path).objects == [{}, {}]
    assert run("cat", path, "--changes").objects == []


def test_text_is_refused_if_payloads_are_to_be_raw(run: Shell, tmp_path: Path) -> None:
    path = hexadecimal(tmp_path / "in", [b"E"])
    done = run("cat", path, "--unwrap", "none")
    assert (done.code, done.err.endswith("column 'data' is string, not binary; binary columns: none\n")) == (2, True)
