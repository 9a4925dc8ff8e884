"""Column functions: `parse_pgoutput` for DataFrames, and its SQL name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, SparkSession

from pgdecode import MessageDecoder
from pgdecode.protocol.options import Empty, InStream, RowMode, stream_option
from spark_udfs.columns.udf_adapters import Adapter, adapter_named, user_defined
from spark_udfs.runtime.worker import ArrowFunction, Options, PandasFunction

_FUNCTIONS = {"arrow": ArrowFunction, "pandas": PandasFunction}


def parse_pgoutput(
    col: Column | str,
    *,
    fields: Iterable[str] | None = None,
    in_stream: InStream | bool | Column | None = "auto",
    mode: RowMode = "FAILFAST",
    adapter: Adapter = "auto",
    empty: Empty = "null",
) -> Column:
    """Decode a column of pgoutput payloads into a struct with the columns of the envelope.

    Parameters
    ----------
    col : Column or str
        Binary, one message per row, tag byte first; or the name of such a column.
    fields : iterable of str, optional
        Fields of the struct, in the order wanted; by default the whole envelope, which is all columns of
        `pgdecode.envelope.schema.envelope_schema()`. What is not asked for is not built, and the cost of bringing
        decoded columns back to Spark is most of the whole: name what you need.
    in_stream : {"auto", "ordered"}, bool or boolean Column
        Which messages were sent inside a stream, where some carry the xid of their transaction (protocol version 2
        and later). "auto": the structure of each payload decides; see Notes. It is the default because Spark gives a
        function its rows in any order. "ordered" (None means the same): the rows of each Arrow batch are in slot
        order, and the Stream Start and Stream Stop messages among them decide. True, False: all, none. A boolean
        Column without nulls says it of each row.
    mode : {"FAILFAST", "PERMISSIVE"}
        Fail the query at a bad payload, or give a struct that holds nothing but its `error`.
    adapter : {"auto", "arrow", "pandas"}
        "auto" makes an `arrow_udf` where this pyspark has one (4.1 and later), else a `pandas_udf`. Both give the
        same rows, pandas more slowly.
    empty : {"null", "error"}
        What a payload of no bytes is, which servers send for a replication origin without a name: a struct of nulls, or
        a bad payload.

    Returns
    -------
    Column
        A struct, of the same type for all payloads. Null payloads give a struct of nulls. LSNs, OIDs and xids are
        bigint.

    Raises
    ------
    TypeError, ValueError
        At once, for options that do not exist. When the query runs, it fails with the text of a
        `pgdecode.DecodeError` for a bad payload; its row counts from the start of the Arrow batch, so that
        PERMISSIVE and a filter on `error` is how to find it. No text holds bytes of a payload.

    Notes
    -----
    The function gets payloads in no order, and cannot know

    - of every Relation, Type, Truncate and Logical Message, and of a rare Update, whether it was sent inside a stream:
      the bytes of some make sense both ways. Then relations that other rows of the same Arrow batch name decide, or
      else a rule, and the field `xid_basis` (by name only) says "evidence" or "guess". Where you know better, give a
      Column as `in_stream`. Where rows are in slot order, `in_stream="ordered"` finds the state from
      order, in each batch anew. To carry it on, decode file by file with `decode_files(..., in_stream="ordered")`, or
      decode the batches of your own order with a `pgdecode.MessageDecoder`, in `DataFrame.mapInArrow` for instance.
    - the name and the columns of the relation that a row belongs to. `relation_id` is what was sent; the Relation
      message that explains it came before, and the same OID may get other columns later.
    - whether the transaction of a row committed. Streamed rows come before that is decided. Nor is the LSN an order:
      keep the position at which the slot gave each payload, and keep it beside the struct.

    Spark evaluates the function twice where a filter or join uses its result, and what comes after uses it too::

        parsed = df.select("seq", parse_pgoutput("data").alias("m"))
        parsed.where("m.kind = 'insert'").select("m.new")  # once below the filter, once above; "m.*" is no way out

    Let the first evaluation be a cheap one, `df.where(parse_pgoutput("data", fields=["kind"])["kind"] == "insert")`;
    or have Spark look at the first byte, which is the kind: `df.where("substring(data, 1, 1) = X'49'")`; or cache or
    write what was parsed, and filter that. With `in_stream="ordered"` a row depends on its neighbours: the function is
    then declared nondeterministic, is evaluated once, and no filter is pushed below it.

    pgdecode must be installed for the Python of the executors, in the version of the driver.

    Examples
    --------
    >>> df = spark.read.parquet("raw/")  # doctest: +SKIP
    >>> df.select("seq", parse_pgoutput("data").alias("m")).select("seq", "m.*")  # doctest: +SKIP
    """
    if not isinstance(col, Column | str):
        raise TypeError(f"col is a Column or the name of one, not {type(col).__name__}")
    by_row = isinstance(in_stream, Column)
    function = _user_defined(fields, "auto" if isinstance(in_stream, Column) else in_stream, mode, adapter, empty)
    decoded: Column = function(col, in_stream) if by_row else function(col)
    return decoded


def register(
    spark: SparkSession,
    *,
    fields: Iterable[str] | None = None,
    in_stream: InStream | bool | None = "auto",
    mode: RowMode = "FAILFAST",
    adapter: Adapter = "auto",
    empty: Empty = "null",
) -> None:
    """Make `parse_pgoutput` known to SQL: `SELECT parse_pgoutput(data) FROM t`.

    A second argument, where it is given, is a boolean column that says which payloads lie in a stream.

    Parameters
    ----------
    spark : SparkSession
        Where the name is to be known, until the session ends or the name is registered anew.
    fields, in_stream, mode, adapter, empty
        As of `parse_pgoutput`.
    """
    spark.udf.register("parse_pgoutput", _user_defined(fields, in_stream, mode, adapter, empty))


def _user_defined(
    fields: Iterable[str] | None, in_stream: object, mode: RowMode, adapter: Adapter, empty: Empty
) -> Any:
    """Check the options and make the function for Spark that decodes by them."""
    maker = adapter_named(adapter)
    states = stream_option(in_stream, "a boolean Column")
    schema = MessageDecoder(in_stream=states, fields=fields, mode=mode, empty=empty).schema
    options = Options(tuple(schema.names), states, mode, empty)
    function = user_defined(maker, _FUNCTIONS[maker](options), schema)
    return function.asNondeterministic() if states == "ordered" else function
