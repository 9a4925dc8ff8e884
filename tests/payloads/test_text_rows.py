"""Text files in the forms in which psql, COPY and drivers leave payloads: read, or named with what to do."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.files.payload_files import payload_files
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import Unwrap
from support import captures

PAYLOADS = [*captures.capture("16.txns.v1").payloads[:40]]
LSNS = [lsn_to_text(0x1534C90 + 8 * row) for row in range(len(PAYLOADS))]


def hexadecimal(payload: bytes) -> str:
    return "\\x" + payload.hex()


def base64_text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def separated(rows: Sequence[str], head: str = "lsn,xid,data", comma: str = ",") -> str:
    """Rows of LSN, xid and payload."""
    lines = [f"{lsn}{comma}753{comma}{row}\n" for lsn, row in zip(LSNS, rows, strict=True)]
    return "".join([head.replace(",", comma) + "\n" if head else "", *lines])


HEX = [hexadecimal(payload) for payload in PAYLOADS]
BARE_HEX = [payload.hex() for payload in PAYLOADS]
BASE64 = [base64_text(payload) for payload in PAYLOADS]
OBJECTS = [{"lsn": lsn, "xid": "753", "data": text} for lsn, text in zip(LSNS, HEX, strict=True)]


def lines(rows: Sequence[str], end: str = "\n") -> str:
    return "".join(row + end for row in rows)


# Source: github.com/babelfish-for-postgresql/babelfish_extensions/issues/2868, and what psql and COPY print.
READ = {
    "CSV": ("rows.csv", separated(HEX), "auto"),
    "CSV with encode(data, 'hex')": ("rows.csv", separated(BARE_HEX), "auto"),
    "CSV with encode(data, 'hex') on request": ("rows.csv", separated(BARE_HEX), "hex"),
    "CSV with \\x on request": ("rows.csv", separated(HEX), "hex"),
    "CSV with base64": ("rows.csv", separated(BASE64), "auto"),
    "CSV with base64 on request": ("rows.csv", separated(BASE64), "base64"),
    "CSV with names in capitals": ("rows.csv", separated(HEX, "LSN,XID,DATA"), "auto"),
    "CSV with other line ends": ("rows.csv", separated(HEX).replace("\n", "\r\n"), "auto"),
    "CSV that is named otherwise": ("rows.out", separated(HEX), "auto"),
    "CSV with semicolons": ("rows.csv", separated(HEX, comma=";"), "auto"),
    "COPY with tabs and a header": ("rows.tsv", separated(HEX, comma="\t"), "auto"),
    "lines of \\x": ("rows.txt", lines(HEX), "auto"),
    "lines of \\x on request": ("rows.txt", lines(HEX), "hex"),
    "lines of \\x in CSV": ("rows.csv", lines(HEX), "auto"),
    "lines of \\x with other line ends": ("rows.txt", lines(HEX, "\r\n"), "auto"),
    "lines of digits": ("rows.hex", lines(BARE_HEX), "auto"),
    "lines of digits on request": ("rows.hex", lines(BARE_HEX), "hex"),
    "lines of base64 on request": ("rows.b64", lines(BASE64), "base64"),
    "COPY of one column": ("rows.copy", lines(["\\" + row for row in HEX]), "auto"),
    "JSON lines": ("rows.jsonl", lines([json.dumps(row) for row in OBJECTS]), "auto"),
    "JSON lines with digits": (
        "rows.jsonl",
        lines([json.dumps({"data": row}) for row in BARE_HEX]),
        "hex",
    ),
    "JSON lines that are named otherwise": ("rows.txt", lines([json.dumps(row) for row in OBJECTS]), "auto"),
    "JSON lines with keys in capitals": ("rows.json", lines([json.dumps({"DATA": row}) for row in HEX]), "auto"),
    "an array of JSON objects": ("rows.json", json.dumps(OBJECTS), "auto"),
    "an indented array of JSON objects": ("rows.json", json.dumps(OBJECTS, indent=2), "auto"),
    "json_agg by psql -At": ("rows", json.dumps(OBJECTS).replace("}, ", "}, \n ") + "\n", "auto"),
    "an array of arrays": ("rows.json", json.dumps([list(row.values()) for row in OBJECTS]), "auto"),
    "lines of arrays": ("rows.jsonl", lines([json.dumps(list(row.values())) for row in OBJECTS]), "auto"),
}


def rows_of(path: Path, unwrap: Unwrap = "auto", payload: str = "data") -> list[dict[str, Any]]:
    (file,) = payload_files(path, payload, ("seq", "lsn", "xid"), unwrap)
    return [row for batch in file.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("form", READ)
def test_each_form_that_names_its_payloads_is_read(tmp_path: Path, form: str) -> None:
    name, content, unwrap = READ[form]
    (tmp_path / name).write_text(content, newline="")
    rows = rows_of(tmp_path / name, unwrap)  # type: ignore[arg-type]
    assert [row["data"] for row in rows] == PAYLOADS
    assert [row["seq"] for row in rows] == list(range(len(PAYLOADS)))
    if LSNS[0] in content:
        assert [lsn_to_text(row["lsn"]) for row in rows] == LSNS
        assert {row["xid"] for row in rows} == {753}


def test_a_column_in_another_case_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(separated(HEX, "LSN,XID,Payload"))
    assert [row["payload"] for row in rows_of(tmp_path / "rows.csv", payload="payload")] == PAYLOADS
    (tmp_path / "rows.csv").write_text("DATA,Data\n\\x45,\\x45\n")
    with pytest.raises(ValueError, match="row 0: no text in 'data'; the first line names no such column"):
        rows_of(tmp_path / "rows.csv")


def psql_aligned(head: str) -> str:
    body = "".join(f" {lsn} | 753 | {row}\n" for lsn, row in zip(LSNS, HEX, strict=True))
    return f"    lsn    | xid | {head}\n-----------+-----+------\n{body}({len(HEX)} rows)\n"


COPY_BINARY = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\3" + bytes(40)
NAMED = {
    "psql": (psql_aligned("data"), r"aligned output of psql: write it with psql --csv$"),
    "psql of one column": ("data\n------\n" + lines(HEX), r"aligned output of psql: write it with psql --csv$"),
    "psql -x": (
        f"-[ RECORD 1 ]-------\nlsn  | {LSNS[0]}\nxid  | 753\ndata | {HEX[0]}\n",
        "expanded output of psql: write it with psql --csv$",
    ),
    "psql -At": (separated(HEX, "", "|"), r"unaligned output of psql \(-A\): write it with psql --csv$"),
    "psql -A": (separated(HEX, comma="|"), r"unaligned output of psql \(-A\): write it with psql --csv$"),
    "psql -H": (
        f'<table border="1">\n<td>{HEX[0]}</td>',
        "a table of psql in another format: write it with psql --csv$",
    ),
    "psql --csv -t": (separated(HEX, ""), "CSV without a header: write one, as psql --csv does without -t$"),
    "COPY in text format": (
        separated(["\\" + row for row in HEX], "", "\t"),
        r"COPY in text format: use COPY \.\.\. WITH \(FORMAT csv, HEADER\), or psql --csv$",
    ),
    "COPY in binary format": (
        COPY_BINARY,
        r"COPY in binary format: use COPY \.\.\. WITH \(FORMAT csv, HEADER\), or psql --csv$",
    ),
    "UTF-16": (lines(HEX).encode("utf-16"), "UTF-16, as PowerShell redirects it: write it as UTF-8$"),
    "bytea in escape format": (
        'lsn,xid,data\n0/1534C90,753,"B\\000\\000\\000"\n',
        "bytea in escape format: SET bytea_output = hex, and read the slot again$",
    ),
    "an empty file": (b"", "not a Parquet file: it is empty$"),
    "gzip": (b"\x1f\x8b\x08" + bytes(30), "compressed data: decompress it first$"),
    "test_decoding": (
        "BEGIN 529\ntable public.t: INSERT: id[integer]:1\n",
        "text of test_decoding: read the slot with",
    ),
}


@pytest.mark.parametrize("suffix", ["", ".txt"])
@pytest.mark.parametrize("form", NAMED)
def test_each_other_form_is_named_with_what_to_do(tmp_path: Path, form: str, suffix: str) -> None:
    content, text = NAMED[form]
    path = (tmp_path / "rows").with_suffix(suffix)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=text) as caught:
        rows_of(path)
    assert "pgoutput instead" not in str(caught.value) or form == "test_decoding"
    assert PAYLOADS[1].hex() not in str(caught.value)


@pytest.mark.parametrize("form", ["psql -At", "psql -A", "psql --csv -t", "psql", "COPY in text format"])
def test_a_csv_file_without_our_columns_is_named_with_what_to_do(tmp_path: Path, form: str) -> None:
    (tmp_path / "rows.csv").write_text(str(NAMED[form][0]))
    with pytest.raises(ValueError, match=NAMED[form][1]):
        rows_of(tmp_path / "rows.csv")


def test_digits_and_base64_are_told_apart_in_a_column(tmp_path: Path) -> None:
    texts = [text for row in zip(HEX, BARE_HEX, BASE64, strict=True) for text in row]
    pq.write_table(pa.table({"data": texts}), tmp_path / "raw.parquet")
    (file,) = payload_files(tmp_path / "raw.parquet", "data")
    found = [row for batch in file.batches() for row in batch.column("data").to_pylist()]
    assert found == [payload for payload in PAYLOADS for _ in range(3)]
