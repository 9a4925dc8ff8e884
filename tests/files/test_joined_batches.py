"""Batches of small files that are joined: the same rows and errors as file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_batches import MessageOptions, decoded_batches, joined_batches
from pgdecode.files.payload_batches import read_together
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.payload_files import payload_files
from support import captures
from support.generators.samples import SAMPLES

BEGIN = SAMPLES["begin"].payload
COMMIT = SAMPLES["commit"].payload
FIELDS = (*envelope_schema(None).names, "xid_basis")
# Tag, WAL start, WAL end and time; a keepalive has a flag in the place of the payload.
FRAME = b"w" + (10).to_bytes(8, "big") + bytes(16) + BEGIN
KEEPALIVE = b"k" + bytes(17)


def written(folder: Path, columns: Sequence[pa.Array], **options: Any) -> list[PayloadFile]:
    """Write a file of each column of payloads, with the number of each row in `n`."""
    for number, column in enumerate(columns):
        table = pa.table({"data": column, "n": pa.array(range(len(column)), pa.int32())})
        pq.write_table(table, folder / f"{number:05}.parquet")
    return payload_files(folder, "data", **options)


def of_parts(name: str, n_rows: int) -> list[pa.Array]:
    """Cut a capture."""
    column = captures.capture(name).column
    return [column.slice(start, n_rows) for start in range(0, len(column), n_rows)]


def read(batches: Callable[..., Iterator[Any]], files: list[PayloadFile], **options: Any) -> tuple[Any, ...]:
    """Rows, kept columns, counts and the error, and the number of batches."""
    rows: list[Any] = []
    kept: list[Any] = []
    n_bad = n_bytes = n_batches = 0
    fault = None
    try:
        for _, batch in batches(files, MessageOptions(FIELDS, **{"in_stream": "auto", **options})):
            rows += batch.envelope.to_pylist()
            kept += batch.source.column("n").to_pylist() if files[0].keep else []
            n_bad, n_bytes, n_batches = n_bad + batch.n_bad, n_bytes + batch.n_bytes, n_batches + 1
    except FileFault as error:
        fault = str(error)
    return (rows, kept, n_bad, n_bytes, fault), n_batches


@pytest.mark.full
@pytest.mark.parametrize("name", ["18.txns.v2", "18.types.v2", "18.streams.v4", "18.shop.v1"])
@pytest.mark.parametrize("in_stream", ["auto", False])
def test_joined_files_decode_as_alone(tmp_path: Path, name: str, in_stream: Any) -> None:
    files = written(tmp_path, of_parts(name, 7), keep=["n"])
    options = {"in_stream": in_stream, "mode": "PERMISSIVE"}
    joined, n_joined = read(joined_batches, files, **options)
    alone, n_alone = read(decoded_batches, files, **options)
    assert joined == alone
    assert n_alone == len(files)
    assert n_joined == 1 or joined[2]


def test_only_rows_of_the_same_file_are_evidence(tmp_path: Path) -> None:
    parts = of_parts("18.txns.v2", 7)
    files = written(tmp_path, parts)
    (rows, *_), n_batches = read(joined_batches, files)
    in_one_call = pgdecode.decode_messages(pa.chunked_array(parts), in_stream="auto", fields=["xid_basis"])
    assert n_batches == 1
    assert [row["xid_basis"] for row in rows] != in_one_call.column("xid_basis").to_pylist()


CASES: dict[str, tuple[list[Any], str]] = {
    "a bad payload": ([BEGIN, b"z", COMMIT], "auto"),
    "nulls": ([None, BEGIN, b""], "auto"),
    "a frame": ([FRAME, BEGIN], "auto"),
    "a keepalive": ([BEGIN, KEEPALIVE, None], "auto"),
    "a frame that is none": ([FRAME], "none"),
    "no frame": ([BEGIN], "xlogdata"),
    "text": (["\\x" + BEGIN.hex()], "auto"),
    "bad text": (["\\x" + BEGIN.hex(), "\\x4"], "auto"),
    "no rows": ([], "auto"),
}


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
@pytest.mark.parametrize(
    ("case", "keep"),
    [(case, ["n"]) for case in CASES] + [(case, ["n", "frame_lsn"]) for case in CASES if CASES[case][1] != "none"],
    ids=str,
)
def test_a_file_with_other_values_among_others(tmp_path: Path, case: str, mode: str, keep: list[str]) -> None:
    values, unwrap = CASES[case]
    column = pa.array(values) if values else pa.array([], pa.binary())
    others = [BEGIN, None, COMMIT] if unwrap != "xlogdata" else [FRAME, KEEPALIVE]
    columns = [pa.array(others, pa.binary())] * 3
    files = written(tmp_path, [*columns, column, *columns], keep=keep, unwrap=unwrap)
    options = {"in_stream": "auto", "mode": mode}
    assert read(joined_batches, files, **options)[0] == read(decoded_batches, files, **options)[0]


def test_batches_have_a_limited_number_of_rows_and_the_same_columns(tmp_path: Path) -> None:
    plain, large = pa.array([BEGIN] * 3, pa.binary()), pa.array([BEGIN] * 3, pa.large_binary())
    files = written(tmp_path, [plain] * 4 + [large] * 2 + [pa.array([BEGIN] * 20, pa.binary())] + [plain])
    found = [[len(batch.source) for batch in batches] for batches in read_together(files, 9)]
    assert found == [[3, 3, 3], [3], [3, 3], [9], [9], [2, 3]]


def test_a_limited_number_of_batches_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.files.payload_batches._TOGETHER_BATCHES", 3)
    files = written(tmp_path, [pa.array([BEGIN], pa.binary())] * 7)
    assert [len(batches) for batches in read_together(files, 100)] == [3, 3, 1]


@pytest.mark.parametrize(
    ("payload", "kept"), [(pa.large_binary(), pa.string()), (pa.binary(), pa.large_string())], ids=str
)
def test_a_file_that_is_read_as_dictionaries_among_others(
    tmp_path: Path, payload: pa.DataType, kept: pa.DataType
) -> None:
    # pyarrow reads a dictionary of large values as values of the usual type.
    for number, values in enumerate((["a"], ["b" * 200_000] + ["c"] * 3000, ["d"])):
        table = pa.table({"data": pa.array([BEGIN] * len(values), payload), "n": pa.array(values, kept)})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    files = payload_files(tmp_path, "data", ["n"])
    assert read(joined_batches, files, in_stream="auto")[0] == read(decoded_batches, files, in_stream="auto")[0]


def test_what_comes_before_a_damaged_file_is_read(tmp_path: Path) -> None:
    files = written(tmp_path, [pa.array([BEGIN], pa.binary())] * 3)
    files[2].path.write_bytes(b"PAR1")  # type: ignore[union-attr]
    found = []
    with pytest.raises(FileFault, match=r"00002\.parquet: "):
        found.extend(batch for _, batch in joined_batches(files, MessageOptions(in_stream="auto")))
    assert [len(batch.envelope) for batch in found] == [2]


def test_a_bad_payload_before_a_damaged_file_is_the_error(tmp_path: Path) -> None:
    files = written(tmp_path, [pa.array([BEGIN]), pa.array([b"z"]), pa.array([BEGIN])])
    files[2].path.write_bytes(b"PAR1")  # type: ignore[union-attr]
    with pytest.raises(FileFault, match=r"00001\.parquet: row 0: UNKNOWN_TAG"):
        list(joined_batches(files, MessageOptions(in_stream="auto")))
