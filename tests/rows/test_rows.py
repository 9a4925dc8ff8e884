"""decode_rows: rows of one relation as typed columns."""

from __future__ import annotations

import datetime as dt
import random
from array import array
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Column, Delete, Insert, Limits, Relation, Type, Update
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.rows.row_decoder import Rows
from pgdecode.rows.row_schema import decodings
from support import captures
from support.generators.encoder import encode

UTC = dt.UTC
PEOPLE = Relation(
    relation_id=16385,
    namespace="public",
    name="people",
    replica_identity="f",
    columns=(Column(1, "id", 23, -1), Column(0, "born", 1082, -1), Column(0, "seen", 1184, -1)),
)


def insert(*new: bytes | None, formats: str | None = None, relation_id: int = 16385) -> bytes:
    kinds = formats or "".join("n" if value is None else "t" for value in new)
    return encode(Insert(relation_id=relation_id, new=new, new_formats=kinds))


def update(old: tuple[bytes | None, ...], old_type: str, new: tuple[bytes | None, ...], formats: str) -> bytes:
    kinds = "".join("n" if value is None else "t" for value in old)
    return encode(
        Update(relation_id=16385, old_type=old_type, old=old, old_formats=kinds, new=new, new_formats=formats)
    )


def rows(*payloads: bytes | None, **options: Any) -> list[dict[str, Any]]:
    batch = pgdecode.decode_rows(list(payloads), options.pop("relation", PEOPLE), **options)
    batch.validate(full=True)
    return batch.to_pylist()


def test_an_insert_gives_its_values_by_type() -> None:
    (row,) = rows(insert(b"7", b"2020-02-29", b"2020-01-01 00:00:00.5+02"))
    assert row == {
        "_op": "insert",
        "_xid": None,
        "_old_type": None,
        "_old": None,
        "_unchanged": [],
        "_error": None,
        "id": 7,
        "born": dt.date(2020, 2, 29),
        "seen": dt.datetime(2019, 12, 31, 22, 0, 0, 500_000, UTC),
    }


def test_text_and_binary_cells_of_one_tuple_mix() -> None:
    days = (7305).to_bytes(4, "big")  # 2020-01-01 is 7305 days after 2000-01-01
    (row,) = rows(insert(b"7", days, None, formats="tbn"))
    assert (row["id"], row["born"], row["seen"]) == (7, dt.date(2020, 1, 1), None)


def test_a_null_payload_gives_a_null_row() -> None:
    (row,) = rows(None)
    assert set(row.values()) == {None}


def test_a_delete_gives_the_old_values_that_were_sent() -> None:
    (row,) = rows(encode(Delete(relation_id=16385, old_type="K", old=(b"7", None, None), old_formats="tnn")))
    assert (row["_op"], row["_old_type"], row["id"], row["born"]) == ("delete", "K", 7, None)
    assert row["_old"] == {"id": 7, "born": None, "seen": None}


def test_an_unchanged_value_comes_from_the_old_row_where_that_has_it() -> None:
    (row,) = rows(update((b"7", b"2020-02-29", None), "O", (b"8", None, None), "tuu"))
    assert (row["id"], row["born"], row["seen"]) == (8, dt.date(2020, 2, 29), None)
    assert row["_unchanged"] == ["seen"]
    assert row["_old"] == {"id": 7, "born": dt.date(2020, 2, 29), "seen": None}


def test_a_streamed_row_has_the_xid_it_was_sent_with() -> None:
    message = Insert(relation_id=16385, new=(b"7", None, None), new_formats="tnn", xid=0x80000001)
    assert rows(encode(message))[0]["_xid"] == 0x80000001


def of_integers(relation_id: int, *names: str) -> Relation:
    columns = tuple(Column(flags=1, name=name, type_id=23, type_modifier=-1) for name in names)
    return Relation(relation_id=relation_id, namespace="public", name="t", replica_identity="f", columns=columns)


# An update of a null in a table of one column, as servers send it: plain of the relation 20505, or streamed of another.
BOTH_WAYS = bytes.fromhex("55 00005019 4f 0001 6e 4e 0001 74 00000001 31")


@pytest.mark.parametrize(("relation_id", "xid", "old"), [(20505, None, {"x": None}), (0x4F00016E, 20505, None)])
def test_an_update_that_reads_well_both_ways_is_one_of_the_relation(
    relation_id: int, xid: int | None, old: dict[str, Any] | None
) -> None:
    (row,) = pgdecode.decode_rows([BOTH_WAYS], of_integers(relation_id, "x")).to_pylist()
    assert (row["_xid"], row["_old"], row["x"]) == (xid, old, 1)


def test_such_an_update_of_another_width_does_not_contradict_the_stream_state() -> None:
    with pytest.raises(pgdecode.ArityMismatch, match="old tuple has 1 columns, the relation has 2"):
        pgdecode.decode_rows([BOTH_WAYS], of_integers(20505, "x", "y"))


def test_a_bad_value_costs_that_value_alone_in_permissive_mode() -> None:
    good, bad = insert(b"1", b"2020-01-01", None), insert(b"2", b"2020-02-30", None)
    found = rows(good, bad, good, mode="PERMISSIVE")
    assert [row["id"] for row in found] == [1, 2, 1]
    assert [row["born"] for row in found] == [dt.date(2020, 1, 1), None, dt.date(2020, 1, 1)]
    assert found[1]["_error"] == "BAD_VALUE at offset 19: column 'born' has 10 bytes that are no value of its type"
    assert found[0]["_error"] is found[2]["_error"] is None


def test_the_first_bad_row_is_named_with_its_column() -> None:
    # A later row is bad in an earlier column.
    payloads = [insert(b"1", None, None), insert(b"2", b"2020-02-30", None), insert(b"x", None, None)]
    with pytest.raises(pgdecode.BadValue, match="row 1, offset 19: column 'born'") as caught:
        rows(*payloads)
    assert (caught.value.row, caught.value.column, caught.value.relation) == (1, "born", 16385)


@pytest.mark.parametrize(
    ("payload", "error", "text"),
    [
        pytest.param(insert(b"1", None), pgdecode.ArityMismatch, "has 2 columns, the relation has 3", id="arity"),
        pytest.param(
            insert(b"1", None, None, relation_id=5), pgdecode.OtherRelation, "is 5, expected 16385", id="relation"
        ),
        pytest.param(b"E", pgdecode.NotARow, "stream_stop is not an insert, update or delete", id="no row"),
        pytest.param(insert(b"1", None, None)[:-1], pgdecode.TruncatedMessage, "needs 1 bytes, 0 left", id="cut"),
        pytest.param(
            insert(b"1", b"abc", None, formats="tbn"), pgdecode.WrongSize, "column 'born' has 3 bytes", id="size"
        ),
        pytest.param(insert(b"1", b"31.05.1971", None), pgdecode.UndeclaredSetting, "DateStyle", id="German date"),
        pytest.param(
            insert(b"1", b"infinity", None), pgdecode.Unrepresentable, "'born' does not fit", id="infinite date"
        ),
    ],
)
def test_what_is_no_row_of_the_relation_is_a_fault(payload: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rows(payload)
    (row,) = rows(payload, mode="PERMISSIVE")
    assert text in row["_error"]


def test_what_arrow_cannot_hold_may_be_null_without_an_error() -> None:
    (row,) = rows(insert(b"1", b"infinity", None), unrepresentable="null")
    assert (row["id"], row["born"], row["_error"]) == (1, None, None)


MOOD = Relation(
    relation_id=16385, namespace="", name="m", replica_identity="d", columns=(Column(0, "mood", 20000, -1),)
)


def test_a_type_nobody_describes_is_text_and_in_binary_a_fault() -> None:
    assert rows(insert(b"happy"), relation=MOOD)[0]["mood"] == "happy"
    with pytest.raises(pgdecode.UnknownType, match="types="):
        rows(insert(b"happy", formats="b"), relation=MOOD)


def test_the_caller_or_the_stream_says_what_a_type_is() -> None:
    by_oid = rows(insert(b"2020-01-01"), relation=MOOD, types={20000: "date"})
    message = Type(type_id=20000, namespace="public", name="mood")
    by_name = rows(insert(b"2020-01-01"), relation=MOOD, types={"public.mood": "date"}, type_messages=[message])
    domain = Type(type_id=20000, namespace="", name="date")
    by_stream = rows(insert(b"2020-01-01"), relation=MOOD, type_messages=[domain])
    assert [found[0]["mood"] for found in (by_oid, by_name, by_stream)] == [dt.date(2020, 1, 1)] * 3


def test_relations_alike_but_for_one_column_are_not_taken_for_each_other() -> None:
    def relation(*columns: Column) -> Relation:
        return Relation(relation_id=16385, namespace="public", name="t", replica_identity="d", columns=columns)

    payload = insert(b"1")
    integer, text, other = (relation(Column(0, *column, -1)) for column in (("a", 23), ("a", 25), ("b", 23)))
    for _ in range(2):
        assert rows(payload, relation=integer)[0]["a"] == 1
        assert rows(payload, relation=text)[0]["a"] == "1"
        assert rows(payload, relation=other)[0]["b"] == 1
        assert rows(payload, relation=integer, columns={"a": "text"})[0]["a"] == "1"
        message = Type(type_id=20000, namespace="", name="int4")
        assert rows(payload, relation=MOOD, type_messages=[message])[0]["mood"] == 1
        assert rows(payload, relation=MOOD)[0]["mood"] == "1"


def test_a_relation_of_the_caller_s_own_may_change_from_call_to_call() -> None:
    class Own:
        relation_id, name, columns = 16385, "t", (Column(0, "a", 23, -1),)

    own = Own()
    assert rows(insert(b"7"), relation=own)[0]["a"] == 7
    own.columns = (Column(0, "a", 25, -1),)
    assert rows(insert(b"7"), relation=own)[0]["a"] == "7"


def test_columns_that_cannot_be_hashed_are_as_good_as_any() -> None:
    class Plain:
        flags, name, type_id, type_modifier = 0, "a", 23, -1
        __hash__ = None  # type: ignore[assignment]

    relation = Relation(16385, "public", "t", "d", (Plain(),))  # type: ignore[arg-type]
    assert rows(insert(b"7"), relation=relation)[0]["a"] == 7


def test_the_source_type_is_in_the_metadata() -> None:
    relation = Relation(16385, "public", "t", "d", (Column(0, "price", 1700, 655366),))  # numeric(10,2)
    schema = pgdecode.decode_rows([], relation).schema
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("price").metadata == {b"pg:type": b"numeric", b"pg:typmod": b"655366"}


@pytest.mark.parametrize("names", [("a", "a"), ("_op",)])
def test_columns_that_cannot_stand_side_by_side_are_refused(names: tuple[str, ...]) -> None:
    relation = Relation(16385, "public", "t", "d", tuple(Column(0, name, 23, -1) for name in names))
    with pytest.raises(ValueError, match="cannot stand side by side"):
        pgdecode.decode_rows([], relation)


@pytest.mark.parametrize("option", [{"mode": "DROPMALFORMED"}, {"unrepresentable": "zero"}, {"types": {20000: "nix"}}])
def test_options_that_do_not_exist_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mode|unrepresentable|types"):
        rows(relation=MOOD, **option)


def selected(*payloads: bytes, mode: str = "FAILFAST", **options: Any) -> tuple[list[Any], list[Any], dict[int, str]]:
    """xids, ids and errors of rows of the people that `options` of `Rows` select."""
    # Two segments, so that a selection crosses from one to the other.
    parts = [pa.array(payloads[:2], pa.binary()), list(payloads[2:])]
    names = [column.name for column in PEOPLE.columns]
    permissive = mode == "PERMISSIVE"
    rows = Rows(Source(parts), 16385, names, decodings(PEOPLE), Limits(), True, permissive, False, **options)
    rows.run()
    meta, columns = rows.results()
    return meta[1].to_pylist(), columns[0].to_pylist(), rows.row_errors


THREE = [insert(b"0", None, None), insert(b"1", None, None), insert(b"2", None, None)]


@pytest.mark.parametrize(
    "selection",
    [array("q", [2, 0]), pa.array([2, 0], pa.int64()).buffers()[1][:16], memoryview(array("q", [2, 0]))],
    ids=["array", "arrow", "view"],
)
def test_a_selection_gives_a_row_for_each_number_in_its_order(selection: Any) -> None:
    assert selected(*THREE, selection=selection)[1] == [2, 0]


def test_what_is_not_selected_is_not_looked_at() -> None:
    assert selected(THREE[0], b"junk", THREE[2], selection=array("q", [2]))[1] == [2]
    assert selected(*THREE, selection=array("q"))[1] == []


def test_errors_of_a_selection_name_the_row_of_the_output() -> None:
    bad = insert(b"x", None, None)
    assert list(selected(*THREE, bad, selection=array("q", [1, 3, 0]), mode="PERMISSIVE")[2]) == [1]
    with pytest.raises(pgdecode.BadValue, match="row 1, offset 13: column 'id'"):
        selected(*THREE, bad, selection=array("q", [1, 3, 0]))


def test_the_caller_may_say_which_of_the_selected_rows_are_streamed() -> None:
    streamed = insert(b"5", None, None)[:1] + (77).to_bytes(4, "big") + insert(b"5", None, None)[1:]
    assert selected(THREE[0], streamed, selection=array("q", [1, 0]), streamed=bytes([1, 0]))[:2] == (
        [77, None],
        [5, 0],
    )
    with pytest.raises(pgdecode.OtherRelation, match="is 77, expected 16385"):
        selected(THREE[0], streamed, selection=array("q", [1, 0]), streamed=bytes([0, 0]))


@pytest.mark.parametrize("selection", [[3], [-1], [0, 1 << 62]])
def test_a_selection_of_rows_that_are_not_there_is_refused(selection: list[int]) -> None:
    with pytest.raises(IndexError, match="of a source of 3 rows"):
        selected(*THREE, selection=array("q", selection))


@pytest.mark.parametrize(
    "options",
    [
        {"selection": array("i", [1, 2])},
        {"selection": b"1234567"},
        {"streamed": b"\0\0"},
        {"streamed": array("h", [0] * 3)},
    ],
    ids=["int32", "7 bytes", "too short", "int16"],
)
def test_buffers_of_another_shape_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"items of|expected 3"):
        selected(*THREE, **options)


Tables = dict[tuple[int, int], tuple[Relation, list[bytes]]]


def tables_of(name: str) -> tuple[Tables, list[Type]]:
    """A capture's rows by relation and its version, and its Type messages."""
    capture = captures.capture(name)
    current: dict[int, int] = {}
    versions: list[Relation] = []
    tables: Tables = {}
    types: list[Type] = []
    for payload, streamed in zip(capture.column.to_pylist(), capture.states, strict=True):
        message = pgdecode.decode(payload, in_stream=streamed)
        if isinstance(message, Type):
            types.append(message)
        elif isinstance(message, Relation):
            current[message.relation_id] = len(versions)
            versions.append(message)
        elif isinstance(message, Insert | Update | Delete):
            version = current[message.relation_id]
            tables.setdefault((message.relation_id, version), (versions[version], []))[1].append(payload)
    return tables, types


PAIRS = [(name, name + "bin") for name in captures.NAMES if name + "bin" in captures.NAMES]


@pytest.mark.parametrize(("text", "binary"), PAIRS)
def test_text_and_binary_readings_of_the_same_wal_give_the_same_tables(text: str, binary: str) -> None:
    by_format = [tables_of(text), tables_of(binary)]
    assert list(by_format[0][0]) == list(by_format[1][0])
    n_compared = 0
    for key in by_format[0][0]:
        one, other = (typed(*tables[key], types) for tables, types in by_format)
        errors = zip(one["_error"].to_pylist(), other["_error"].to_pylist(), strict=True)
        # What only one of the forms can say (an enum's or composite's bytes, money without its locale) is reported.
        reported = [first is not None or second is not None for first, second in errors]
        assert differences(one, other, reported) == {}, key
        n_compared += reported.count(False)
    assert n_compared


def typed(relation: Relation, payloads: list[bytes], types: list[Type]) -> pa.RecordBatch:
    batch = pgdecode.decode_rows(payloads, relation, type_messages=types, mode="PERMISSIVE", unrepresentable="null")
    batch.validate(full=True)
    return batch


def same_rows(column: pa.Array) -> list[str]:
    """Rows of a column as text that tells equal ones, whatever Python's own types can hold."""
    return [str(column.slice(i, 1)) for i in range(len(column))]


def differences(one: pa.RecordBatch, other: pa.RecordBatch, reported: list[bool]) -> dict[str, list[int]]:
    """By column: the rows without a reported error in which two readings differ."""
    found = {}
    for name in one.schema.names:
        if name != "_error":
            pairs = zip(same_rows(one[name]), same_rows(other[name]), strict=True)
            found[name] = [i for i, (left, right) in enumerate(pairs) if left != right and not reported[i]]
    return {name: rows for name, rows in found.items() if rows}


def mixture(rng: random.Random, n: int) -> list[bytes | None]:
    """Rows of every kind and shape in a random order, one bad value in twenty."""

    def cells(kinds: str) -> dict[str, Any]:
        formats = "".join(rng.choice(kinds) for _ in PEOPLE.columns)
        values: dict[tuple[str, int], bytes] = {
            ("t", 0): str(rng.randint(-(2**31), 2**31 - 1)).encode(),
            ("t", 1): b"2020-02-29" if rng.random() < 0.95 else b"2021-02-29",
            ("t", 2): b"2020-01-01 00:00:00.5+02" if rng.random() < 0.9 else b"2020-01-01 00:00:00+05:30",
            ("b", 0): rng.randbytes(4),
            ("b", 1): bytes(2) + rng.randbytes(2),
            ("b", 2): bytes(3) + rng.randbytes(5),
        }
        return {"formats": formats, "cells": tuple(values.get((kind, at)) for at, kind in enumerate(formats))}

    def row() -> bytes | None:
        xid = {"xid": rng.randint(3, 2**32 - 1)} if rng.random() < 0.3 else {}
        new, old = cells(rng.choice(["t", "b", "tbn", "tun", "n"])), cells(rng.choice(["t", "tbn", "n"]))
        news = {"new": new["cells"], "new_formats": new["formats"]}
        olds: dict[str, Any] = {"old": old["cells"], "old_formats": old["formats"], "old_type": rng.choice("KO")}
        kind = rng.choice(["null", "insert", "insert", "insert", "delete", "update", "update with old"])
        if kind == "insert":
            news = {"new": new["cells"], "new_formats": new["formats"].replace("u", "n")}
            return encode(Insert(relation_id=16385, **news, **xid))
        if kind == "delete":
            return encode(Delete(relation_id=16385, **olds, **xid))
        if kind == "null":
            return None
        if kind == "update":
            olds = {"old": None, "old_formats": None, "old_type": None}
        return encode(Update(relation_id=16385, **news, **olds, **xid))

    return [row() for _ in range(n)]


def test_many_rows_at_once_give_what_they_give_one_by_one(rng: random.Random) -> None:
    payloads = [insert(b"1", b"2020-01-01", None)] * 300 + mixture(rng, 2000) + [insert(b"1", None, None)] * 300
    together = pgdecode.decode_rows(payloads, PEOPLE, mode="PERMISSIVE")
    together.validate(full=True)
    alone = [pgdecode.decode_rows([payload], PEOPLE, mode="PERMISSIVE") for payload in payloads]
    assert together.equals(pa.Table.from_batches(alone).combine_chunks().to_batches()[0])
    assert 0 < together["_error"].null_count < len(payloads)
    assert 0 < together["_xid"].null_count < len(payloads)
    assert 0 < together["_old"].null_count < len(payloads)
