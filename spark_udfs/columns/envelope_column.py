"""Column functions: `parse_pgoutput` for DataFrames, and its SQL name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from pyspark.sql import Column

from pgdecode import MessageDecoder
from pgdecode.protocol.options import MAX_VALUE_BYTES, limits_with, stream_option
from pgdecode.rows.options import with_options
from spark_udfs.columns.column_options import ColumnOptions, EnvelopeKeywords
from spark_udfs.columns.udf_adapters import adapter_named, user_defined
from spark_udfs.runtime.worker import FUNCTIONS, Options


@with_options(ColumnOptions)
def parse_pgoutput(col: Column | str, **options: Unpack[EnvelopeKeywords]) -> Column:
    """Decode a column of pgoutput payloads to a struct with the columns of the envelope.

    Parameters
    ----------
    col : Column or str
        Binary, one message per row, tag byte first, or in a form that `unwrap` names; or the name of such a column.

    Other Parameters
    ----------------
    fields : iterable of str, optional
        Fields of the struct, in this order; by default all columns of the envelope,
        `pgdecode.envelope.schema.envelope_schema()`. Returning decoded columns to Spark is most of the cost, so name
        only the fields that you need.
    in_stream : {"auto", "ordered"}, bool or boolean Column
        Which messages were sent inside a stream, where some messages carry the xid of their transaction (protocol
        version 2 and later). "auto": the structure of each payload decides, see Notes. This is the default, because
        Spark passes rows to a function in any order. "ordered" (None means the same): the rows of each Arrow batch are
        in slot order, and their Stream Start and Stream Stop messages decide. True: all; False: none. A boolean Column
        without nulls has the answer for each row.
    mode : {"FAILFAST", "PERMISSIVE"}
        At a bad payload, fail the query, or return a struct with only `error`.
    adapter : {"auto", "arrow", "pandas"}
        "auto" makes an `arrow_udf` if pyspark supports it (4.1 and later), otherwise a `pandas_udf`. Both return the
        same rows; pandas is slower.
    empty : {"null", "error"}
        How to treat a payload of 0 bytes, which servers send for a replication origin without a name: as a struct of
        nulls, or as a bad payload.
    max_value_bytes : int
        A payload with a longer value is bad, as with `pgdecode.Limits`. By default as much as a server can send.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Keepalives become structs of nulls.

    Returns
    -------
    Column
        A struct of the same type for all payloads. A null payload becomes a struct of nulls. LSNs, OIDs and xids are
        bigint.

    Raises
    ------
    TypeError, ValueError
        Immediately, for options that do not exist. At a bad payload, the query fails with the text of a
        `pgdecode.DecodeError`. Its row is counted from the start of the Arrow batch; to find the payload, use
        PERMISSIVE and a filter on `error`. The text has no bytes of the payload.

    Notes
    -----
    The function gets payloads in any order, so it cannot know

    - whether a Relation, Type, Truncate or Logical Message, or in rare cases an Update, was sent inside a stream: some
      bytes can be decoded both ways. In this case the relations in other rows of the same Arrow batch decide, or else a
      rule. The field `xid_basis` (only if named) is then "evidence" or "guess". If you know the stream state, pass a
      Column as `in_stream`. If rows are in slot order, `in_stream="ordered"` finds the state from the order, but starts
      again with each batch. To keep the state between batches, decode whole files with
      `decode_files(..., in_stream="ordered")`, or use a `pgdecode.MessageDecoder`, for example in
      `DataFrame.mapInArrow`.
    - the name and the columns of a row's relation. `relation_id` is the OID that was sent. The Relation message that
      describes it came earlier, and the same OID may get other columns later.
    - whether the transaction of a row was committed. Streamed rows are sent before the commit. The LSN is not an order
      either: keep the position of each payload in slot order beside the struct.

    If a filter or join uses the result, and a later step uses it too, Spark evaluates the function twice::

        parsed = df.select("seq", parse_pgoutput("data").alias("m"))
        parsed.where("m.kind = 'insert'").select("m.new")  # once for the filter, once after it; also with "m.*"

    There are three ways to avoid this cost. Make the first evaluation cheap:
    `df.where(parse_pgoutput("data", fields=["kind"])["kind"] == "insert")`. Or let Spark filter by the first byte,
    which is the kind: `df.where("substring(data, 1, 1) = X'49'")`. Or cache or write the result before you filter it.
    With `in_stream="ordered"`, a row depends on its neighbours. The function is then nondeterministic for Spark, is
    evaluated once, and filters are not pushed below it.

    The Python of the executors needs pgdecode in the same version as the driver.

    Examples
    --------
    >>> df = spark.read.parquet("raw/")  # doctest: +SKIP
    >>> df.select("seq", parse_pgoutput("data").alias("m")).select("seq", "m.*")  # doctest: +SKIP
    """
    if not isinstance(col, Column | str):
        raise TypeError(f"col is a Column or the name of one, not {type(col).__name__}")
    function, by_row = envelope_function(options)
    decoded: Column = function(col, by_row) if by_row is not None else function(col)
    return decoded


def envelope_function(given: Mapping[str, Any]) -> tuple[Any, Column | None]:
    """Check the options, and make the Spark function. Return also the column of stream states, if there is one."""
    options, keywords = ColumnOptions.split(given)
    maker = adapter_named(options.adapter)
    by_row = options.in_stream if isinstance(options.in_stream, Column) else None
    states = stream_option("auto" if by_row is not None else options.in_stream, "a boolean Column")
    limits = limits_with(keywords.pop("max_value_bytes", MAX_VALUE_BYTES))
    mode, empty = keywords.get("mode", "FAILFAST"), keywords.get("empty", "null")
    schema = MessageDecoder(in_stream=states, fields=options.fields, mode=mode, empty=empty).schema
    sent = Options(tuple(schema.names), states, mode, empty, options.unwrap, limits)
    function = user_defined(maker, FUNCTIONS[maker](sent), schema)
    return function.asNondeterministic() if states == "ordered" else function, by_row
