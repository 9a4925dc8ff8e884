"""Text files and files of pg_recvlogical: the payloads that they contain, as a Parquet file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from pgdecode.files.text_files import convert_to_parquet
from pgdecode.payloads.unwrap import UnwrapError
from pgdecode.protocol.options import Unwrap
from support import captures

BEGIN = bytes.fromhex("420000000001534c900002a1b2c3d4e5f6000002f1")  # B, final LSN, timestamp, xid
COMMIT = bytes.fromhex("43000000000001534c900000000001534cc00002a1b2c3d4e5f6")  # C
ABORT_9 = bytes.fromhex("410000030100000302")  # A, xid, subxid
ABORT_25 = ABORT_9 + bytes.fromhex("0000000001534c900002a1b2c3d4e5f6")  # LSN, timestamp


def converted(path: Path, content: str | bytes) -> list[dict[str, Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    target = path.with_name("converted.parquet")
    convert_to_parquet(path, target)
    rows: list[dict[str, Any]] = pq.read_table(target).to_pylist()
    return rows


@pytest.mark.parametrize("name", captures.NAMES)
def test_files_of_pg_recvlogical_are_split_by_structure(name: str, tmp_path: Path) -> None:
    payloads = pq.read_table(captures.DATA / f"{name}.parquet")["data"].to_pylist()[:5000]
    rows = converted(tmp_path / "raw.bin", b"".join(payload + b"\n" for payload in payloads))
    assert [row["data"] for row in rows] == payloads
    assert [row["seq"] for row in rows] == list(range(len(payloads)))


@pytest.mark.parametrize("most", [1, 7])
def test_a_stream_is_known_where_a_file_is_divided(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.files.text_files._CHUNK_ROWS", most)
    payloads = list(captures.capture("16.streams.v2").payloads[:300])
    rows = converted(tmp_path / "raw.bin", b"".join(payload + b"\n" for payload in payloads))
    assert [row["data"] for row in rows] == payloads
    assert [row["seq"] for row in rows] == list(range(len(payloads)))


def test_a_message_that_is_not_well_formed_is_a_payload_if_its_end_is_found(tmp_path: Path) -> None:
    """Such as an LSN that is out of range, or a name that is not UTF-8."""
    name = next(item for item in captures.capture("16.txns.v1").payloads if item[:1] == b"R").replace(
        b"public", b"publi\xff"
    )
    payloads = [BEGIN, b"B\xff" + BEGIN[2:], b"S\0\0\0\x01\1", name[:1] + b"\0\0\0\x01" + name[1:], b"E", name, COMMIT]
    assert b"\xff" in name
    rows = converted(tmp_path / "raw.bin", b"".join(payload + b"\n" for payload in payloads))
    assert [row["data"] for row in rows] == payloads


@pytest.mark.parametrize("abort", [ABORT_9, ABORT_25], ids=["on", "parallel"])
def test_a_stream_abort_has_the_length_that_fits_the_file(abort: bytes, tmp_path: Path) -> None:
    payloads = [BEGIN, abort, COMMIT, b"", abort]
    rows = converted(tmp_path / "raw", b"".join(payload + b"\n" for payload in payloads))
    assert [row["data"] for row in rows] == payloads


def test_a_truncated_file_is_refused_at_the_truncated_message(tmp_path: Path) -> None:
    with pytest.raises(UnwrapError, match=r"^row 1: byte 22: no newline after the message, or the file ends"):
        converted(tmp_path / "raw.bin", BEGIN + b"\n" + COMMIT[:-3])


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_an_empty_file_has_no_payloads(name: str, tmp_path: Path) -> None:
    assert converted(tmp_path / name, b"") == []


EXPECTED = [
    {"seq": 0, "lsn": 0x1534C90, "xid": 753, "data": BEGIN},
    {"seq": 1, "lsn": 0x1534CC0, "xid": 753, "data": COMMIT},
]


def test_csv_of_psql_is_read(tmp_path: Path) -> None:
    text = f"lsn,xid,data\n0/1534C90,753,\\x{BEGIN.hex()}\n0/1534CC0,753,\\x{COMMIT.hex()}\n"
    assert converted(tmp_path / "rows.csv", text) == EXPECTED


def test_zeros_before_an_xid_and_a_byte_order_mark_are_left_out(tmp_path: Path) -> None:
    text = f"\ufefflsn,xid,data\n0/1534C90,{753:06000},\\x{BEGIN.hex()}\n"
    assert converted(tmp_path / "rows.csv", text) == EXPECTED[:1]
    text = '\ufeff{"lsn": "0/1534C90", "xid": 0, "data": "RQ=="}'
    assert converted(tmp_path / "rows.json", text) == [{"seq": 0, "lsn": 0x1534C90, "xid": None, "data": b"E"}]


def test_json_lines_of_drivers_are_read(tmp_path: Path) -> None:
    rows = [{"lsn": "0/1534C90", "xid": "753", "data": base64.b64encode(BEGIN).decode()}]
    assert converted(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows)) == EXPECTED[:1]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        pytest.param(
            "a.jsonl",
            '{"action": "I", "schema": "public"}\n',
            "row 0: no text in 'data'; it looks like wal2json",
            id="wal2json",
        ),
        pytest.param(
            "a.jsonl",
            '{"data": "\\\\x45"}\n{"payload": "\\\\x45"}\n',
            "row 1: no text in 'data'; the object has no such key",
            id="another key",
        ),
        pytest.param(
            "a.jsonl",
            '{"payload": {"before": null}}\n',
            "row 0: no text in 'data'; it looks like JSON from Debezium",
            id="Debezium",
        ),
        pytest.param("a.jsonl", "[1]\n", "row 0: not a JSON object", id="a list"),
        pytest.param("a.csv", "lsn,data\nx,\\x45\n", "row 0: 'lsn' is not an LSN such as 16/B374D848", id="LSN"),
        pytest.param("a.csv", "xid,data\n-,\\x45\n", "row 0: 'xid' is not a whole number", id="xid"),
        pytest.param(
            "a.csv",
            "lsn,data\n0/1,\\x45\n80000000/0,\\x45\n",
            "row 1: 'lsn' is above 7FFFFFFF/FFFFFFFF",
            id="LSN above",
        ),
        pytest.param(
            "a.csv", f"xid,data\n{2**63},\\x45\n", "row 0: 'xid' is not a whole number below 2**63", id="xid above"
        ),
        pytest.param(
            "a.csv",
            "lsn,payload\n0/1,\\x45\n",
            "row 0: no text in 'data'; the first line names no",
            id="another column",
        ),
        pytest.param(
            "a.csv",
            b"ls\xff,data\n0/1,\\x45\n",
            "row 0: line 1 of the file is not UTF-8",
            id="a name that is not UTF-8",
        ),
        pytest.param(
            "a.csv", b"data,x\n\\x45,\xc3\xa9\n\\x45,\xe9\n", "row 1: line 3 of the file is not UTF-8", id="Latin-1"
        ),
        pytest.param(
            "a.jsonl", b'{"data": "RQ=="}\n{"\xff": 1}\n', "row 1: line 2 of the file is not UTF-8", id="a key"
        ),
        pytest.param("a.csv", "data\n\\x45\n".encode("utf-16"), "row 0: line 1 of the file is not UTF-8", id="UTF-16"),
        pytest.param("a.jsonl", '{"data": "RQ==\\ud800"}\n', "row 0: not base64", id="half a surrogate pair"),
        pytest.param("a.jsonl", '{"lsn": "\\ud800", "data": "RQ=="}\n', "row 0: 'lsn' is not an LSN", id="in an LSN"),
        pytest.param(
            "a.jsonl",
            '{"payload": "\\\\x45", "tags": []}\n',
            "row 0: no text in 'data'; it looks like JSON:",
            id="a list beside",
        ),
        pytest.param("a.csv", "data\n\\x45\n\\x4\n", "row 1: not hexadecimal digits", id="odd digits"),
        pytest.param("a.txt", "BEGIN 529\nCOMMIT 529\n", "row 0: byte 0: ", id="test_decoding"),
        pytest.param("a.bin", b"\r\n" * 8, "row 0: byte 0: not a pgoutput message", id="line breaks"),
        pytest.param("a.bin", b"\0\1", "row 0: byte 0: not a pgoutput message", id="bytes"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(name: str, content: str | bytes, text: str, tmp_path: Path) -> None:
    with pytest.raises(UnwrapError) as caught:
        converted(tmp_path / name, content)
    assert str(caught.value).startswith(text)


def test_rows_after_a_chunk_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.payloads.text_rows._CHUNK_ROWS", 2)
    lines = ["data", *["\\x45"] * 5]
    assert [row["seq"] for row in converted(tmp_path / "a.csv", "\n".join(lines))] == [0, 1, 2, 3, 4]
    with pytest.raises(UnwrapError, match=r"^row 5: not hexadecimal digits"):
        converted(tmp_path / "a.csv", "\n".join([*lines, "\\x4"]))


def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = []

    def convert(source: Path, target: Path, payload: str, how: Unwrap) -> bool:
        converted.append(source)
        return convert_to_parquet(source, target, payload, how)

    monkeypatch.setattr("pgdecode.files.text_files.convert_to_parquet", convert)
    (tmp_path / "raw.bin").write_bytes(BEGIN + b"\n" + COMMIT + b"\n")
    (file,) = ordered_files(tmp_path / "raw.bin", "data").files
    assert [row["seq"] for batch in file.batches() for row in batch.to_pylist()] == [0, 1]
    assert converted == [tmp_path / "raw.bin"]


def test_a_parquet_file_that_is_damaged_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(BEGIN + b"\n")
    with pytest.raises(ValueError, match=r"a\.parquet: not a Parquet file$"):
        payload_files(tmp_path / "a.parquet", "data")
    (tmp_path / "a.bin").write_bytes(BEGIN + b"\n\0")
    with pytest.raises(FileFault, match=r"a\.bin: not a Parquet file, and cannot be read as text: row 1: byte 22"):
        payload_files(tmp_path / "a.bin", "data")


# -- positions ---------------------------------------------------------------------------------------------------------


def with_positions(path: Path, name: str, positions: list[Any]) -> Path:
    """Write two payloads with positions."""
    texts = ["\\x" + payload.hex() for payload in (BEGIN, COMMIT)]
    rows = list(zip(positions, texts, strict=True))
    lines = [json.dumps({name: position, "data": text}) for position, text in rows]
    if path.suffix == ".csv":
        lines = [f"{name},data", *(f"{position},{text}" for position, text in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["seq", "position"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_column_of_positions_is_that_of_the_payloads(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    files = ordered_files(with_positions(path, name, [10, 20]), "data")
    assert (files.position, [batch.positions.to_pylist() for batch in files.batches()]) == (name, [[10, 20]])
    for wrong in ("1.5", "", "x", "-1", str(2**63)):
        with pytest.raises(FileFault, match=f"row 1: '{name}' is not a whole number below 2\\*\\*63"):
            ordered_files(with_positions(path, name, [10, wrong]), "data")


def test_without_a_column_of_positions_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(["data\n", *(f"\\x{payload.hex()}\n" for payload in (BEGIN, COMMIT))]))
    (file,) = ordered_files(path, "data").files
    assert file.converted is not None
    assert not file.converted.has_positions
