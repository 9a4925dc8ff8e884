"""What the payloads of a DataFrame must know of each other: one pass in the JVM, folded into an index on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode import DecodeError, RelationCatalog
from pgdecode.runs import AT_THE_ENDS, EVERYWHERE, ROWS, Run, RunIndex, index_runs

# What makes a catalog.
_OF_RELATIONS = b"SEcApRY"
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_SOURCES = (*_INTEGERS, T.StringType, T.BooleanType, T.DateType)
# In the ranges of positions into which rows are brought that lie in no order. Spark groups by some hundred of them
# without sorting.
_ROWS_PER_RANGE = 100_000
_MOST_RANGES = 1024


@dataclass(frozen=True)
class SourceIndex:
    """The runs of one source.

    Attributes
    ----------
    source : object
        Value of the source column, None where there is no such column.
    index : RunIndex
    counts : tuple of int
        Rows in each run.
    may_move : bool
        Whether an update may be among them that changes the key of its row.
    """

    source: Any
    index: RunIndex
    counts: tuple[int, ...]
    may_move: bool


@dataclass(frozen=True)
class Indexed:
    """Rows that can be decoded apart.

    Attributes
    ----------
    rows : DataFrame
        position, payload and, where there is one, source; each run lies in one partition, in ascending order and
        without rows of others between.
    indexes : tuple of SourceIndex
        One for each source.
    source : str or None
        The column's name.
    """

    rows: DataFrame
    indexes: tuple[SourceIndex, ...]
    source: str | None


def payload_rows(
    df: DataFrame, payload: Column | str, position: Column | str, source: Column | str | None
) -> tuple[DataFrame, str | None]:
    """Select position (bigint), payload and source, under these names; and say what the source's was.

    Raises
    ------
    TypeError
        If the DataFrame is a stream or a column is of another type.
    """
    if df.isStreaming:
        raise TypeError(
            "a streaming DataFrame has no end, so that the outcome of a transaction may be beyond it: read the rows as "
            "a batch, or decode them in order with pgdecode.ChangeDecoder, which carries its state along"
        )
    given = df.select(*(_column(item) for item in (position, payload, source) if item is not None))
    kinds = [(field.name, field.dataType) for field in given.schema.fields]
    wanted = ((_INTEGERS, "integers"), ((T.BinaryType,), "binary"), (_SOURCES, "strings, integers, booleans or dates"))
    for word, (name, kind), (types, said) in zip(("position", "payload", "source"), kinds, wanted, strict=False):
        if not isinstance(kind, types):
            raise TypeError(f"{word} is a column of {said}, {name!r} is {kind.simpleString()}")
    rows = given.toDF("position", "payload", "source") if source is not None else given.toDF("position", "payload")
    return rows.withColumn("position", F.col("position").cast("bigint")), kinds[2][0] if source is not None else None


def _column(item: Column | str) -> Column:
    return F.col(item) if isinstance(item, str) else item


def relation_catalogs(rows: DataFrame) -> dict[Any, RelationCatalog]:
    """Collect the relations of each source."""
    tag = F.substring("payload", 1, 1)
    found = rows.where(tag.isin(_bytes(_OF_RELATIONS))).toArrow()
    catalogs = {}
    for source, places in _by_source(found).items():
        messages = _in_order(found.take(places))
        try:
            catalogs[source] = RelationCatalog.from_messages(messages["payload"], messages["position"])
        except DecodeError as error:
            raise error if error.row is None else error.at_position(messages["position"][error.row].as_py()) from None
    return catalogs


def indexed(
    rows: DataFrame, source: str | None, catalog: RelationCatalog | Mapping[Any, RelationCatalog] | None
) -> Indexed:
    """Find the runs in rows, and what they must know of each other.

    Parameters
    ----------
    rows : DataFrame
        As `payload_rows` gives it.
    source : str or None
        Name of the source column, where there is one.
    catalog : RelationCatalog, or mapping of sources to such, optional
        Relations that the payloads do not describe.

    Raises
    ------
    ValueError
        If positions are null or negative.
    """
    by_source = [] if source is None else ["source"]
    spread = rows
    runs = _runs_of_partitions(rows, by_source)
    _check_positions(runs)
    if _overlap(runs):
        bounds = _bounds(rows, pc.sum(runs["n"]).as_py())
        ranged = rows.withColumn("range", _range(bounds))
        runs = _grouped(ranged, ["range", *by_source])
        spread = ranged.repartition("range", *by_source).drop("range").sortWithinPartitions(*by_source, "position")
    elif not pc.all(runs["is_dense"]).as_py():
        spread = rows.sortWithinPartitions(*by_source, "position")
    messages = _messages(rows, runs)
    places_of = _by_source(messages)
    nothing = pa.array([], pa.int64())
    catalogs = {None: catalog} if catalog is None or isinstance(catalog, RelationCatalog) else catalog
    indexes = tuple(
        source_index(item, runs.take(places), messages.take(places_of.get(item, nothing)), catalogs.get(item))
        for item, places in sorted(_by_source(runs).items(), key=lambda entry: (entry[0] is not None, entry[0]))
    )
    return Indexed(spread, indexes, source)


# -- in the JVM ------------------------------------------------------------------------------------------------------


def _runs_of_partitions(rows: DataFrame, by_source: Sequence[str]) -> pa.Table:
    """Collect the groups of rows that a task reads from one piece of a file, or from what is no file."""
    # Rows that came from this process are projected by the optimizer, as if all were in partition 0, unless something
    # stands between: here a sample of all of them.
    numbered = rows.sample(withReplacement=False, fraction=1.0, seed=0).withColumn("partition", F.spark_partition_id())
    # Distances from place to position: the same for all rows of a group without gaps that lies in order. Without the
    # number of the partition, which is in the upper bits, for the numbers must not overflow.
    placed = numbered.withColumn(
        "distance", F.col("position") - F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))
    )
    # A number for each piece of a file; where two have the same, they make one run, which is as well.
    piece = F.xxhash64(F.input_file_name(), F.expr("input_file_block_start()"))
    try:
        return _grouped(placed.withColumn("piece", piece), ["partition", "piece", *by_source])
    except AnalysisException as error:
        if error.getCondition() != "MULTI_SOURCES_UNSUPPORTED_FOR_EXPRESSION":
            raise
        # A union or join of several reads.
        return _grouped(placed, ["partition", *by_source])


def _grouped(rows: DataFrame, keys: Sequence[str]) -> pa.Table:
    """Collect what is to be known of each group of rows: numbers, which Spark aggregates far faster than others."""
    tag = F.substring("payload", 1, 1)
    at_end = F.when(tag.isin(_bytes(AT_THE_ENDS)), F.col("position"))
    # Of an update, the tag of its first tuple: outside a stream and inside.
    starts_with_key = (F.substring("payload", 6, 1) == F.lit(b"K")) | (F.substring("payload", 10, 1) == F.lit(b"K"))
    wanted = [
        F.count("*").alias("n"),
        F.count("position").alias("n_positions"),
        F.min("position").alias("first"),
        F.max("position").alias("last"),
        F.coalesce(F.max(tag.isin(_bytes(ROWS))), F.lit(False)).alias("has_rows"),
        F.coalesce(F.max((tag == F.lit(b"U")) & starts_with_key), F.lit(False)).alias("may_move"),
        F.min(at_end).alias("first_end"),
        F.max(at_end).alias("last_end"),
    ]
    if "distance" in rows.columns:
        in_order = F.min("distance") == F.max("distance")
        without_gaps = F.max("position") - F.min("position") == F.count("*") - 1
        wanted.append((in_order & without_gaps).alias("is_dense"))
    return rows.groupBy(*keys).agg(*wanted).drop("partition", "piece", "range").toArrow()


def _messages(rows: DataFrame, runs: pa.Table) -> pa.Table:
    """Collect the messages that `index_runs` needs."""
    ends = {position for name in ("first_end", "last_end") for position in runs[name].to_pylist()} - {None}
    tag = F.substring("payload", 1, 1)
    is_end = tag.isin(_bytes(AT_THE_ENDS)) & F.col("position").isin(sorted(ends))
    return rows.where(tag.isin(_bytes(EVERYWHERE)) | is_end).toArrow()


def _bytes(tags: bytes) -> list[Column]:
    return [F.lit(bytes([tag])) for tag in tags]


def _bounds(rows: DataFrame, n_rows: int) -> list[int]:
    """Choose where ranges of positions begin, such that about as many rows lie in each."""
    n = min(1 + n_rows // _ROWS_PER_RANGE, _MOST_RANGES)
    if n == 1:
        return []
    shares = [place / n for place in range(1, n)]
    row = rows.agg(F.percentile_approx("position", shares, 10 * n)).first()
    return sorted(set((row and row[0]) or ()))


def _range(bounds: Sequence[int]) -> Column:
    """Give the number of the range that a position lies in, found by halving."""

    def among(first: int, last: int) -> Column:
        if first == last:
            return F.lit(first)
        middle = (first + last) // 2
        return F.when(F.col("position") < F.lit(bounds[middle]), among(first, middle)).otherwise(
            among(middle + 1, last)
        )

    return among(0, len(bounds))


# -- on the driver ---------------------------------------------------------------------------------------------------


def _check_positions(found: pa.Table) -> None:
    n_nulls = pc.sum(pc.subtract(found["n"], found["n_positions"])).as_py()
    if n_nulls:
        raise ValueError(f"position is null in {n_nulls} rows: it tells the order in which the slot gave the payloads")
    first = pc.min(found["first"]).as_py()
    if first is not None and first < 0:
        raise ValueError(f"position {first} is negative")


def _by_source(found: pa.Table) -> dict[Any, pa.Array]:
    """Places of each source's rows."""
    if "source" not in found.column_names:
        return {None: pa.array(range(len(found)), pa.int64())}
    places: dict[Any, list[int]] = {}
    for place, source in enumerate(found["source"].to_pylist()):
        places.setdefault(source, []).append(place)
    return {source: pa.array(numbers, pa.int64()) for source, numbers in places.items()}


def _overlap(found: pa.Table) -> bool:
    """Whether runs of a source reach into each other."""
    for places in _by_source(found).values():
        ends = sorted(zip(*(found[name].take(places).to_pylist() for name in ("first", "last")), strict=True))
        if any(before[1] >= after[0] for before, after in pairwise(ends)):
            return True
    return False


def _in_order(messages: pa.Table) -> pa.Table:
    """Sort messages; one that is there twice comes once."""
    ordered = messages.sort_by("position").combine_chunks()
    positions = ordered["position"]
    if len(positions) < 2:
        return ordered
    is_new = pc.not_equal(positions.slice(1), positions.slice(0, len(positions) - 1))
    return ordered.filter(pa.chunked_array([pa.array([True]), *is_new.chunks]))


def source_index(source: Any, found: pa.Table, messages: pa.Table, catalog: RelationCatalog | None) -> SourceIndex:
    """Fold what was collected of one source.

    Parameters
    ----------
    source : object
        Value of the source column, None where there is no such column.
    found : pa.Table
        Of each run: `first`, `last` (positions), `has_rows`, `n` (rows), `may_move`.
    messages : pa.Table
        `position` and `payload` of the messages that `index_runs` needs, in any order.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe.
    """
    found = found.sort_by("first")
    messages = _in_order(messages)
    runs = [Run(*row.values()) for row in found.select(["first", "last", "has_rows"]).to_pylist()]
    index = index_runs(messages["payload"], messages["position"].combine_chunks(), runs, catalog=catalog)
    return SourceIndex(source, index, tuple(found["n"].to_pylist()), pc.any(found["may_move"]).as_py() is True)
