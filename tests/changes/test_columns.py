"""Types of columns that the caller gives, for tables of `ChangeDecoder` and for `snapshot`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.generators.slot import Slot

T = 16385
NAME = f"public.t{T}"
INT4, TEXT, NUMERIC = 23, 25, 1700


def slot_of(*versions: tuple[list[str], list[int], list[str]]) -> list[bytes]:
    """A table with several versions, a row of each."""
    slot = Slot()
    for number, (names, types, values) in enumerate(versions):
        slot.begin(700 + number)
        slot.relation(T, names, keys=["id"], types=types)
        slot.insert(T, *values)
        slot.commit()
    return slot.payloads


PRICES = slot_of((["id", "price"], [INT4, NUMERIC], ["1", "0.5"]))


@pytest.mark.parametrize("table", [NAME, T])
@pytest.mark.parametrize("asked", [NAME, T])
def test_a_column_of_a_table_has_the_type_that_the_caller_gives(table: str | int, asked: str | int) -> None:
    decoder = ChangeDecoder(columns={table: {"price": "numeric(20,4)"}})
    found = decoder.table(PRICES, asked)
    assert found.schema.field("price").type == pa.decimal128(20, 4)
    assert found["price"].to_pylist() == [Decimal("0.5000")]
    assert found["_old"].type.field("price").type == pa.decimal128(20, 4)
    assert decoder.table_schema(asked) == found.schema


def test_columns_go_before_types_and_leave_other_tables_alone() -> None:
    given: dict[str | int, str] = {"numeric": "float8"}
    assert ChangeDecoder(types=given).table(PRICES, NAME).schema.field("price").type == pa.float64()
    found = ChangeDecoder(types=given, columns={NAME: {"price": "text"}}).table(PRICES, NAME)
    assert found["price"].to_pylist() == ["0.5"]
    found = ChangeDecoder(types=given, columns={"public.other": {"price": "text"}}).table(PRICES, NAME)
    assert found["price"].to_pylist() == [0.5]


def test_a_column_that_came_later_has_its_type_in_the_versions_that_have_it() -> None:
    payloads = slot_of((["id"], [INT4], ["1"]), (["id", "price"], [INT4, NUMERIC], ["2", "0.5"]))
    found = ChangeDecoder(columns={NAME: {"price": "float8"}}).table(payloads, NAME)
    assert found["price"].to_pylist() == [None, 0.5]


def test_all_tables_at_once_have_the_same_types() -> None:
    decoder = ChangeDecoder(columns={NAME: {"price": "float8"}})
    ((name, batch),) = decoder.tables_batches(PRICES, [NAME])
    assert (name, batch["price"].to_pylist()) == (NAME, [0.5])


def test_changes_of_all_tables_stay_text() -> None:
    given = ChangeDecoder(columns={NAME: {"price": "numeric(20,4)"}}).decode(PRICES)
    assert given.equals(ChangeDecoder().decode(PRICES))


def test_a_snapshot_has_the_types_that_the_caller_gives() -> None:
    rows = pgdecode.snapshot(PRICES, NAME, columns={"price": "numeric(20,4)"})
    assert isinstance(rows, pa.Table)
    assert rows["price"].to_pylist() == [Decimal("0.5000")]


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        pytest.param(
            {NAME: {"prize": "text"}},
            ValueError,
            rf"columns names \['prize'\], but table '{NAME}' has no such column",
            id="name",
        ),
        pytest.param({NAME: {"price": "nix"}}, ValueError, "nix", id="type"),
        pytest.param({NAME: {"id": "int8"}}, ValueError, "column 'id' is int4 and cannot be read as", id="conversion"),
        pytest.param([("a", "b")], TypeError, "columns maps tables to columns.*not list", id="no mapping"),
        pytest.param({True: {}}, TypeError, "a table is a name or an OID, not True", id="a bool"),
        pytest.param({"public.t": {"v": None}}, TypeError, "the type of 'v' is NoneType", id="no type"),
        pytest.param({"price": "text"}, TypeError, "columns maps tables to columns.*'price' has str", id="flat"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ChangeDecoder(columns=columns).table(PRICES, NAME)


def test_a_refused_column_leaves_the_decoder_as_it_was() -> None:
    decoder = ChangeDecoder(columns={NAME: {"prize": "text"}})
    before = decoder.state
    with pytest.raises(ValueError, match="prize"):
        decoder.table(PRICES, NAME)
    assert decoder.state == before
    assert decoder.decode(PRICES).num_rows == 1


def test_a_capture_of_typed_rows_agrees_with_decode_rows() -> None:
    column = captures.capture("16.shop.v1").column
    decoder = ChangeDecoder(columns={"public.orders": {"total": "float8"}})
    found = decoder.table(column, "public.orders")
    plain = ChangeDecoder().table(column, "public.orders")
    assert found["total"].to_pylist() == [
        None if value is None else float(value) for value in plain["total"].to_pylist()
    ]
