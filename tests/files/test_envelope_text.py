"""Envelope rows as JSON objects and as flat columns."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.files import envelope_text
from support import captures
from support.generators.samples import MOMENT_HEX, SAMPLES
from support.oracles import reference

MOMENT_TEXT = "2023-06-25T13:13:13.088502Z"
BEGIN = SAMPLES["begin"].payload


def json_lines(batch: pa.RecordBatch, **options: Any) -> list[str]:
    """The lines as Python strings."""
    return envelope_text.json_lines(batch, **options).to_pylist()


def rendered(payload: bytes, in_stream: bool = False) -> dict[str, Any]:
    """One payload as the object of its line."""
    (line,) = json_lines(pgdecode.decode_messages([payload], in_stream=in_stream))
    value: dict[str, Any] = json.loads(line)
    return value


def begin_at(moment_hex: str) -> bytes:
    return bytes.fromhex("42 00000016b374d848" + moment_hex + "00000003")  # B, final LSN, commit timestamp, xid 3


def insert_of(*cells: str) -> bytes:
    return bytes.fromhex("49 00004001 4e" + f"{len(cells):04x}" + "".join(cells))  # I, oid 16385, N, columns


# Names from the envelope, and values from the documentation.
OBJECTS = {
    "begin": {"kind": "begin", "xid": 4294967294, "lsn": "16/B374D848", "timestamp": MOMENT_TEXT},
    "commit": {
        "kind": "commit",
        "flags": 0,
        "lsn": "16/B374D848",
        "end_lsn": "7FFFFFFF/FFFFFFFF",
        "timestamp": MOMENT_TEXT,
    },
    "origin": {"kind": "origin", "lsn": "16/B374D848", "name": "org_é"},
    "relation in a stream": {
        "kind": "relation",
        "xid": 772,
        "relation_id": 16385,
        "namespace": "s",
        "name": "t",
        "replica_identity": "f",
        "columns": [{"flags": 1, "name": "c", "type_id": 25, "type_modifier": -1}],
    },
    "relation of pg_catalog without columns": {
        "kind": "relation",
        "relation_id": 16385,
        "namespace": "",
        "name": "t",
        "replica_identity": "n",
        "columns": [],
    },
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_its_messages_own_fields_in_the_envelopes_order(name: str) -> None:
    found = rendered(SAMPLES[name].payload, SAMPLES[name].in_stream)
    assert found == OBJECTS[name]
    assert list(found) == list(OBJECTS[name])


@pytest.mark.parametrize("name", SAMPLES)
def test_an_object_names_every_field_that_is_not_null(name: str) -> None:
    sample = SAMPLES[name]
    row = reference.decode_payload(sample.payload, sample.in_stream)
    own = {column for column, value in row.items() if value is not None and not column.endswith("_formats")}
    assert set(rendered(sample.payload, sample.in_stream)) - {"unchanged", "old_unchanged"} == own


def test_text_values_are_strings_and_binary_ones_are_hexadecimal() -> None:
    payload = insert_of("74 00000002 c3a9", "62 00000004 00000001", "6e", "75", "74 00000000", "62 00000000")
    assert rendered(payload)["new"] == ["é", "\\x00000001", None, None, "", "\\x"]


def test_text_that_is_not_utf_8_is_hexadecimal_and_spares_its_neighbours() -> None:
    payload = insert_of("74 00000004 6e61ef76", "74 00000001 61")  # 'naïv' in LATIN1, 'a'
    assert rendered(payload)["new"] == ["\\x6e61ef76", "a"]


def test_columns_that_were_not_sent_are_named_by_their_ordinals() -> None:
    update = bytes.fromhex("55 00004001 4f 0002 6e 75 4e 0003 75 74 00000001 61 75")  # O: n u; N: u 'a' u
    assert rendered(update) == {
        "kind": "update",
        "relation_id": 16385,
        "old_type": "O",
        "old": [None, None],
        "old_unchanged": [1],
        "new": [None, "a", None],
        "unchanged": [0, 2],
    }


def test_a_tuple_without_columns_is_an_empty_list() -> None:
    assert rendered(insert_of())["new"] == []


def test_content_of_a_logical_message_is_hexadecimal_even_if_it_is_text() -> None:
    # M, flags 0, LSN 1, prefix 'p', length 2, 'hi'
    payload = bytes.fromhex("4d 00 0000000000000001 7000 00000002 6869")
    assert rendered(payload) == {"kind": "message", "flags": 0, "lsn": "0/1", "prefix": "p", "content": "\\x6869"}


@pytest.mark.parametrize(
    ("moment_hex", "expected"),
    [
        pytest.param("0000000000000000", "2000-01-01T00:00:00.000000Z", id="the epoch"),
        pytest.param(MOMENT_HEX, MOMENT_TEXT, id="microseconds are kept"),
        pytest.param("ffffffffffffffff", "1999-12-31T23:59:59.999999Z", id="before the epoch"),
        # 9999-12-31 23:59:59.999999 is 8000 years less 1 us after 2000-01-01: 252455615999999999 us
        pytest.param("0380e70b913b7fff", "9999-12-31T23:59:59.999999Z", id="the last moment of year 9999"),
        pytest.param("0380e70b913b8000", "10000-01-01T00:00:00.000000Z", id="year 10000"),
        # Julian day 0, 2451545 days before 2000-01-01 (POSTGRES_EPOCH_JDATE, datatype/timestamp.h).
        pytest.param("fd0f7cc1411fa000", "4714-11-24T00:00:00.000000Z BC", id="the first day that a server has"),
    ],
)
def test_timestamps_are_those_of_a_server_in_all_years(moment_hex: str, expected: str) -> None:
    assert rendered(begin_at(moment_hex))["timestamp"] == expected


def test_a_null_payload_is_an_empty_object_and_a_bad_one_has_its_error() -> None:
    batch = pgdecode.decode_messages([None, b"z", BEGIN], mode="PERMISSIVE")
    null, bad, begin = map(json.loads, json_lines(batch))
    assert null == {}
    assert bad == {"error": "UNKNOWN_TAG at offset 0: unknown message tag 0x7a 'z'"}
    assert begin["kind"] == "begin"


def test_a_line_never_holds_a_line_end() -> None:
    (line,) = json_lines(pgdecode.decode_messages([insert_of("74 00000004 610a0d62")]))
    assert line.splitlines() == [line]
    assert json.loads(line)["new"] == ["a\n\rb"]


def test_requested_fields_are_in_every_object_in_the_requested_order() -> None:
    fields = ["new_formats", "new", "xid"]
    batch = pgdecode.decode_messages([BEGIN, insert_of("75")], fields=envelope_text.fields_to_decode(fields))
    assert json_lines(batch, fields=fields) == [
        '{"new_formats": null, "new": null, "xid": 4294967294}',
        '{"new_formats": "u", "new": [null], "xid": null}',
    ]


def test_formats_are_decoded_with_the_tuples_they_belong_to() -> None:
    assert envelope_text.fields_to_decode(["new"]) == ("new", "new_formats")
    assert envelope_text.fields_to_decode(["old_formats", "old"]) == ("old_formats", "old")
    assert envelope_text.fields_to_decode(["kind"]) == ("kind",)


def test_without_formats_every_utf_8_value_is_text() -> None:
    batch = pgdecode.decode_messages([insert_of("62 00000001 61", "62 00000001 ff")], fields=["kind", "new"])
    assert json.loads(json_lines(batch)[0])["new"] == ["a", "\\xff"]


def test_rows_of_a_capture_are_those_of_the_reference(capture: captures.Capture) -> None:
    lines = json_lines(pgdecode.decode_messages(capture.column))
    assert len(lines) == len(capture.rows)
    for line, row in zip(lines, capture.rows, strict=True):
        found = json.loads(line)
        assert found["kind"] == row["kind"]
        for side in ("old", "new"):
            assert found.get(side) == expected_cells(row[side], row[f"{side}_formats"])
        if row["lsn"] is not None:
            assert pgdecode.lsn_from_text(found["lsn"]) == row["lsn"]


def expected_cells(cells: list[bytes | None] | None, formats: str | None) -> list[str | None] | None:
    """A tuple in the form of `json_lines`. All text in the captures is UTF-8."""
    if cells is None or formats is None:
        return None
    return [
        None if cell is None else cell.decode() if letter == "t" else "\\x" + cell.hex()
        for cell, letter in zip(cells, formats, strict=True)
    ]


KEPT = {
    "integers stay numbers": (pa.array([7, None], pa.int32()), [7, None]),
    "booleans": (pa.array([True, None]), [True, None]),
    "text": (pa.array(['"q"', None]), ['"q"', None]),
    "floats": (pa.array([0.5, float("nan")]), [0.5, "NaN"]),
    "floats of four bytes with their own digits": (pa.array([6.822, None], pa.float32()), [6.822, None]),
    "infinity": (pa.array([float("inf"), float("-inf")]), ["Infinity", "-Infinity"]),
    "decimals as text, exactly": (pa.array([Decimal("1.10"), None]), ["1.10", None]),
    "small decimals without an exponent": (pa.array([Decimal("-1E-7"), None]), ["-0.0000001", None]),
    "binary as hexadecimal": (pa.array([b"\x00a", None]), ["\\x0061", None]),
    "dates": (pa.array([date(2024, 2, 29), None]), ["2024-02-29", None]),
    "dates that datetime does not have": (pa.array([2**31 - 1, None], pa.int32()).cast(pa.date32()), None),
    "times": (pa.array([time(1, 2, 3), None]), ["01:02:03.000000", None]),
    "durations": (pa.array([timedelta(seconds=1), None]), ["1000000", None]),
    "timestamps with a zone in UTC": (
        pa.array([0, None], pa.timestamp("s", "UTC")),
        ["1970-01-01T00:00:00.000000Z", None],
    ),
    "timestamps without a zone": (pa.array([datetime(2024, 1, 1), None]), ["2024-01-01T00:00:00.000000", None]),
    "nanoseconds": (pa.array([1, None], pa.timestamp("ns", "UTC")), ["1970-01-01T00:00:00.000000001Z", None]),
    "lists": (pa.array([[1, None], None]), [[1, None], None]),
    "structs": (pa.array([{"a": b"\x01", "b": float("nan")}, None]), [{"a": "\\x01", "b": "NaN"}, None]),
    "maps": (pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int64())), [{"a": 1, "b": None}, None]),
    "timestamps in structs": (
        pa.array(
            [{"a": 2**62, "b": 0}, None], pa.struct([("a", pa.timestamp("us")), ("b", pa.timestamp("us", "UTC"))])
        ),
        [{"a": "148108-07-06T14:00:27.387904", "b": "1970-01-01T00:00:00.000000Z"}, None],
    ),
    "lists of lists": (pa.array([[["a"], None, []], None]), [[["a"], None, []], None]),
    "lists of two": (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
    "dictionaries": (pa.array(["a", None]).dictionary_encode(), ["a", None]),
    "large text": (pa.array(["a", None], pa.large_string()), ["a", None]),
    "views": (pa.array([b"\xff", None], pa.binary()).cast(pa.binary_view()), ["\\xff", None]),
}


def with_kept(column: pa.Array) -> pa.RecordBatch:
    envelope = pgdecode.decode_messages([BEGIN, BEGIN])
    return pa.RecordBatch.from_arrays([column, *envelope.columns], names=["kept", *envelope.schema.names])


@pytest.mark.parametrize(("column", "expected"), KEPT.values(), ids=KEPT)
def test_kept_columns_of_any_type_come_first_also_if_null(column: pa.Array, expected: list[Any]) -> None:
    objects = [json.loads(line) for line in json_lines(with_kept(column), keep=["kept"])]
    assert [next(iter(found)) for found in objects] == ["kept", "kept"]
    if expected is not None:
        assert [found["kept"] for found in objects] == expected


@pytest.mark.parametrize(("column", "expected"), KEPT.values(), ids=KEPT)
def test_flat_columns_are_numbers_booleans_or_text(column: pa.Array, expected: list[Any]) -> None:
    flat = envelope_text.flat_columns(with_kept(column), keep=["kept"])
    assert flat.schema.names == ["kept", *pgdecode.decode_messages([]).schema.names]
    for field in flat.schema:
        type = field.type
        assert (
            pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type) or field.name == "kept"
        )
    if expected is not None and pa.types.is_nested(column.type):
        found = flat.column("kept").to_pylist()
        assert [value if value is None else json.loads(value) for value in found] == expected
    elif expected is not None and not pa.types.is_floating(column.type):
        assert flat.column("kept").to_pylist() == expected


def test_flat_columns_write_tuples_and_columns_as_json_and_lsns_as_text() -> None:
    payloads = [SAMPLES["relation in a stream"].payload, insert_of("74 00000001 22", "62 00000001 ff")]
    flat = envelope_text.flat_columns(pgdecode.decode_messages(payloads, in_stream=[True, False])).to_pylist()
    assert flat[0]["columns"] == '[{"flags": 1, "name": "c", "type_id": 25, "type_modifier": -1}]'
    assert flat[1]["new"] == r'["\"", "\\xff"]'
    assert flat[1]["lsn"] is None
    assert envelope_text.flat_columns(pgdecode.decode_messages([BEGIN])).to_pylist()[0]["lsn"] == "16/B374D848"


def test_no_rows_render_to_no_lines_and_to_the_same_columns() -> None:
    empty = pgdecode.decode_messages([])
    assert json_lines(empty) == []
    assert (
        envelope_text.flat_columns(empty).schema == envelope_text.flat_columns(pgdecode.decode_messages([BEGIN])).schema
    )


def test_sliced_batches_render_their_own_rows() -> None:
    batch = pgdecode.decode_messages([insert_of("74 00000001 61"), insert_of("62 00000001 62"), insert_of("6e")])
    assert json_lines(batch.slice(1)) == json_lines(batch)[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain é ☃", "plain é ☃", id="what can be seen stays"),
        pytest.param("a\nb\tc", "a\\nb\\tc", id="line ends and tabs"),
        pytest.param("\x1b[31m", "\\x1b[31m", id="an escape sequence"),
        pytest.param("\udcff", "\\udcff", id="a byte of a file name that is not UTF-8"),
    ],
)
def test_printable_text_stays_on_its_line(text: str, expected: str) -> None:
    assert envelope_text.printable(text) == expected
