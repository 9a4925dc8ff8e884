"""Functions of DataFrames: `relation_catalog`, `changes` and `table_changes`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pgdecode import DecodeError, RelationCatalog
from pgdecode.changes.table_rows import versions_of
from pgdecode.protocol.errors import listed
from pgdecode.protocol.options import ChangeOptions, Empty, Format, Mode, Start, UnrepresentableValues
from pgdecode.rows.value_options import ValueOptions
from spark_udfs.dataframes.control_index import Indexed, SourceIndex, indexed, payload_rows, relation_catalogs
from spark_udfs.dataframes.outputs import ChangeOutput, Output, TableOutput
from spark_udfs.dataframes.partition_worker import JsonIndex, PartitionDecodingFunction
from spark_udfs.runtime.session import pandas_not_minded
from spark_udfs.runtime.worker import ERROR
from spark_udfs.schema.spark_types import session_has_time, spark_schema
from spark_udfs.schema.years import Years, any_year

Catalogs = RelationCatalog | Mapping[Any, RelationCatalog]


def relation_catalog(
    df: DataFrame,
    *,
    payload: Column | str = "data",
    position: Column | str = "seq",
    source: Column | str | None = None,
) -> RelationCatalog | dict[Any, RelationCatalog]:
    """Collect the relations that payloads describe, every version of each.

    Parameters
    ----------
    df, payload, position, source
        As of `changes`; in any order.

    Returns
    -------
    RelationCatalog, or dict of RelationCatalog
        With `source`, one for each of its values: an OID means another table in another database.

    Raises
    ------
    DecodeError
        For a bad payload, with its position.

    Notes
    -----
    Reads `df` once, in the JVM, when it is called; only the few messages about relations and streams leave it.
    """
    rows, _ = payload_rows(df, payload, position, source)
    catalogs = relation_catalogs(rows)
    return catalogs[None] if source is None else catalogs


def changes(
    df: DataFrame,
    *,
    payload: Column | str = "data",
    position: Column | str = "seq",
    source: Column | str | None = None,
    catalog: Catalogs | None = None,
    mode: Mode = "FAILFAST",
    include_uncommitted: bool = False,
    start: Start = "transaction",
    empty: Empty = "null",
    session: Column | str | None = None,
    observation: Observation | None = None,
    types: Mapping[str | int, str] | None = None,
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    fields: Iterable[str] | None = None,
) -> DataFrame:
    """Decode payloads into committed changes: what `pgdecode.ChangeDecoder` gives for all of them in their order.

    Parameters
    ----------
    df : DataFrame
        All payloads, one message per row. How they are spread over partitions and files makes no difference to the
        result, but see Notes.
    payload : Column or str
        Binary, tag byte first. Nulls are passed over.
    position : Column or str
        Integers that ascend as the slot gave the payloads, no two the same in one source. An LSN is no such order.
    source : Column or str, optional
        What tells slots (databases) apart, where the payloads are of several: strings, integers, booleans or dates.
        Order, streams, transactions and relations are then each source's own.
    catalog : RelationCatalog, or mapping of sources to such, optional
        Relations that the payloads do not describe, because they begin mid-stream; with `source`, one for each.
        Versions from later positions than the first payload's do not count.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Fail the query at a bad payload, naming its position; or keep it as a row that says why in `error`; or leave it
        out.
    include_uncommitted : bool
        Give also the changes that were rolled back (`committed` false) or lost their end (null).
    start : {"transaction", "anywhere"}
        Where the payloads begin. By default between transactions: what belongs to one whose beginning is missing is an
        error. With "anywhere" such transactions are left out whole; an `observation` says how many.
    empty : {"null", "error"}
        What to make of payloads of no bytes, which servers send for an origin without a name: pass them over, or refuse
        them.
    session : Column or str, optional
        What tells one connection to the server from the next: strings, integers, booleans, dates or timestamps. Where
        its value is another than at the position before, the server has begun again what was not confirmed, as
        `ChangeDecoder.reconnected` says.
    observation : pyspark.sql.Observation, optional
        Gets counts when the result has been computed: `rows`, bad ones among them; the bad rows by the code of their
        error, such as `TRUNCATED`, also those that "DROPMALFORMED" leaves out; and of transactions, `skipped` (without
        their beginning, by `start`) and `undecided` (without an outcome). One for each call.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        What types are that the stream does not describe, as for `pgdecode.decode_rows`.
    encoding, datestyle : str
        client_encoding and DateStyle of the session that captured the payloads, as for `pgdecode.decode_rows`.
    fields : iterable of str, optional
        Columns of the result, in the order wanted; by default all. To bring decoded columns back to Spark is most of
        the cost: name what you need.

    Returns
    -------
    DataFrame
        The columns of `ChangeDecoder.decode`, after that of the source where there is one. Apply changes in the order
        of (commit_position, position); the rows come in no order. docs/options.md explains why the columns are called
        `op` and not `_op`.

    Raises
    ------
    TypeError
        For a streaming DataFrame, and for columns of other types.
    ValueError
        For options that do not exist, and null or negative positions.

    Notes
    -----
    What payloads must know of each other, transactions and relations, takes a pass over `df` in the JVM when the
    function is called. It is folded into an index of some kilobytes on the driver. The result is lazy, and reads `df`
    again, each time: each task then decodes its rows alone, without a shuffle.

    That works where the rows of each file, or of each partition of what is no file, are a range of positions of their
    own, as capture tools write them. If they lie in order and without gaps, they are decoded as they are read; else
    each task sorts its rows first. Where ranges overlap, as after a `repartition`, rows are shuffled into ranges,
    payloads and all.

    `df` must give the same rows in the same partitions each time it is read, and a task that finds others fails;
    `persist()` what is not so.

    Examples
    --------
    >>> found = changes(spark.read.parquet("raw/"))  # doctest: +SKIP
    >>> found.orderBy("commit_position", "position").select("op", "relation_name", "new")  # doctest: +SKIP
    """
    options = ChangeOptions(mode, include_uncommitted, start=start, empty=empty)
    value_options = ValueOptions(types, encoding=encoding, datestyle=datestyle)
    found = indexed_rows(df, payload, position, source, catalog, session, options)
    return decoded(found, ChangeOutput(value_options), options, fields, observation=observation)


def table_changes(
    df: DataFrame,
    relation: str,
    *,
    payload: Column | str = "data",
    position: Column | str = "seq",
    source: Column | str | None = None,
    catalog: Catalogs | None = None,
    mode: Mode = "FAILFAST",
    include_uncommitted: bool = False,
    start: Start = "transaction",
    empty: Empty = "null",
    session: Column | str | None = None,
    observation: Observation | None = None,
    types: Mapping[str | int, str] | None = None,
    columns: Mapping[str, str] | None = None,
    unrepresentable: UnrepresentableValues = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    years: Years = "1-9999",
    fields: Iterable[str] | None = None,
) -> DataFrame:
    """Decode payloads into the committed changes of one table, as typed columns.

    Parameters
    ----------
    df, payload, position, source, catalog, mode, include_uncommitted, start, empty, session, observation, types, \
    encoding, datestyle
        As of `changes`. A bad payload may be of any table, and is a row of the result in "PERMISSIVE" mode.
    relation : str
        "schema.table".
    columns : mapping of a column's name to a PostgreSQL type, optional
        Types of columns of the table, before `types`, as for `pgdecode.decode_rows`: {"price": "numeric(20,4)"}.
    unrepresentable : {"error", "null", "clamp", "text"}
        What to make of a value that PostgreSQL has and the column's type has not, as for `pgdecode.decode_rows`.
    years : {"1-9999", "any"}
        As of `from_pgoutput`: dates and timestamps of other years are not representable, or pass.
    fields : iterable of str, optional
        As of `changes`; leave out `_old` where the old rows are not needed.

    Returns
    -------
    DataFrame
        The columns of `ChangeDecoder.table`, after that of the source where there is one: `_op`, `_position`,
        `_commit_position`, `_xid`, `_commit_lsn`, `_commit_timestamp`, `_old_type`, `_old`, `_unchanged`, `_error`,
        and the table's, over all its versions. A time of day is a string, or a TIME where the session has that type.
        (`_commit_position`, `_position`) is the order in which to apply changes; the rows come in no order.

    Raises
    ------
    KeyError
        If neither a payload nor `catalog` describes the table.
    TypeError, ValueError
        As of `changes`.

    Notes
    -----
    As of `changes`.

    Examples
    --------
    >>> orders = table_changes(spark.read.parquet("raw/"), "public.orders")  # doctest: +SKIP
    >>> orders.where("_op = 'delete'").count()  # doctest: +SKIP
    """
    options = ChangeOptions(mode, include_uncommitted, start=start, empty=empty)
    value_options = ValueOptions(types, unrepresentable, encoding, datestyle, {relation: columns or {}})
    passes = any_year(years)
    found = indexed_rows(df, payload, position, source, catalog, session, options, tables_of(options, relation))
    has_time = session_has_time(df.sparkSession)
    output = output_of(found.indexes, relation, options, value_options, passes, has_time)
    return decoded(found, output, options, fields, observation=observation)


def output_of(
    indexes: Sequence[SourceIndex],
    relation: str,
    options: ChangeOptions,
    value_options: ValueOptions,
    passes: bool,
    has_time: bool,
) -> TableOutput:
    """Say how the changes of a table are made; `passes` lets any year pass, `has_time` gives TIME and not strings.

    Raises
    ------
    KeyError
        If nothing describes the table.
    """
    everything = {item.source: tuple(versions_of(item.index.catalog, relation)) for item in indexes}
    numbers, others = everything, {}
    if not options.include_uncommitted:
        numbers = {item.source: tuple(versions_of(item.index.catalog, relation, item.index.shape)) for item in indexes}
        others = {
            source: tuple(number for number in found if number not in numbers[source])
            for source, found in everything.items()
        }
    versions = [list(item.index.catalog)[number] for item in indexes for number in numbers[item.source]]
    if not versions:
        names = dict.fromkeys(name for item in indexes for name in item.index.catalog.names)
        raise KeyError(f"no message has described {relation!r}; there are {listed(names)}")
    return TableOutput(tuple(versions), numbers, value_options, passes, has_time, others=others)


def tables_of(options: ChangeOptions, *relations: str) -> tuple[str, ...]:
    """Say of which tables the shape must be known: with all that was not committed, it is that of all versions."""
    return () if options.include_uncommitted else relations


def indexed_rows(
    df: DataFrame,
    payload: Column | str,
    position: Column | str,
    source: Column | str | None,
    catalog: Catalogs | None,
    session: Column | str | None,
    options: ChangeOptions,
    tables: Collection[str] = (),
) -> Indexed:
    """Find the runs among the rows of a DataFrame; the shapes of some tables are to be exact."""
    if catalog is not None and isinstance(catalog, RelationCatalog) == (source is not None):
        raise TypeError("catalog is a RelationCatalog, or where there is a source, a mapping of sources to such")
    rows, name = payload_rows(df, payload, position, source, session)
    return indexed(rows, name, catalog, options, tables)


def decoded(
    found: Indexed,
    output: Output,
    options: ChangeOptions,
    fields: Iterable[str] | None,
    format: Format = "parquet",
    observation: Observation | None = None,
) -> DataFrame:
    """Have the tasks decode what was indexed, to columns, to columns of text ("csv") or to lines ("jsonl")."""
    names = named(fields, output.schema.names)
    schema = spark_schema(output.schema)
    columns = [schema[name] for name in names]
    if format != "parquet":
        texts = names if format == "csv" else ["value"]
        columns = [StructField(name, StringType()) for name in texts]
    if found.source is not None:
        if found.source in names:
            raise ValueError(f"source: a decoded column has the name {found.source!r}; give it an alias")
        given = found.rows.schema["source"]
        columns.insert(0, StructField(found.source, given.dataType, given.nullable))
    drops_bad = options.mode == "DROPMALFORMED"
    if observation is not None:
        columns.append(StructField(ERROR, StringType()))
        # What is left out must be counted first.
        options = replace(options, mode="PERMISSIVE") if drops_bad else options
    indexes = tuple(JsonIndex.of(item.source, item.index, item.counts) for item in found.indexes)
    function = PartitionDecodingFunction(indexes, output, options, names, found.source, format, observation is not None)
    with pandas_not_minded():
        made = found.rows.mapInArrow(function, StructType(columns))
    return made if observation is None else observed(made, ERROR, observation, drops_bad, found).drop(ERROR)


def observed(
    rows: DataFrame, error: str, observation: Observation, drops_bad: bool, found: Indexed | None = None
) -> DataFrame:
    """Count the bad rows by the code of their error, and leave them out where that is wanted."""
    code = F.substring_index(F.col(error), " ", 1)
    counts = [F.count(F.when(code == item, 1)).alias(item) for item in codes()]
    indexes = [item.index for item in found.indexes] if found is not None else []
    of_index = {
        "skipped": sum(index.n_skipped for index in indexes),
        "undecided": sum(index.n_undecided for index in indexes),
    }
    # Spark observes nothing but aggregates; without rows, the greatest of equal numbers is null.
    known = [F.coalesce(F.max(F.lit(n)), F.lit(n)).alias(name) for name, n in of_index.items()]
    counted = rows.observe(observation, F.count(F.lit(1)).alias("rows"), *known, *counts)
    return counted.where(F.col(error).isNull()) if drops_bad else counted


def codes() -> list[str]:
    """List the codes of all errors."""
    found: set[str] = set()
    below = [DecodeError]
    while below:
        item = below.pop()
        below += item.__subclasses__()
        found.add(item.code)
    return sorted(found - {""})


def named(fields: Iterable[str] | None, there_are: Sequence[str]) -> tuple[str, ...]:
    """Check which columns are asked for; by default all.

    Raises
    ------
    TypeError, ValueError
        If they are not some of those that there are, each once.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields is a sequence of column names, not the string {fields!r}")
    names = tuple(there_are if fields is None else fields)
    unknown = [name for name in names if name not in there_are]
    if unknown:
        raise ValueError(f"no such column: {', '.join(map(repr, unknown))}; there are {', '.join(there_are)}")
    if not names or len(set(names)) != len(names):
        raise ValueError("fields names each column once, and at least one")
    return names
