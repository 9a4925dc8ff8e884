"""Functions of DataFrames: `relation_catalog`, `changes` and `table_changes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from pgdecode import RelationCatalog
from pgdecode.batches import MODES
from pgdecode.errors import listed
from pgdecode.ledger import Options
from pgdecode.readings import Reading
from pgdecode.tables import versions_of
from spark_udfs.index import Indexed, SourceIndex, indexed, payload_rows, relation_catalogs
from spark_udfs.products import AllChanges, Product, TableChanges
from spark_udfs.runs import PlainIndex, RunFunction
from spark_udfs.schemas import session_has_time, spark_schema
from spark_udfs.session import pandas_not_minded
from spark_udfs.years import any_year

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
    mode: str = "FAILFAST",
    include_uncommitted: bool = False,
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
        The columns of `ChangeDecoder.decode`, after that of the source where there is one. (commit_position, position)
        is the order in which to apply changes; the rows come in no order.

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
    options = options_of(mode, include_uncommitted)
    reading = Reading(types, encoding=encoding, datestyle=datestyle)
    found = indexed_rows(df, payload, position, source, catalog)
    return decoded(found, AllChanges(reading), options, fields)


def table_changes(
    df: DataFrame,
    relation: str,
    *,
    payload: Column | str = "data",
    position: Column | str = "seq",
    source: Column | str | None = None,
    catalog: Catalogs | None = None,
    mode: str = "FAILFAST",
    include_uncommitted: bool = False,
    types: Mapping[str | int, str] | None = None,
    unrepresentable: str = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    years: str = "1-9999",
    fields: Iterable[str] | None = None,
) -> DataFrame:
    """Decode payloads into the committed changes of one table, as typed columns.

    Parameters
    ----------
    df, payload, position, source, catalog, mode, include_uncommitted, types, encoding, datestyle
        As of `changes`. A bad payload may be of any table, and is a row of the result in "PERMISSIVE" mode.
    relation : str
        "schema.table".
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
    options = options_of(mode, include_uncommitted)
    reading = Reading(types, unrepresentable, encoding, datestyle)
    passes = any_year(years)
    found = indexed_rows(df, payload, position, source, catalog)
    has_time = session_has_time(df.sparkSession)
    return decoded(found, product_of(found.indexes, relation, options, reading, passes, has_time), options, fields)


def product_of(
    indexes: Sequence[SourceIndex], relation: str, options: Options, reading: Reading, passes: bool, has_time: bool
) -> TableChanges:
    """Say how the changes of a table are made; `passes` lets any year pass, `has_time` gives TIME and not strings.

    Raises
    ------
    KeyError
        If nothing describes the table.
    """
    numbers = {
        item.source: tuple(versions_of(item.index.catalog, relation, everything=options.include_uncommitted))
        for item in indexes
    }
    versions = [list(item.index.catalog)[number] for item in indexes for number in numbers[item.source]]
    if not versions:
        names = dict.fromkeys(name for item in indexes for name in item.index.catalog.names)
        raise KeyError(f"no message has described {relation!r}; there are {listed(names)}")
    return TableChanges(tuple(versions), numbers, reading, passes, has_time)


def options_of(mode: str, include_uncommitted: bool) -> Options:
    """Check how changes are asked for."""
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    return Options(mode, include_uncommitted)


def indexed_rows(
    df: DataFrame,
    payload: Column | str,
    position: Column | str,
    source: Column | str | None,
    catalog: Catalogs | None,
) -> Indexed:
    """Find the runs among the rows of a DataFrame."""
    if catalog is not None and isinstance(catalog, RelationCatalog) == (source is not None):
        raise TypeError("catalog is a RelationCatalog, or where there is a source, a mapping of sources to such")
    rows, name = payload_rows(df, payload, position, source)
    return indexed(rows, name, catalog)


def decoded(
    found: Indexed, product: Product, options: Options, fields: Iterable[str] | None, format: str = "parquet"
) -> DataFrame:
    """Have the tasks decode what was indexed, to columns, to columns of text ("csv") or to lines ("jsonl")."""
    names = named(fields, product.schema.names)
    schema = spark_schema(product.schema)
    columns = [schema[name] for name in names]
    if format != "parquet":
        texts = names if format == "csv" else ["value"]
        columns = [StructField(name, StringType()) for name in texts]
    if found.source is not None:
        if found.source in names:
            raise ValueError(f"source: a decoded column has the name {found.source!r}; give it an alias")
        given = found.rows.schema["source"]
        columns.insert(0, StructField(found.source, given.dataType, given.nullable))
    indexes = tuple(PlainIndex.of(item.source, item.index, item.counts) for item in found.indexes)
    function = RunFunction(indexes, product, options, names, found.source, format)
    with pandas_not_minded():
        return found.rows.mapInArrow(function, StructType(columns))


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
