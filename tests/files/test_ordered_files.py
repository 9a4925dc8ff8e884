"""Which columns have the positions and sessions of files, and how often files are opened."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.arrow.thrift import COLUMNS, I64, META_DATA, ROW_GROUPS, Struct, Value
from pgdecode.files import payload_files
from pgdecode.files.ordered_files import OrderFault, ordered_files
from pgdecode.files.payload_file import CAPTURE_KEY
from pgdecode.storage.errors import PathError
from support.payload_files import N_VALUES, with_footer
from support.payload_files import written as written_file

NUMBERS = pa.array([1, 2])
CAPTURED = {CAPTURE_KEY: json.dumps({"file": {"session": 1, "first_seq": 1, "open_streams": 0}})}


def written(folder: Path, *files: dict[str, pa.Array], metadata: Any = None) -> Path:
    """Write files with two payloads and these columns."""
    for number, (columns, content) in enumerate(zip(files, metadata or [None] * len(files), strict=True)):
        table = pa.table({"data": pa.array([b"B", b"C"], pa.binary()), **columns})
        pq.write_table(table.replace_schema_metadata(content), folder / f"{number}.parquet")
    return folder


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["seq"], ["seq"], "seq"),
        (["seq", "position"], ["position", "seq"], "seq"),
        (["seq", "position"], ["position"], "position"),
        (["position"], ["seq", "position"], "position"),
        (["seq"], ["position"], None),
        (["seq"], [], None),
        ([], ["seq"], None),
    ],
)
def test_the_position_is_a_usual_column_of_all_files(
    tmp_path: Path, first: list[str], second: list[str], expected: str | None
) -> None:
    folder = written(tmp_path, dict.fromkeys(first, NUMBERS), dict.fromkeys(second, NUMBERS))
    found = ordered_files(folder, "data")
    assert found.position == expected
    assert [file.keep for file in found.files] == [() if expected is None else (expected,)] * 2


NOT_POSITIONS = {
    "string": NUMBERS.cast("string"),
    "double": NUMBERS.cast("double"),
    "decimal128(9, 2)": NUMBERS.cast(pa.decimal128(38, 0)).cast(pa.decimal128(9, 2)),
    "timestamp[us]": NUMBERS.cast(pa.timestamp("us")),
    "list<element: int64>": pa.array([[number] for number in NUMBERS.to_pylist()]),
}


@pytest.mark.parametrize("position", [None, "seq"], ids=["by default", "named"])
@pytest.mark.parametrize("type", NOT_POSITIONS)
def test_a_column_of_positions_that_does_not_have_integers_is_refused(
    tmp_path: Path, type: str, position: str | None
) -> None:
    folder = written(tmp_path, {"seq": NUMBERS, "position": NUMBERS}, {"seq": NOT_POSITIONS[type], "position": NUMBERS})
    text = rf"1\.parquet: column 'seq' is {re.escape(type)}, not integers: write it as integers, or name another column"
    with pytest.raises(PathError, match=text):
        ordered_files(folder, "data", position)
    assert ordered_files(folder, "data", "position").position == "position"


POSITIONS = {
    "uint64": NUMBERS.cast(pa.uint64()),
    "int8": NUMBERS.cast(pa.int8()),
    "decimal of scale 0": NUMBERS.cast(pa.decimal128(20, 0)),
    "dictionary": NUMBERS.dictionary_encode(),
}


@pytest.mark.parametrize("type", POSITIONS)
def test_whole_numbers_of_any_type_are_positions(tmp_path: Path, type: str) -> None:
    files = ordered_files(written(tmp_path, {"seq": POSITIONS[type]}), "data")
    found = [position for batch in files.batches() for position in batch.positions.to_pylist()]
    assert (files.position, found) == ("seq", NUMBERS.to_pylist())
    # The same in Python.
    decoder = pgdecode.ChangeDecoder(mode="PERMISSIVE")
    decoder.decode([None] * len(NUMBERS), POSITIONS[type])
    assert decoder.state["position"] == NUMBERS[-1].as_py() + 1


@pytest.mark.parametrize("type", [pa.uint64(), pa.decimal128(20, 0)])
def test_a_position_that_exceeds_int64_is_an_error(tmp_path: Path, type: pa.DataType) -> None:
    large = pa.array([2**63, 2**63 + 1], pa.uint64()).cast(type)
    with pytest.raises(OrderFault, match=r"rows from 0: seq exceeds 2\*\*63 - 1"):
        list(ordered_files(written(tmp_path, {"seq": large}), "data").batches())
    with pytest.raises(ValueError, match="position exceeds int64"):
        pgdecode.ChangeDecoder().decode([None] * len(NUMBERS), large)


@pytest.mark.parametrize("captured", [(CAPTURED, CAPTURED), (CAPTURED, None), (None, CAPTURED)])
def test_sessions_are_those_of_captured_files_if_all_are(tmp_path: Path, captured: Any) -> None:
    folder = written(tmp_path, {"seq": NUMBERS}, {"seq": NUMBERS}, metadata=captured)
    assert ordered_files(folder, "data").session == ("capture_session" if all(captured) else None)


def test_without_a_position_captured_files_have_no_session(tmp_path: Path) -> None:
    found = ordered_files(written(tmp_path, {}, {}, metadata=(CAPTURED, CAPTURED)), "data")
    assert (found.position, found.session) == (None, None)


def test_an_empty_name_of_the_position_is_none(tmp_path: Path) -> None:
    assert ordered_files(written(tmp_path, {"seq": NUMBERS}), "data", "").position == "seq"


@pytest.mark.parametrize("position", [None, "seq"])
def test_each_file_is_opened_once_and_the_first_one_to_see_its_columns(
    tmp_path: Path, position: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    readable = payload_files.readable

    def counted(path: Path) -> Any:
        opened.append(path.name)
        return readable(path)

    monkeypatch.setattr(payload_files, "readable", counted)
    folder = written(tmp_path, *[{"seq": NUMBERS}] * 5)
    assert len(ordered_files(folder, "data", position).files) == 5
    assert sorted(opened) == ["0.parquet", "0.parquet", "1.parquet", "2.parquet", "3.parquet", "4.parquet"]


def test_a_column_that_a_file_lacks_is_an_error_with_its_name(tmp_path: Path) -> None:
    folder = written(tmp_path, {"lsn": NUMBERS}, {"seq": NUMBERS})
    with pytest.raises(PathError, match=r"1\.parquet: no column 'lsn'; columns: data, seq"):
        ordered_files(folder, "data", "lsn")


def test_a_damaged_column_that_is_not_used_does_not_matter(tmp_path: Path) -> None:
    def damaged(footer: Struct) -> None:
        footer[ROW_GROUPS].value[1][0][COLUMNS].value[1][1][META_DATA].value[N_VALUES] = Value(I64, 1)

    folder = written(tmp_path, {"seq": NUMBERS}, {"seq": NUMBERS}, {})
    with_footer(folder / "1.parquet", damaged)
    found = ordered_files(folder, "data")
    assert (found.position, found.n_rows) == (None, 6)


def frames(*lsns: int) -> list[bytes]:
    """Make an XLogData frame for each LSN."""
    return [b"w" + lsn.to_bytes(8, "big") + bytes(16) + b"B" for lsn in lsns]


def test_files_of_frames_may_be_ordered_by_the_lsn_of_frames(tmp_path: Path) -> None:
    for number, lsns in enumerate(((30, 40), (), (10, 20))):
        written_file(tmp_path / f"{number}.parquet", frames(*lsns))
    found = ordered_files(tmp_path, "data", "frame_lsn")
    assert [batch.positions.to_pylist() for batch in found.batches() if len(batch.positions)] == [[10, 20], [30, 40]]
    assert [file.range_of("frame_lsn") for file in found.files] == [None, (10, 20), (30, 40)]


def test_the_range_of_a_column_is_that_of_all_row_groups(tmp_path: Path) -> None:
    seq = pa.array([None, 2, 1, 4, 3, None])
    path = written_file(tmp_path / "0.parquet", [b"B", *frames(20, 10, 40, 30), b"C"], rows_per_group=2, seq=seq)
    (file,) = payload_files.payload_files(path, "data", ("frame_lsn", "seq"))
    assert (file.range_of("frame_lsn"), file.range_of("seq")) == ((10, 40), (1, 4))
    assert (file.first_value("frame_lsn"), file.first_value("seq")) == (None, None)


@pytest.mark.parametrize(
    ("position", "expected"),
    [("frame_lsn", "frame_lsn is null"), ("capture_session", "capture_session 1 does not come after 1")],
)
def test_a_position_that_files_do_not_have_must_ascend_too(tmp_path: Path, position: str, expected: str) -> None:
    found = ordered_files(written(tmp_path, {}, {}, metadata=(CAPTURED, CAPTURED)), "data", position)
    with pytest.raises(OrderFault, match=expected):
        list(found.batches())
