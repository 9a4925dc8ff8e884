"""Functions of DataFrames: `relation_catalog`, `changes` and `table_changes`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pgdecode import DecodeError, RelationCatalog
from pgdecode.changes.table_rows import versions_of
from pgdecode.partitions.source_index import SourceIndex
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.errors import did_you_mean, listed
from pgdecode.protocol.options import ChangeOptions, Unwrap
from pgdecode.rows.options import Options, with_options
from spark_udfs.dataframes.control_index import (
    IndexedRows,
    index_rows,
    payload_rows,
    relation_catalogs,
    rows_as_of,
)
from spark_udfs.dataframes.frame_options import ChangesKeywords, FrameOptions, TableChangesKeywords
from spark_udfs.dataframes.outputs import ChangeOutput, Output, TableOutput
from spark_udfs.dataframes.partition_worker import ERROR, PackedIndex, PartitionDecodingFunction
from spark_udfs.dataframes.state_before import state_before, with_types
from spark_udfs.dataframes.stored_changes import StoredFunction, stored_rows
from spark_udfs.runtime.session import for_workers
from spark_udfs.schema.spark_types import check_fields, session_has_time, spark_schema
from spark_udfs.schema.years import any_year


def relation_catalog(
    df: DataFrame,
    *,
    payload: Column | str = "data",
    position: Column | str = "seq",
    source: Column | str | None = None,
    unwrap: Unwrap = "auto",
) -> RelationCatalog | dict[Any, RelationCatalog]:
    """Collect all versions of the relations that payloads describe.

    Parameters
    ----------
    df, payload, position, source, unwrap
        As in `changes`. Rows may be in any order.

    Returns
    -------
    RelationCatalog, or dict of RelationCatalog
        With `source`, one catalog for each of its values, because OIDs differ between databases.

    Raises
    ------
    DecodeError
        For a bad payload, with its position.

    Notes
    -----
    The function reads `df` once, immediately. Only the few messages about relations and streams leave the JVM.

    Examples
    --------
    >>> raw = spark.read.parquet("tests/data/16.shop.v1.parquet")
    >>> spark_udfs.relation_catalog(raw)
    RelationCatalog(4 relations, 8 versions)
    """
    rows, _ = payload_rows(df, payload, position, source, unwrap=unwrap)
    catalogs = relation_catalogs(rows)
    return catalogs[None] if source is None else catalogs


@with_options(FrameOptions)
def changes(df: DataFrame, **options: Unpack[ChangesKeywords]) -> DataFrame:
    """Decode payloads to committed changes. The result is that of one `pgdecode.ChangeDecoder` for all payloads.

    Parameters
    ----------
    df : DataFrame
        All payloads, one message per row. Partitions and files do not affect the result, but see Notes.

    Other Parameters
    ----------------
    payload : Column or str
        Binary, tag byte first; or strings. Nulls are ignored.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`. Keepalives are ignored.
    position : Column or str
        Integers that ascend in slot order and are unique in a source. An LSN is not a position.
    source : Column or str, optional
        Identifies the slot (database) of a payload, if there are several: strings, integers, booleans or dates. Each
        source has its own order, streams, transactions and relations.
    catalog : RelationCatalog, or mapping of sources to catalogs, optional
        Relations that the payloads do not describe, because the payloads begin in the middle of a session; with
        `source`, one catalog for each. Versions from positions after the first payload are ignored.
    **options
        As in `pgdecode.ChangeDecoder`. In the mode "FAILFAST", the query fails at a bad payload, with its position.
        `observation` counts what `bad_rows` and `skipped` of a decoder do.
    max_value_bytes : int
        A longer value is bad, as with `pgdecode.Limits`. By default as much as a server can send.
    session : Column or str, optional
        Identifies the connection to the server: strings, integers, booleans, dates or timestamps. When its value
        changes, the server sends unconfirmed transactions again, see `ChangeDecoder.reconnected`.
    state : path or mapping, optional
        The state after the payloads before: the folder of a run, written by any engine, or the `state` of a
        `ChangeDecoder`. Changes of earlier payloads are returned when their transaction ends. The workers read the
        files in the folder. Not with `source`.
    observation : pyspark.sql.Observation, optional
        Receives counts when the result has been computed: `rows`, including bad rows; bad rows by error code, such as
        `TRUNCATED`, including those that "DROPMALFORMED" leaves out; and the transactions `skipped` (without a
        beginning, see `start`) and `undecided` (without an outcome). Each call needs its own observation.
    fields : iterable of str, optional
        Columns of the result, in this order; by default all. Returning decoded columns to Spark is most of the cost, so
        name only the columns that you need.

    Returns
    -------
    DataFrame
        The source column, if any, then the columns of `ChangeDecoder.decode`. The rows have no order. Apply the changes
        in the order of (commit_position, position). docs/options.md explains why the columns are called `op`
        and not `_op`.

    Raises
    ------
    TypeError
        For a streaming DataFrame, and for columns of other types.
    ValueError
        For options that do not exist, and for null or negative positions.
    RunError
        If the payloads overlap those of the state, or payloads between both are missing. It is a ValueError.
    RunFault
        If the state is damaged, or of another format. It is a ValueError.

    Notes
    -----
    The call itself reads `df` once in the JVM, to find transactions and relations. The driver makes an index of some
    kilobytes from them. The result is lazy. Each time it is computed, it reads `df` again, and each task decodes its
    rows independently, without a shuffle.

    This requires that the rows of each file, or of each partition if the input is not files, are a separate range of
    positions, as capture tools write them. If the rows are in order and without gaps, they are decoded as they are
    read; otherwise each task sorts its rows first. If ranges overlap, for example after a `repartition`, all rows are
    shuffled into ranges.

    `df` must return the same rows in the same partitions each time it is read; otherwise tasks fail. If it does not,
    call `persist()` first.

    Examples
    --------
    >>> found = changes(spark.read.parquet("raw/"))  # doctest: +SKIP
    >>> found.orderBy("commit_position", "position").select("op", "relation_name", "new")  # doctest: +SKIP
    """
    frame, chosen = FrameOptions.split(options)
    found, chosen = indexed_rows(df, frame, chosen)
    return decode_indexed(found, ChangeOutput(chosen), chosen, frame.fields, observation=frame.observation)


@with_options(FrameOptions)
def table_changes(df: DataFrame, relation: str, **options: Unpack[TableChangesKeywords]) -> DataFrame:
    """Decode payloads to the committed changes of one table, as typed columns.

    Parameters
    ----------
    df : DataFrame
        As in `changes`.
    relation : str
        "schema.table".

    Other Parameters
    ----------------
    payload, unwrap, position, source, catalog, session, state, observation, max_value_bytes
        As in `changes`.
    **options
        As in `pgdecode.ChangeDecoder`. A bad payload may be of any table, so in "PERMISSIVE" mode all bad payloads are
        in the result.
    columns, renames
        As in `pgdecode.snapshot`: of this table.
    years : {"1-9999", "any"}
        As in `from_pgoutput`: whether dates and timestamps of other years are unrepresentable, or allowed.
    fields : iterable of str, optional
        As in `changes`. Leave out `_old` if you do not need the old rows.

    Returns
    -------
    DataFrame
        The source column, if any, then the columns of `ChangeDecoder.table`: `_op`, `_position`, `_commit_position`,
        `_xid`, `_commit_lsn`, `_commit_timestamp`, `_old_type`, `_old`, `_unchanged`, `_error`, and the columns of all
        versions of the table. A time of day is a string, or a TIME if the session has this type. The rows have no
        order. Apply the changes in the order of (`_commit_position`, `_position`).

    Raises
    ------
    KeyError
        If neither a payload nor `catalog` describes the table.
    TypeError, ValueError
        As in `changes`.

    Notes
    -----
    As in `changes`.

    Examples
    --------
    >>> orders = table_changes(spark.read.parquet("raw/"), "public.orders")  # doctest: +SKIP
    >>> orders.where("_op = 'delete'").count()  # doctest: +SKIP
    """
    frame, chosen = FrameOptions.split(options, relation)
    passes = any_year(frame.years)
    found, chosen = indexed_rows(df, frame, chosen, tables_of(chosen, relation))
    output = output_of(found.indexes, relation, chosen, passes, session_has_time(df.sparkSession))
    return decode_indexed(found, output, chosen, frame.fields, observation=frame.observation)


def output_of(
    indexes: Sequence[SourceIndex],
    relation: str,
    options: Options,
    passes: bool,
    has_time: bool,
) -> TableOutput:
    """Make the `TableOutput` of a table. `passes` allows all years; `has_time` uses TIME instead of strings.

    Raises
    ------
    KeyError
        If no message describes the table, or several tables can be meant.
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
    sources = tuple(item.source for item in indexes for _ in numbers[item.source])
    if not versions:
        names = [*dict.fromkeys(name for item in indexes for name in item.index.catalog.names)]
        hint = did_you_mean(str(relation), names)
        raise KeyError(f"no message has described {relation!r}{hint}; there are {listed(names)}")
    for item in indexes:
        options.check_names(item.index.catalog.names)
    return TableOutput(tuple(versions), numbers, options, passes, has_time, others=others, sources=sources)


def tables_of(options: ChangeOptions, *relations: str) -> tuple[str, ...]:
    """List the tables whose `shape` must be exact. With `include_uncommitted`, all versions determine the columns."""
    return () if options.include_uncommitted else relations


def indexed_rows(
    df: DataFrame,
    frame: FrameOptions,
    options: Options,
    tables: Collection[str] | None = (),
) -> tuple[IndexedRows, Options]:
    """Check the options, and index the rows of a DataFrame. The index has the exact shape of `tables`.

    Return also the options with the types that the state has.
    """
    before = state_before(frame.state, frame.source, frame.catalog)
    catalog, source = frame.catalog, frame.source
    if catalog is not None and isinstance(catalog, RelationCatalog) == (source is not None):
        raise TypeError("catalog is a RelationCatalog, or with source= a mapping of sources to catalogs")
    rows, name = payload_rows(df, frame.payload, frame.position, source, frame.session, frame.unwrap)
    rows = rows_as_of(rows, AsOf.of(options.as_of), has_source=source is not None)
    with_state = replace(options, types=with_types(before, options.types))
    return index_rows(rows, name, catalog, with_state, tables, before), with_state


def decode_indexed(
    found: IndexedRows,
    output: Output,
    options: ChangeOptions,
    fields: Iterable[str] | None,
    observation: Observation | None = None,
) -> DataFrame:
    """Decode indexed rows."""
    names = check_fields(fields, output.schema.names)
    schema = spark_schema(output.schema, with_metadata=True)
    columns = [schema[name] for name in names]
    if found.source is not None:
        if found.source in names:
            raise ValueError(f"source: a decoded column has the name {found.source!r}; give it an alias")
        given = found.rows.schema["source"]
        columns.insert(0, StructField(found.source, given.dataType, given.nullable))
    drops_bad = options.mode == "DROPMALFORMED"
    if observation is not None:
        columns.append(StructField(ERROR, StringType()))
        # Bad rows must be counted before they are dropped.
        options = replace(options, mode="PERMISSIVE") if drops_bad else options
    indexes = tuple(PackedIndex.of(item.source, item.index, item.counts) for item in found.indexes)
    function = PartitionDecodingFunction(indexes, output, options, names, found.source, observation is not None)
    with for_workers():
        made = found.rows.mapInArrow(function, StructType(columns))
    if found.stored:
        made = made.union(stored_rows(made.sparkSession, StoredFunction(function, found.stored), columns))
    return made if observation is None else count_bad_rows(made, ERROR, observation, drops_bad, found).drop(ERROR)


def count_bad_rows(
    rows: DataFrame, error: str, observation: Observation, drops_bad: bool, found: IndexedRows | None = None
) -> DataFrame:
    """Count the bad rows by error code, and drop them with `drops_bad`."""
    code = F.substring_index(F.col(error), " ", 1)
    counts = [F.count(F.when(code == item, 1)).alias(item) for item in codes()]
    indexes = [item.index for item in found.indexes] if found is not None else []
    of_index = {
        "skipped": sum(index.n_skipped for index in indexes),
        "undecided": sum(index.n_undecided for index in indexes),
    }
    # Spark can observe only aggregates. Without rows, the maximum is null.
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
