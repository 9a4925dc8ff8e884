"""The changes of one table as typed columns: each version is decoded by its types and converted to common types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.changes import table_rows
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.relations.column_types import common_type
from pgdecode.relations.relation_version import RelationVersion
from support import captures
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles import expected_changes

T = 16385
NAME = f"public.t{T}"
BOOL, INT8, INT2, INT4, TEXT, FLOAT4, FLOAT8, VARCHAR, DATE, NUMERIC = (
    *(16, 20, 21, 23, 25, 700, 701),
    *(1043, 1082, 1700),
)
TYPES = {"public.order_state": "enum", "public.colour": "enum"}
META = ["_op", "_position", "_commit_position", "_xid", "_commit_lsn", "_commit_timestamp", "_old_type", "_old"]
META += ["_unchanged", "_error"]


def rows(payloads: Any, name: str | int = NAME, **options: Any) -> list[dict[str, Any]]:
    batch = ChangeDecoder(**options).table(payloads, name)
    batch.validate(full=True)
    return batch.to_pylist()


def altered(*types: int, values: list[str]) -> list[bytes]:
    """A table whose column v has had several types, with one row of each."""
    slot = Slot()
    for number, (type_id, value) in enumerate(zip(types, values, strict=True)):
        slot.begin(700 + number)
        slot.relation(T, ["id", "v"], keys=["id"], types=[INT4, type_id])
        slot.insert(T, str(number), value)
        slot.commit()
    return slot.payloads


# -- types over versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "values", "arrow", "expected"),
    [
        pytest.param([INT2, INT4], ["1", "70000"], pa.int32(), [1, 70000], id="int2 to int4"),
        pytest.param([INT2, INT4, INT8], ["-1", "70000", str(2**40)], pa.int64(), [-1, 70000, 2**40], id="to int8"),
        pytest.param([INT8, INT2], [str(2**40), "7"], pa.int64(), [2**40, 7], id="int8 back to int2"),
        pytest.param([FLOAT4, FLOAT8], ["0.5", "0.1"], pa.float64(), [0.5, 0.1], id="float4 to float8"),
        pytest.param([TEXT, VARCHAR], ["a", "b"], pa.string(), ["a", "b"], id="text and varchar"),
        pytest.param([INT4, TEXT], ["7", "seven"], pa.string(), ["7", "seven"], id="int4 to text"),
        pytest.param([INT4, FLOAT8], ["7", "0.5"], pa.string(), ["7", "0.5"], id="int4 to float8"),
        pytest.param([BOOL, INT4], ["t", "1"], pa.string(), ["t", "1"], id="bool to int4"),
        pytest.param([DATE, TEXT], ["2020-02-29", "infinity"], pa.string(), ["2020-02-29", "infinity"], id="date"),
        pytest.param([INT4, INT4], ["1", None], pa.int32(), [1, None], id="one type"),
    ],
)
def test_a_column_of_several_types_has_the_widest_type_or_is_text(
    types: list[int], values: list[str], arrow: pa.DataType, expected: list[Any]
) -> None:
    batch = ChangeDecoder().table(altered(*types, values=values), NAME)
    assert batch.schema.field("v").type == arrow
    assert batch["v"].to_pylist() == expected
    assert batch["id"].to_pylist() == list(range(len(types)))
    described = {BOOL: "bool", INT2: "int2", INT4: "int4", INT8: "int8", FLOAT4: "float4", FLOAT8: "float8"}
    described |= {TEXT: "text", VARCHAR: "varchar", DATE: "date"}
    metadata = batch.schema.field("v").metadata
    if len(set(types)) > 1:
        assert metadata[b"pg:types"].decode() == ", ".join(described[item] for item in types)
    else:
        assert b"pg:types" not in metadata
    assert metadata[b"pg:type"].decode() == described[types[-1]]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        pytest.param([pa.decimal128(10, 2), pa.decimal128(12, 2)], pa.decimal128(12, 2), id="more digits"),
        pytest.param([pa.decimal128(10, 2), pa.decimal128(10, 4)], pa.decimal128(12, 4), id="more of them behind"),
        pytest.param([pa.decimal128(38, 0), pa.decimal128(38, 38)], None, id="past 38"),
        pytest.param([pa.decimal128(5, 2), pa.string()], None, id="no modifier"),
        pytest.param([pa.int64(), pa.float64()], None, id="integer and float"),
        pytest.param([pa.list_(pa.int32()), pa.list_(pa.int64())], None, id="lists"),
        pytest.param([pa.float32(), pa.float32()], pa.float32(), id="one"),
    ],
)
def test_types_are_widened_only_without_loss(types: list[pa.DataType], expected: pa.DataType | None) -> None:
    assert common_type(types) == expected
    assert common_type(types[::-1]) == expected


def test_a_numeric_that_has_grown_can_hold_both() -> None:
    slot = Slot()
    slot.begin(700)
    for precision, scale, value in ((5, 2, "123.45"), (8, 4, "1234.5678")):
        column = pgdecode.Column(0, "n", NUMERIC, (precision << 16 | scale) + 4)
        slot.send(pgdecode.Relation(T, "public", f"t{T}", "d", (column,)))
        slot.insert(T, value)
    slot.commit()
    batch = ChangeDecoder().table(slot.payloads, NAME)
    assert batch.schema.field("n").type == pa.decimal128(8, 4)
    assert batch["n"].to_pylist() == [Decimal("123.4500"), Decimal("1234.5678")]


def test_columns_are_matched_by_name_and_ordered_by_first_appearance() -> None:
    slot = Slot()
    slot.begin(700)
    for columns in (["a", "b"], ["b", "c"], ["c", "a"]):
        slot.relation(T, columns)
        slot.insert(T, *(f"{column}!" for column in columns))
    slot.commit()
    batch = ChangeDecoder().table(slot.payloads, NAME)
    assert batch.schema.names == [*META, "a", "b", "c"]
    assert [tuple(row[name] for name in "abc") for row in batch.to_pylist()] == [
        ("a!", "b!", None),
        (None, "b!", "c!"),
        ("a!", None, "c!"),
    ]


@pytest.mark.parametrize("name", ["14.shop.v1", "18.shop.v1bin", "18.txns.v2", "16.txns.v1bin", "18.streams.v2"])
def test_the_values_of_a_capture_equal_those_of_decode_rows_for_each_version(name: str) -> None:
    capture = captures.capture(name)
    decoder = ChangeDecoder(types=TYPES)
    decoder.decode(capture.column)
    changes = expected_changes.as_sent(name)
    catalog = decoder.catalog
    n_compared = 0
    for table in catalog.names:
        batch = ChangeDecoder(types=TYPES).table(capture.column, table)
        batch.validate(full=True)
        ours = [c for c in changes if f"{c['namespace'] or 'pg_catalog'}.{c['relation_name']}" == table]
        assert batch["_position"].to_pylist() == [change["position"] for change in ours]
        assert batch["_op"].to_pylist() == [change["op"] for change in ours]
        assert batch["_xid"].to_pylist() == [change["xid"] for change in ours]
        assert batch["_commit_position"].to_pylist() == [change["commit_position"] for change in ours]
        streams = {change["position"]: change["xid"] for change in ours if capture.states[change["position"]]}
        for row, change in zip(batch.to_pylist(), ours, strict=True):
            if change["op"] == "truncate":
                assert all(row[column] is None for column in batch.schema.names if column not in META)
                continue
            at = change["position"]
            version = catalog.at(change["relation_id"], at, streams.get(at))
            assert version is not None
            assert_row_of(version, batch.schema, row, capture.payloads[at])
            n_compared += 1
    assert n_compared > 0


def assert_row_of(version: RelationVersion, schema: pa.Schema, row: dict[str, Any], payload: bytes) -> None:
    """Check that a row of a table equals the result of `decode_rows` for its payload, cast to the table's types."""
    single = pgdecode.decode_rows([payload], version.relation, type_messages=version.types, types=TYPES)
    for name in ("_op", "_old_type", "_unchanged", "_error"):
        assert single[name].to_pylist() == [row[name]]
    [old] = single["_old"].to_pylist()
    if "quantity" in schema.names and "qty" in single.schema.names:
        # The only column that the scenarios have renamed.
        single = single.rename_columns({"qty": "quantity"})
        old = None if old is None else {("quantity" if name == "qty" else name): value for name, value in old.items()}
    assert (old is None) == (row["_old"] is None)
    for column in schema.names[len(META) :]:
        if column not in single.schema.names:
            assert row[column] is None
        elif single.schema.field(column).type == schema.field(column).type or schema.field(column).type != pa.string():
            assert single[column].cast(schema.field(column).type).to_pylist() == [row[column]]
            if old is not None:
                assert pa.array([old[column]], single[column].type).cast(schema.field(column).type).to_pylist() == [
                    row["_old"][column]
                ]


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_of_every_kind_have_the_values_that_were_sent() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], keys=["id"], types=[INT4, TEXT])
    slot.insert(T, "1", "a")
    slot.update(T, "2", UNCHANGED, old=["1", None], old_type="K")
    slot.update(T, "2", UNCHANGED, old=["2", "a"], old_type="O")
    slot.truncate(T + 1, T)
    slot.delete(T, "2", None, old_type="K")
    slot.insert(T + 1, "other")
    slot.payloads[-1:-1] = [other.payloads[0] for other in [described_other()]]
    slot.commit()
    found = [
        (row["_op"], row["_old_type"], row["_old"], row["_unchanged"], row["id"], row["v"])
        for row in rows(slot.payloads)
    ]
    assert found == [
        ("insert", None, None, [], 1, "a"),
        ("update", "K", {"id": 1, "v": None}, ["v"], 2, None),
        ("update", "O", {"id": 2, "v": "a"}, [], 2, "a"),
        ("truncate", None, None, [], None, None),
        ("delete", "K", {"id": 2, "v": None}, [], 2, None),
    ]
    assert [row["_op"] for row in rows(slot.payloads, T + 1)] == ["insert"]


def described_other() -> Slot:
    slot = Slot()
    slot.relation(T + 1, ["x"])
    return slot


def test_errors_are_rows_among_those_of_the_table() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id"], types=[INT4])
    slot.insert(T, "1")
    slot.insert(T, "one")
    slot.payloads.append(b"Z")
    slot.insert(T, "1", "2")
    slot.insert(T + 1, "unknown")
    slot.insert(T, "2")
    slot.commit()
    found = rows(slot.payloads, mode="PERMISSIVE")
    errors = [row["_error"] and row["_error"].split()[0] for row in found]
    # An unreadable payload belongs to no transaction, so it does not wait for a commit.
    assert errors == ["UNKNOWN_TAG", None, "BAD_VALUE", "ARITY", "REL_UNKNOWN", None]
    assert [row["id"] for row in found] == [None, 1, None, None, None, 2]
    assert [row["_position"] for row in found] == [4, 2, 3, 5, 6, 7]
    assert [row["id"] for row in rows(slot.payloads, mode="DROPMALFORMED")] == [1, 2]
    with pytest.raises(pgdecode.DecodeError, match="row 4, "):
        rows(slot.payloads)


def test_a_table_without_columns_has_rows() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, [])
    slot.insert(T)
    slot.delete(T)
    slot.truncate(T)
    slot.commit()
    assert [(row["_op"], row["_old"]) for row in rows(slot.payloads)] == [
        ("insert", None),
        ("delete", {}),
        ("truncate", None),
    ]


def test_a_table_that_gets_its_first_column_later_has_nulls_before() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, [])
    slot.insert(T)
    slot.delete(T)
    slot.relation(T, ["a"])
    slot.insert(T, "1")
    slot.commit()
    assert [(row["_op"], row["_old"], row["a"]) for row in rows(slot.payloads)] == [
        ("insert", None, None),
        ("delete", {"a": None}, None),
        ("insert", None, "1"),
    ]


def test_later_batches_may_add_columns() -> None:
    decoder = ChangeDecoder()
    first = altered(INT4, values=["1"])
    assert decoder.table(first, NAME).schema.field("v").type == pa.int32()
    decoder.reconnected()  # both slots begin with the same LSN
    batch = decoder.table(altered(INT8, values=["2"]), NAME)
    assert (batch.schema.field("v").type, batch["v"].to_pylist()) == (pa.int64(), [2])


@pytest.mark.parametrize("max_rows", [1, 7, 1000])
def test_batches_of_a_table_are_its_rows_in_their_order(max_rows: int) -> None:
    column = captures.capture("18.txns.v2").column
    for table in ("public.a2", "public.b"):
        whole = ChangeDecoder().table(column, table)
        batches = list(ChangeDecoder().table_batches(column, table, max_rows=max_rows))
        assert pa.concat_batches(batches).equals(whole)


# -- refused tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", META)
def test_a_column_with_the_name_of_a_change_column_is_refused(name: str) -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a", name])
    slot.insert(T, "1", "2")
    slot.commit()
    decoder = ChangeDecoder()
    before = decoder.state
    with pytest.raises(ValueError, match=f"'{name}'"):
        decoder.table(slot.payloads, NAME)
    assert decoder.state == before
    assert decoder.decode(slot.payloads)["new"].to_pylist() == [[("a", "1"), (name, "2")]]


def test_an_unknown_table_is_an_error_that_lists_the_known_tables() -> None:
    decoder = ChangeDecoder()
    before = decoder.state
    with pytest.raises(KeyError, match=f"no message has described 'public.nobody'; there are {NAME}"):
        decoder.table(altered(INT4, values=["1"]), "public.nobody")
    assert decoder.state == before


def test_a_given_catalog_still_applies_after_an_exception() -> None:
    slot = Slot()
    slot.relation(T, ["a"])
    catalog = pgdecode.RelationCatalog.from_messages(slot.payloads)
    slot.payloads.clear()
    slot.begin(700)
    slot.insert(T, "1", "2")
    slot.commit()
    decoder = ChangeDecoder(catalog=catalog)
    for _ in range(2):
        with pytest.raises(pgdecode.ArityMismatch):
            decoder.table(slot.payloads, NAME)


@pytest.mark.parametrize("unrepresentable", ["error", "null", "clamp", "text"])
def test_a_column_in_text_form_can_hold_all_values(unrepresentable: str) -> None:
    payloads = altered(DATE, BOOL, values=["infinity", "t"])
    assert [row["v"] for row in rows(payloads, unrepresentable=unrepresentable)] == ["infinity", "t"]


def test_columns_that_most_versions_do_not_have_cost_nothing_in_those(monkeypatch: pytest.MonkeyPatch) -> None:
    slot, n = Slot(), 40
    for number in range(n):
        slot.begin(700 + number)
        slot.relation(16385, ["id", f"c{number}"], name="t", identity="f")
        slot.insert(16385, str(number), f"new {number}")
        if number % 10 == 3:
            slot.truncate(16385)
        slot.update(16385, str(number), f"newer {number}", old=(str(number), f"new {number}"), old_type="O")
        slot.commit()
    made: list[int] = []

    def counted(length: int, kind: pa.DataType) -> pa.Array:
        made.append(length)
        return pa.nulls(length, kind)

    monkeypatch.setattr(table_rows, "null_array", counted)
    rows = ChangeDecoder().table(slot.payloads, "public.t").to_pylist()
    # At most one before and one after the values of each version, in the columns and in `_old`.
    assert len(made) < 6 * n
    assert sum(row["_op"] == "truncate" for row in rows) == n // 10
    for row in rows:
        number = row["_xid"] - 700
        values = {name: value for name, value in row.items() if name[0] == "c" and value is not None}
        olds = {name: value for name, value in (row["_old"] or {}).items() if value is not None}
        if row["_op"] == "truncate":
            assert (values, row["_old"]) == ({}, None)
        elif row["_op"] == "insert":
            assert (values, row["_old"]) == ({f"c{number}": f"new {number}"}, None)
        else:
            assert values == {f"c{number}": f"newer {number}"}
            assert olds == {"id": str(number), f"c{number}": f"new {number}"}
