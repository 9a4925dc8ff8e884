"""Column functions of one table: `from_pgoutput` for DataFrames, and its SQL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import pyarrow as pa
from pyspark.sql import Column, SparkSession

import pgdecode
from pgdecode import Relation, Type
from pgdecode.rows.options import with_options
from spark_udfs.columns.column_options import ColumnOptions, RelationKeywords
from spark_udfs.columns.row_worker import JsonRelation, RowOptions, arguments_of, relation_of
from spark_udfs.columns.udf_adapters import adapter_named, user_defined
from spark_udfs.runtime.worker import FUNCTIONS
from spark_udfs.schema.spark_types import check_fields, session_has_time, supported_schema
from spark_udfs.schema.years import any_year

# The attributes that an object needs to be used as a message.
_ATTRIBUTES = {
    Relation: ("relation_id", "namespace", "name", "replica_identity", "columns"),
    Type: ("type_id", "namespace", "name"),
}


@with_options(ColumnOptions)
def from_pgoutput(col: Column | str, relation: Any, **options: Unpack[RelationKeywords]) -> Column:
    """Decode the insert, update and delete payloads of one relation to a struct of typed columns.

    Parameters
    ----------
    col : Column or str
        Binary, one message per row, tag byte first, or in a form that `unwrap` names; or the name of such a column.
    relation : Relation, bytes, or an object with the same attributes
        The table's columns: a Relation message from `pgdecode.decode`, or the bytes of a Relation message that was not
        sent inside a stream.

    Other Parameters
    ----------------
    fields : iterable of str, optional
        Fields of the struct, in this order; by default all columns of `pgdecode.decode_rows`. Returning decoded columns
        to Spark is most of the cost, so leave out `_old` if you do not need the old rows.
    mode : {"FAILFAST", "PERMISSIVE"}
        Fail the query at a bad row or value; or return a null row for a malformed message, or a null for a bad value,
        with the reason in the field `_error`.
    types, columns, encoding, datestyle
        As in `pgdecode.decode_rows`: types of types or columns, {"public.price": "numeric"}, and settings of the
        capturing session.
    type_messages : iterable of Type or bytes, optional
        The stream's Type messages. Domains, hstore, citext and pgvector types are recognised by their names in them.
    unrepresentable : {"error", "null", "clamp", "text"}
        As in `decode_rows`: what to do with a value that the field's type cannot represent, such as NaN in a decimal,
        infinity in a date, and with `years="1-9999"` also a year that Python cannot represent.
    others : {"error", "null"}
        How to treat messages that are not rows of this relation: rows of other tables, and messages of other kinds.
        "error": as bad rows. "null": as a struct of nulls, like a null payload. A malformed insert, update or delete is
        always a bad row.
    years : {"1-9999", "any"}
        "1-9999": dates and timestamps of other years (in UTC if they have a time zone) are unrepresentable, also in
        arrays, ranges and `_old`. "any": they are allowed. Spark can compute with them and write them to files, but
        `collect()` and `toPandas()` raise at the first one. Because of Python's limits, these also raise at a timestamp
        with time zone within a day or two of either end, such as `0001-01-01 00:00:00+00`.
    adapter : {"auto", "arrow", "pandas"}
        "auto" makes an `arrow_udf` if pyspark supports it (4.1 and later), otherwise a `pandas_udf`. Both return the
        same rows; pandas is slower.
    empty : {"null", "error"}
        How to treat a payload of 0 bytes, which servers send for a replication origin without a name: as a struct of
        nulls, or as a bad payload.
    max_value_bytes : int
        A longer value is bad, as with `pgdecode.Limits`. By default as much as a server can send.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Keepalives become structs of nulls.

    Returns
    -------
    Column
        A struct with the columns of `pgdecode.decode_rows`: `_op`, `_xid`, `_old_type`, `_old`, `_unchanged`, `_error`
        and those of the table (docs/options.md explains these names). A null payload becomes a struct of nulls. A
        timestamp without time zone is a timestamp_ntz. A time of day is a string, because Spark cannot write its type
        TIME to files by default. If the session sets `spark.sql.timeType.enabled`, it is a TIME.

    Raises
    ------
    TypeError, ValueError
        Immediately, for options that do not exist, and for a relation whose columns cannot be fields of one struct. At
        a bad row, the query fails with the text of a `pgdecode.DecodeError`. Its row is counted from the start of the
        Arrow batch; to find the row, use PERMISSIVE and a filter on `_error`. The text has no bytes of the payload.

    Notes
    -----
    A Relation message is valid until the table's columns change; then there is another one. Only their positions show
    which payloads belong to which. A row with another number of columns is an error. If only names or types have
    changed, values are decoded as the wrong columns or types.

    If there are many payloads of other tables, let Spark filter them out first, with a function that returns little::

        sent = parse_pgoutput("data", fields=["kind", "relation_id"])
        rows = df.where((sent["relation_id"] == relation.relation_id) & sent["kind"].isin("insert", "update", "delete"))

    A filter on the struct itself decodes the payloads twice, see `parse_pgoutput`.

    Quoted names in PostgreSQL may differ only by case. They become two fields. To select one by name, set
    `spark.sql.caseSensitive`, or use `fields`.

    Examples
    --------
    >>> df.select("seq", from_pgoutput("data", products).alias("row")).select("seq", "row.*")  # doctest: +SKIP
    """
    if not isinstance(col, Column | str):
        raise TypeError(f"col is a Column or the name of one, not {type(col).__name__}")
    function = _user_defined(relation, options)
    decoded: Column = function(col)
    return decoded


@with_options(ColumnOptions)
def register_relation(spark: SparkSession, name: str, relation: Any, **options: Unpack[RelationKeywords]) -> None:
    """Register `from_pgoutput` of one relation for SQL: `SELECT from_products(data) FROM t`.

    Parameters
    ----------
    spark : SparkSession
        The session of the function.
    name : str
        Of the function, such as "from_products".
    relation : Relation, bytes, or an object with the same attributes
        As in `from_pgoutput`.

    Other Parameters
    ----------------
    **options
        As in `from_pgoutput`.

    Examples
    --------
    >>> raw = spark.read.parquet("tests/data/16.shop.v1.parquet")
    >>> described = raw.where("seq = 1").first()["data"]  # the Relation message of public.products
    >>> spark_udfs.register_relation(spark, "from_products", described, others="null", fields=["_op", "price"])
    >>> raw.createOrReplaceTempView("raw")
    >>> spark.sql("SELECT count(*) AS n FROM raw WHERE from_products(data)._op = 'update'").first().n
    36
    """
    spark.udf.register(name, _user_defined(relation, options))


def _user_defined(relation: Any, given: RelationKeywords) -> Any:
    """Check the options, and make the Spark function."""
    options, keywords = ColumnOptions.split(given)
    maker = adapter_named(options.adapter)
    passes = any_year(options.years)
    plain = _relation_to_json(relation)
    sent = [_message(message, Type) for message in options.type_messages]
    chosen: dict[str, Any] = {
        name: dict(values) if isinstance(values, Mapping) else values for name, values in keywords.items()
    }
    chosen["type_messages"] = tuple((message.type_id, message.namespace, message.name) for message in sent)
    # Decoding zero rows checks the options, and returns the schema of all rows.
    schema = pgdecode.decode_rows([], relation_of(plain), **arguments_of(chosen)).schema
    names = check_fields(options.fields, schema.names)
    has_time = session_has_time(SparkSession.active())
    of_rows = RowOptions(plain, chosen, names, options.others == "null", passes, has_time, options.unwrap)
    return user_defined(
        maker,
        FUNCTIONS[maker](of_rows, "from_pgoutput"),
        supported_schema(pa.schema([schema.field(name) for name in names]), has_time=has_time),
    )


def _message(message: Any, kind: type) -> Any:
    """Decode a message if it is bytes, and check that the object has the attributes of its kind."""
    # Up to Spark 4.0, a collected binary is a bytearray.
    found = pgdecode.decode(bytes(message)) if isinstance(message, bytes | bytearray | memoryview) else message
    if not all(hasattr(found, name) for name in _ATTRIBUTES[kind]):
        raise TypeError(f"a {kind.__name__} message or its bytes are needed, not {type(found).__name__}")
    return found


def _relation_to_json(relation: Any) -> JsonRelation:
    found = _message(relation, Relation)
    columns = tuple((column.flags, column.name, column.type_id, column.type_modifier) for column in found.columns)
    return found.relation_id, found.namespace, found.name, found.replica_identity, columns
