"""Column functions of one table: `from_pgoutput` for DataFrames, and its SQL names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa
from pyspark.sql import Column, SparkSession

import pgdecode
from pgdecode import Relation, Type
from pgdecode.protocol.options import Empty, RowMode, UnrepresentableValues, check_option
from spark_udfs.columns.row_worker import ArrowRows, JsonRelation, Keywords, PandasRows, RowOptions, relation_of
from spark_udfs.columns.udf_adapters import Adapter, adapter_named, user_defined
from spark_udfs.schema.spark_types import session_has_time, supported_schema
from spark_udfs.schema.years import Years, any_year

Others = Literal["error", "null"]
_FUNCTIONS = {"arrow": ArrowRows, "pandas": PandasRows}
# What a message of a kind is known by, wherever it comes from.
_ATTRIBUTES = {
    Relation: ("relation_id", "namespace", "name", "replica_identity", "columns"),
    Type: ("type_id", "namespace", "name"),
}


class RelationOptions(TypedDict, total=False):
    """Options of `from_pgoutput`, for `register_relation`."""

    fields: Iterable[str] | None
    mode: RowMode
    types: Mapping[str | int, str] | None
    columns: Mapping[str, str] | None
    type_messages: Iterable[Any]
    encoding: str
    datestyle: str
    unrepresentable: UnrepresentableValues
    others: Others
    years: Years
    adapter: Adapter
    empty: Empty


def from_pgoutput(
    col: Column | str,
    relation: Any,
    *,
    fields: Iterable[str] | None = None,
    mode: RowMode = "FAILFAST",
    types: Mapping[str | int, str] | None = None,
    columns: Mapping[str, str] | None = None,
    type_messages: Iterable[Any] = (),
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    unrepresentable: UnrepresentableValues = "error",
    others: Others = "error",
    years: Years = "1-9999",
    adapter: Adapter = "auto",
    empty: Empty = "null",
) -> Column:
    """Decode the insert, update and delete payloads of one relation into a struct of typed columns.

    Parameters
    ----------
    col : Column or str
        Binary, one message per row, tag byte first; or the name of such a column.
    relation : Relation, bytes, or what has the same attributes
        What the table's columns are, as the stream's Relation message values it: `pgdecode.decode` gives one, and so do
        the message's bytes where it was not sent inside a stream.
    fields : iterable of str, optional
        Fields of the struct, in the order wanted; by default all that `pgdecode.decode_rows` gives. What is brought
        back to Spark is most of the cost: leave out `_old` where the old rows are not needed.
    mode : {"FAILFAST", "PERMISSIVE"}
        Fail the query at a bad row or value; or null the row, where the message is malformed, or the one value, and
        say why in the field `_error`.
    types, columns, encoding, datestyle
        As of `pgdecode.decode_rows`: what types or columns are, {"public.price": "numeric"}, and the settings of the
        capturing session.
    type_messages : iterable of Type or bytes, optional
        The stream's Type messages: they give domains, hstore, citext and pgvector their meaning by name.
    unrepresentable : {"error", "null", "clamp", "text"}
        As of `decode_rows`: what to make of a value that PostgreSQL has and the field's type has not: NaN in a decimal,
        infinity in a date, and by `years` also a year that Python has not.
    others : {"error", "null"}
        What to make of messages that are no rows of this relation: rows of other tables, and messages of other kinds.
        "error": they are bad rows. "null": a struct of nulls, as of a null payload; a malformed insert, update or
        delete is a bad row all the same, whatever table it would have been of.
    years : {"1-9999", "any"}
        "1-9999": dates and timestamps of other years (in UTC, where they have a zone), also those within arrays,
        ranges and `_old`, are not representable. "any": they pass. Spark computes with them and writes them to files,
        but `collect()` and `toPandas()` raise at the first one; and so they do, by Python's own limits, at a timestamp
        with zone within a day or two of either end, `0001-01-01 00:00:00+00` for one.
    adapter : {"auto", "arrow", "pandas"}
        "auto" makes an `arrow_udf` where this pyspark has one (4.1 and later), else a `pandas_udf`. Both give the
        same rows, pandas more slowly.
    empty : {"null", "error"}
        What a payload of no bytes is, which servers send for a replication origin without a name: a struct of nulls, or
        a bad payload.

    Returns
    -------
    Column
        A struct, whose fields are the columns of `pgdecode.decode_rows`: `_op`, `_xid`, `_old_type`, `_old`,
        `_unchanged`, `_error` and those of the table (docs/options.md explains these names). Null payloads give a
        struct of nulls. A timestamp without zone is a timestamp_ntz. A time is a string, because Spark writes its own
        type TIME to no file. If the session sets `spark.sql.timeType.enabled`, it is a TIME.

    Raises
    ------
    TypeError, ValueError
        At once, for options that do not exist and for a relation whose columns cannot stand in one struct. When the
        query runs, it fails with the text of a `pgdecode.DecodeError` for a bad row; its row counts from the start of
        the Arrow batch, so that PERMISSIVE and a filter on `_error` is how to find it. No text holds bytes of a
        payload.

    Notes
    -----
    A relation means what its last Relation message values: after a change of the table's columns another one holds.
    Payloads from before and after can be told by their place only. A row with another number of columns is an error;
    where only names or types have changed, values are taken for what they are not.

    Where the payloads of other tables are many, have Spark leave them out before, by a function that gives little::

        sent = parse_pgoutput("data", fields=["kind", "relation_id"])
        rows = df.where((sent["relation_id"] == relation.relation_id) & sent["kind"].isin("insert", "update", "delete"))

    A filter on the struct itself has it decoded twice, see `parse_pgoutput`.

    Names that differ in case only, as PostgreSQL has them where they are quoted, are two fields: Spark takes them by
    name where `spark.sql.caseSensitive` says so, or with `fields`.

    Examples
    --------
    >>> df.select("seq", from_pgoutput("data", products).alias("row")).select("seq", "row.*")  # doctest: +SKIP
    """
    if not isinstance(col, Column | str):
        raise TypeError(f"col is a Column or the name of one, not {type(col).__name__}")
    function = _user_defined(
        relation,
        fields=fields,
        mode=mode,
        types=types,
        columns=columns,
        type_messages=type_messages,
        encoding=encoding,
        datestyle=datestyle,
        unrepresentable=unrepresentable,
        others=others,
        years=years,
        adapter=adapter,
        empty=empty,
    )
    decoded: Column = function(col)
    return decoded


def register_relation(spark: SparkSession, name: str, relation: Any, **options: Unpack[RelationOptions]) -> None:
    """Make `from_pgoutput` of one relation known to SQL: `SELECT from_products(data) FROM t`.

    Parameters
    ----------
    spark : SparkSession
        Where the name is to be known, until the session ends or the name is registered anew.
    name : str
        Of the function, such as "from_products".
    relation, **options
        As of `from_pgoutput`.
    """
    spark.udf.register(name, _user_defined(relation, **options))


def _user_defined(
    relation: Any,
    *,
    fields: Iterable[str] | None = None,
    others: Others = "error",
    years: Years = "1-9999",
    adapter: Adapter = "auto",
    type_messages: Iterable[Any] = (),
    **keywords: Any,
) -> Any:
    """Check the options and make the function for Spark that decodes by them; `keywords` are of `decode_rows`."""
    maker = adapter_named(adapter)
    check_option("others", others, Others)
    passes = any_year(years)
    plain = _relation_to_json(relation)
    sent = [_message(message, Type) for message in type_messages]
    plain_keywords: dict[str, Any] = {
        name: dict(values) if isinstance(values, Mapping) else values for name, values in keywords.items()
    }
    chosen = Keywords(
        type_messages=tuple((message.type_id, message.namespace, message.name) for message in sent), **plain_keywords
    )
    # With no row in it, this says what all rows will look like, and what decode_rows has against the options.
    schema = pgdecode.decode_rows([], relation_of(plain), **chosen.as_arguments()).schema
    names = _names(fields, schema)
    has_time = session_has_time(SparkSession.active())
    options = RowOptions(plain, chosen, names, others == "null", passes, has_time)
    return user_defined(
        maker,
        _FUNCTIONS[maker](options),
        supported_schema(pa.schema([schema.field(name) for name in names]), has_time=has_time),
    )


def _message(message: Any, kind: type) -> Any:
    """Decode a message that is bytes, and hold what is none to the attributes of its kind."""
    # Up to Spark 4.0, a collected binary is a bytearray.
    found = pgdecode.decode(bytes(message)) if isinstance(message, bytes | bytearray | memoryview) else message
    if not all(hasattr(found, name) for name in _ATTRIBUTES[kind]):
        raise TypeError(f"a {kind.__name__} message or its bytes are needed, not {type(found).__name__}")
    return found


def _relation_to_json(relation: Any) -> JsonRelation:
    found = _message(relation, Relation)
    columns = tuple((column.flags, column.name, column.type_id, column.type_modifier) for column in found.columns)
    return found.relation_id, found.namespace, found.name, found.replica_identity, columns


def _names(fields: Iterable[str] | None, schema: pa.Schema) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise TypeError(f"fields is a sequence of column names, not the string {fields!r}")
    names = tuple(schema.names if fields is None else fields)
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise ValueError(f"no such column: {', '.join(map(repr, unknown))}; there are {', '.join(schema.names)}")
    if not names or len(set(names)) != len(names):
        raise ValueError("fields names each column once, and at least one")
    return names
