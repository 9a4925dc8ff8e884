"""The types that formats store: no value changes when it is converted, or read by the readers of the formats."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, get_args

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.lake.stored_types import INSTEAD, Format, stored_field, stored_schema, to_stored
from pgdecode.types import pgtypes
from support.tiers import full

FORMATS: tuple[Format, ...] = get_args(Format)
# The extremes that PostgreSQL and the Arrow type have, and values between them.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float32(): [-0.0, float("inf"), 3.4028234663852886e38],
    pa.float64(): [-0.0, float("-inf"), 5e-324],
    pa.string(): ["", "\t\u00e9\U0001f600", "24:00:00"],
    pa.binary(): [b"", b"\x00\xff"],
    pa.date32(): [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    pa.time64("us"): [time(0, 0), time(10, 0), time(12, 34, 56, 120000), time(23, 59, 59, 999999)],
    pa.timestamp("us"): [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [datetime(1, 1, 2, tzinfo=UTC), datetime(2024, 2, 29, 12, 0, 0, 1, UTC)],
    pa.decimal128(20, 0): [Decimal(2**64 - 1), Decimal(0)],
    pa.decimal128(38, 10): [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    pa.decimal128(12, 2): [Decimal("-1.10")],
    pa.decimal128(19, 2): [Decimal("92233720368547758.07")],
    pgtypes.INTERVAL: [{"months": -1, "days": 2**31 - 1, "microseconds": -(2**63)}],
    pa.map_(pa.string(), pa.string()): [[("a", None), ("b", "")], []],
}


def decodings() -> list[pgtypes.Decoding]:
    """Decodings of every type, and of arrays, ranges and composites of them."""
    scalars = [pgtypes.scalar(item.name, typmod) for item in pgtypes.TYPES for typmod in (-1, (12 << 16 | 2) + 4)]
    scalars = [item for item in scalars if not (item.oid == pgtypes.MONEY_OID and pa.types.is_decimal(item.arrow))]
    named = ["hstore", "vector", "halfvec", "int2vector", "oidvector", "money(2)"]
    ranges = [pgtypes.range_of(pgtypes.scalar(item.bound)) for item in pgtypes.RANGES]
    items = scalars + [pgtypes.named(name) for name in named] + ranges  # type: ignore[operator]
    return (
        items
        + [pgtypes.array_of(item) for item in items]
        + [pgtypes.composite_of([("x y", item) for item in items[:1]])]
    )


def values_of(type: pa.DataType) -> list[Any]:
    """Values of a type, with nulls at each level."""
    if type in VALUES:
        return [*VALUES[type], None]
    if pa.types.is_list(type):
        return [values_of(type.value_type), [], None]
    if pa.types.is_struct(type):
        columns = [values_of(item.type) for item in type]
        rows = max(map(len, columns))
        names = [item.name for item in type]
        return [dict(zip(names, (column[n % len(column)] for column in columns), strict=True)) for n in range(rows)] + [
            None
        ]
    return [Decimal(1).scaleb(-type.scale), None]


ARROW_TYPES = list(dict.fromkeys(item.arrow for item in decodings()))
TIMES = [
    pa.list_(pa.list_(pa.time64("us"))),
    pa.list_(pgtypes.range_of(pgtypes.scalar("time")).arrow),
    pa.struct([("n", pa.int16()), ("t", pa.struct([("t", pa.time64("us")), ("n", pa.list_(pa.int16()))]))]),
]


def table() -> pa.Table:
    """A table with a column of each type, whose rows have all values."""
    columns = [pa.array(values_of(type), type) for type in (*ARROW_TYPES, *TIMES)]
    rows = max(map(len, columns))
    fields = [pa.field(f"c{n}", column.type, metadata={"pg:type": "t"}) for n, column in enumerate(columns)]
    full = [column.take(pa.array([n % len(column) for n in range(rows)])) for column in columns]
    return pa.table(full, schema=pa.schema(fields))


@pytest.mark.parametrize("format", FORMATS)
def test_values_of_every_type_are_the_same_after_they_were_stored(format: Format) -> None:
    typed = table()
    schema = stored_schema(typed.schema, format)
    for sliced, field in product((typed, typed.slice(1), typed.slice(2, 2), typed.slice(0, 0)), typed.schema):
        stored = schema.field(field.name)
        assert stored.metadata == field.metadata
        for array in (sliced[field.name], sliced[field.name].combine_chunks()):
            there = to_stored(array, stored.type)
            there.validate(full=True)
            assert there.type == stored.type
            assert to_stored(there, field.type).equals(array), field


def read_back(format: Format, stored: pa.Table, folder: Path) -> pa.Table:
    """Write a table by a library of the format, and read it by its reader."""
    if format == "parquet":
        pq.write_table(stored, folder / "t.parquet")
        return pq.read_table(folder / "t.parquet")
    if format == "delta":
        deltalake.write_deltalake(folder, stored)
        return deltalake.DeltaTable(folder).to_pyarrow_table()
    if format == "iceberg":
        catalog = pytest.importorskip("pyiceberg.catalog").load_catalog(
            "c", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}"
        )
        catalog.create_namespace("n")
        catalog.create_table("n.t", stored.schema)
        # pyiceberg's own files have no null lists of structs.
        pq.write_table(stored, folder / "t.parquet")
        catalog.load_table("n.t").add_files([f"file://{folder}/t.parquet"])
        return catalog.load_table("n.t").scan().to_arrow()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    if format == "ducklake":
        extension = Path(pytest.importorskip("duckdb_extension_ducklake").__file__).parent / "extensions"
        connection.execute(f"LOAD '{extension}/v{duckdb.__version__}/ducklake.duckdb_extension'")
        connection.execute(f"ATTACH 'ducklake:{folder}/c.ducklake' AS lake (DATA_PATH '{folder}'); USE lake")
    connection.register("stored", stored)
    connection.execute("CREATE TABLE t AS SELECT * FROM stored")
    return connection.table("t").to_arrow_table()


@pytest.mark.parametrize("format", ["parquet", "delta", "duckdb", full("iceberg"), full("ducklake")])
def test_values_of_every_type_are_read_by_the_readers_of_the_format(format: Format, tmp_path: Path) -> None:
    typed = table()
    schema = stored_schema(typed.schema, format)
    stored = pa.table([to_stored(typed[item.name], item.type) for item in schema], schema=schema)
    found = read_back(format, stored, tmp_path)
    for item in typed.schema:
        column = found[item.name]
        # Readers choose among types of the same values, such as large strings and views.
        values = to_stored(column.cast(schema.field(item.name).type), item.type).to_pylist()
        expected = typed[item.name].to_pylist()
        if format == "iceberg":
            expected = [as_read_by_pyiceberg(value, item.type) for value in expected]
        assert values == expected, item


def as_read_by_pyiceberg(value: Any, type: pa.DataType) -> Any:
    """Its reader returns an empty list for a null list of structs, and of lists of them."""
    if pa.types.is_struct(type):
        return value and {item.name: as_read_by_pyiceberg(value[item.name], item.type) for item in type}
    if not pa.types.is_list(type):
        return value
    if value is None:
        return [] if "struct" in str(type) else None
    return [as_read_by_pyiceberg(item, type.value_type) for item in value]


def test_a_type_that_a_format_does_not_have_is_another_type_at_each_level() -> None:
    time, small = pa.time64("us"), pa.int16()
    nested = pa.struct([("a", pa.list_(pa.struct([("t", time), ("n", small)])))])
    assert stored_field(pa.field("x", nested, nullable=False), "delta") == pa.field(
        "x", pa.struct([("a", pa.list_(pa.struct([("t", pa.string()), ("n", small)])))]), nullable=False
    )
    assert stored_field(pa.field("x", nested), "iceberg").type == pa.struct(
        [("a", pa.list_(pa.struct([("t", time), ("n", pa.int32())])))]
    )
    assert set(INSTEAD) == set(FORMATS)


def test_time_as_text_is_that_of_the_server() -> None:
    # select '10:00'::time, '10:20:30.50'::time, '00:00:00.000001'::time
    array = pa.array([time(10), time(10, 20, 30, 500000), time(0, 0, 0, 1), None], pa.time64("us"))
    assert to_stored(array, pa.string()).to_pylist() == ["10:00:00", "10:20:30.5", "00:00:00.000001", None]


@pytest.mark.parametrize("type", [pa.float16(), pa.uint32(), pa.large_string(), pa.list_(pa.time64("ns"))], ids=str)
def test_a_type_that_typed_tables_do_not_have_is_refused(type: pa.DataType) -> None:
    with pytest.raises(TypeError, match="typed tables have no type"):
        stored_field(pa.field("x", type), "delta")
