"""Makes the index of a DataFrame of payloads: one pass in the JVM, and the rest on the driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode import DecodeError, RelationCatalog
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.files.ordered_files import session_text
from pgdecode.partitions.source_index import (
    SourceIndex,
    in_order,
    is_enough,
    source_index,
    unused_versions,
    with_used,
)
from pgdecode.payloads.commits import commit_fields
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, DELIMITERS, ROWS, STREAM_AND_TWO_PHASE
from pgdecode.protocol.messages import Begin, Commit, Insert, LogicalMessage, Update
from pgdecode.protocol.options import ChangeOptions, Unwrap
from pgdecode.protocol.wire import MAX_LSN, length_of, offset_of
from spark_udfs.dataframes.control_rows import ControlFunction, UsedFunction
from spark_udfs.dataframes.partition_worker import PackedIndex
from spark_udfs.dataframes.state_before import StateBefore
from spark_udfs.dataframes.stored_changes import StoredPart, stored_parts, used_of_stored
from spark_udfs.dataframes.unwrapped import unwrapped
from spark_udfs.runtime.session import for_workers

# Tags of the messages that are needed to make a catalog.
_OF_RELATIONS = b"SEcApRY"
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_SOURCES = (*_INTEGERS, T.StringType, T.BooleanType, T.DateType)
_SESSIONS = (*_SOURCES, T.TimestampType, T.TimestampNTZType)
# Rows in each range of positions, if rows must be shuffled into ranges. Spark aggregates some hundred groups without
# sorting.
_ROWS_PER_RANGE = 100_000
_MOST_RANGES = 1024
# The greatest number of rows from before the first boundary.
_MOST_HEAD_ROWS = 1000


@dataclass(frozen=True)
class IndexedRows:
    """Rows whose partitions can be decoded independently.

    Attributes
    ----------
    rows : DataFrame
        position, payload and, if any, source. All rows of a partition are consecutive in one Spark partition, in
        ascending order of position.
    indexes : tuple of SourceIndex
        One for each source.
    source : str or None
        Name of the source column.
    stored : tuple of tuple of StoredPart
        Changes from earlier runs that are returned too. Each inner tuple is for one task.
    last_session : str or None
        The last value of the session column, as text.
    before : StateBefore or None
        What is known of the payloads before the rows.
    """

    rows: DataFrame
    indexes: tuple[SourceIndex, ...]
    source: str | None
    stored: tuple[tuple[StoredPart, ...], ...] = ()
    last_session: str | None = None
    before: StateBefore | None = None


def payload_rows(
    df: DataFrame,
    payload: Column | str,
    position: Column | str,
    source: Column | str | None,
    session: Column | str | None = None,
    unwrap: Unwrap = "auto",
) -> tuple[DataFrame, str | None]:
    """Select position (bigint), payload, source and session with these names. Return also the source column's name.

    Raises
    ------
    TypeError
        If the DataFrame is a stream or a column is of another type.
    """
    if df.isStreaming:
        raise TypeError(
            "a streaming DataFrame is not supported, because outcomes of transactions may come later: read the rows as "
            "a batch, or decode them in order with pgdecode.ChangeDecoder, which keeps its state"
        )
    wanted = {
        "position": (position, _INTEGERS, "integers"),
        "payload": (payload, (T.BinaryType, T.StringType, T.NullType), "binary or strings"),
        "source": (source, _SOURCES, "strings, integers, booleans or dates"),
        "session": (session, _SESSIONS, "strings, integers, booleans, dates or timestamps"),
    }
    chosen = {word: item for word, item in wanted.items() if item[0] is not None}
    given = df.select(*(_column(item) for item, _, _ in chosen.values()))  # type: ignore[arg-type]
    fields = given.schema.fields
    # What Parquet calls UINT_64 is a decimal in Spark.
    is_decimal = isinstance(fields[0].dataType, T.DecimalType) and fields[0].dataType.scale == 0
    for (word, (_, types, expected)), field in zip(chosen.items(), fields, strict=True):
        if not isinstance(field.dataType, types) and not (word == "position" and is_decimal):
            raise TypeError(f"{word} is a column of {expected}, {field.name!r} is {field.dataType.simpleString()}")
    # A cast of a decimal that is too large may give another number, so `_check_positions` gets a null.
    rows = given.toDF(*chosen).withColumn("position", F.expr("try_cast(position as bigint)"))
    rows = rows.withColumn("payload", unwrapped(F.col("payload"), fields[1].dataType, unwrap))
    return rows, fields[2].name if source is not None else None


def rows_as_of(rows: DataFrame, as_of: AsOf | None, *, has_source: bool) -> DataFrame:
    """Leave out the rows from the first Begin or commit after `as_of` on, as `until` does.

    Raises
    ------
    ValueError
        For an LSN, if the rows are of several databases.
    """
    if as_of is None:
        return rows
    if as_of.lsn is not None and has_source:
        raise ValueError("as_of is an LSN, but each source has its own LSNs: use a time, or take one source")
    is_after = F.lit(False)
    limit = F.lit(as_of.time_us if as_of.lsn is None else min(as_of.lsn, MAX_LSN))
    for tag, offset, n_bytes in commit_fields(as_of):
        # Two halves, because conv() of 8 bytes is unsigned.
        high, low = (F.conv(F.hex(F.substring("payload", 1 + offset + at, 4)), 16, 10).cast("bigint") for at in (0, 4))
        value = F.shiftleft(high, 32) + low
        is_commit = (F.substring("payload", 1, 1) == F.lit(tag)) & (F.length("payload") >= n_bytes)
        is_after = is_after | F.coalesce(is_commit & (value > limit), F.lit(False))
    by_source = ["source"] if has_source else []
    ends = rows.where(is_after).groupBy(*by_source).agg(F.min("position").alias("end")).toArrow().to_pylist()
    end = F.lit(None).cast("bigint")
    for item in ends:
        of_source = F.col("source").eqNullSafe(F.lit(item["source"])) if has_source else F.lit(True)
        end = F.when(of_source, F.lit(item["end"])).otherwise(end)
    return rows.where(F.col("position").isNull() | end.isNull() | (F.col("position") < end))


def _column(item: Column | str) -> Column:
    return F.col(item) if isinstance(item, str) else item


def relation_catalogs(rows: DataFrame) -> dict[Any, RelationCatalog]:
    """Collect the relation catalog of each source."""
    tag = F.substring("payload", 1, 1)
    found = rows.where(tag.isin(_bytes(_OF_RELATIONS))).toArrow()
    catalogs = {}
    for source, places in _by_source(found).items():
        messages = in_order(found.take(places))
        try:
            catalogs[source] = RelationCatalog.from_messages(messages["payload"], messages["position"])
        except DecodeError as error:
            raise error if error.row is None else error.at_position(messages["position"][error.row].as_py()) from None
    return catalogs


def index_rows(
    rows: DataFrame,
    source: str | None,
    catalog: RelationCatalog | Mapping[Any, RelationCatalog] | None,
    options: ChangeOptions,
    tables: Collection[str] | None = (),
    before: StateBefore | None = None,
) -> IndexedRows:
    """Find the partitions in rows, and make the index.

    Parameters
    ----------
    rows : DataFrame
        The result of `payload_rows`.
    source : str or None
        Name of the source column.
    catalog : RelationCatalog, or mapping of sources to catalogs, optional
        Relations that the payloads do not describe.
    options : ChangeOptions
    tables : collection of str or None
        Tables whose shape must be exact, as "schema.table". None: those of all tables, and the state after the rows.
    before : StateBefore, optional
        What is known of the payloads before the rows.

    Raises
    ------
    ValueError
        If positions are null or negative, or do not follow the payloads before.
    """
    by_source = [] if source is None else ["source"]
    by_session = ["session"] if "session" in rows.columns else []
    sorted_rows = rows
    partitions = _statistics_of_partitions(rows, [*by_source, *by_session])
    _check_positions(partitions)
    if _overlap(partitions):
        bounds = _bounds(rows, pc.sum(partitions["n"]).as_py())
        ranged = rows.withColumn("range", _range(bounds))
        partitions = _aggregate(ranged, ["range", *by_source, *by_session])
        if by_session and _overlap(partitions):
            # A session's value occurs again later, such as the number of a process.
            partitions = _aggregate(
                _with_session_numbers(ranged, by_source), ["range", *by_source, *by_session, "session_number"]
            )
        sorted_rows = ranged.repartition("range", *by_source).drop("range").sortWithinPartitions(*by_source, "position")
    elif not pc.all(partitions["is_dense"]).as_py():
        sorted_rows = rows.sortWithinPartitions(*by_source, "position")
    sorted_rows = sorted_rows.drop("session")
    catalogs = {None: catalog} if catalog is None or isinstance(catalog, RelationCatalog) else catalog
    state, last_session = None, None
    if before is not None:
        before.check(
            pc.min(partitions["first"]).as_py(),
            pc.max(partitions["last"]).as_py(),
            pc.sum(partitions["n"]).as_py() or 0,
        )
        state = before.replication
    if by_session and not by_source and len(partitions):
        sessions = partitions.sort_by("first")["session"]
        state = in_session(state, None if before is None else before.stored.session, sessions[0].as_py())
        last_session = session_text(sessions[-1].as_py())
    in_full = bool(pc.any(partitions["has_apart"]).as_py()) or options.drop_duplicates or tables is None
    in_full = in_full or (state is not None and bool(state.streamed))
    known = frozenset() if state is None else frozenset(state.relations.in_layout)
    indexes = _indexes(rows, sorted_rows, partitions, catalogs, options, in_full, state)
    if not in_full and not all(is_enough(item, tables, known) for item in indexes):
        indexes = _indexes(rows, sorted_rows, partitions, catalogs, options, True, state)
    stored = tuple(part for item in indexes for part in stored_parts(state, item.index, options))
    uncertain = {item.source: unused_versions(item.index, tables) for item in indexes}
    if any(uncertain.values()):
        indexes = _with_used(sorted_rows, indexes, uncertain, options, stored)
    return IndexedRows(sorted_rows, indexes, source, stored, last_session, before)


def _indexes(
    rows: DataFrame,
    sorted_rows: DataFrame,
    partitions: pa.Table,
    catalogs: Mapping[Any, RelationCatalog | None],
    options: ChangeOptions,
    in_full: bool,
    state: ReplicationState | None,
) -> tuple[SourceIndex, ...]:
    """Collect the messages for the indexes of all sources, and make the indexes."""
    messages = _all_messages(sorted_rows, partitions) if in_full else _messages(rows, partitions)
    head = _head_rows(rows, partitions) if in_full or options.start == "anywhere" else None
    if head is not None:
        messages = pa.concat_tables([messages, head.cast(messages.schema)])
    places_of = _by_source(messages)
    nothing = pa.array([], pa.int64())
    return tuple(
        source_index(
            item,
            partitions.take(places),
            messages.take(places_of.get(item, nothing)),
            catalogs.get(item),
            options,
            in_full=in_full,
            state=state,
        )
        for item, places in sorted(_by_source(partitions).items(), key=lambda entry: (entry[0] is not None, entry[0]))
    )


def in_session(state: ReplicationState | None, before: str | None, first: Any) -> ReplicationState | None:
    """Note in a state whether the first payload after it comes from another session than the last one before."""
    if state is None or before is None or session_text(first) == before:
        return state
    return replace(state, is_reconnected=True)


def _with_used(
    sorted_rows: DataFrame,
    indexes: Sequence[SourceIndex],
    uncertain: Mapping[Any, frozenset[int]],
    options: ChangeOptions,
    stored: Sequence[tuple[StoredPart, ...]],
) -> tuple[SourceIndex, ...]:
    """Find which of the uncertain versions committed rows use, and add them to the indexes."""
    relation_ids = {
        list(item.index.catalog)[number].relation_id for item in indexes for number in uncertain[item.source]
    }
    oids = [F.lit(oid.to_bytes(4, "big")) for oid in relation_ids]
    tag = F.substring("payload", 1, 1)
    is_row = tag.isin(_bytes(b"IUD"))
    # Inserts, updates and deletes have the OID at the same offset.
    plain, streamed = (offset_of(Insert, "relation_id", in_stream=in_stream) for in_stream in (False, True))
    of_relation = F.substring("payload", 1 + plain, 4).isin(oids) | F.substring("payload", 1 + streamed, 4).isin(oids)
    packed = tuple(PackedIndex.of(item.source, item.index, item.counts) for item in indexes)
    function = UsedFunction(packed, dict(uncertain), options, "source" in sorted_rows.columns)
    fields = [T.StructField("version", T.IntegerType())]
    if "source" in sorted_rows.columns:
        fields.insert(0, T.StructField("source", sorted_rows.schema["source"].dataType))
    with for_workers():
        found = sorted_rows.where(~is_row | of_relation).mapInArrow(function, T.StructType(fields)).distinct().toArrow()
    used: dict[Any, set[int]] = {}
    sources = found["source"].to_pylist() if "source" in found.column_names else [None] * len(found)
    for source, version in zip(sources, found["version"].to_pylist(), strict=True):
        used.setdefault(source, set()).add(version)
    if stored:
        used.setdefault(None, set()).update(used_of_stored(stored, indexes[0].index, uncertain[None], options))
    return tuple(replace(item, index=with_used(item.index, used.get(item.source, ()))) for item in indexes)


# -- in the JVM ------------------------------------------------------------------------------------------------------


def _statistics_of_partitions(rows: DataFrame, by_source: Sequence[str]) -> pa.Table:
    """Collect the statistics of partitions: the rows that a task reads from a part of a file or a Spark partition."""
    # If the rows come from this process, the optimizer computes the projection as if all were in partition 0. A sample
    # of all rows prevents this.
    numbered = rows.sample(withReplacement=False, fraction=1.0, seed=0).withColumn("partition", F.spark_partition_id())
    # The distance between the row's number and its position is constant in a partition that is in order and without
    # gaps. The upper bits of the row's number are the partition, and are removed to avoid an overflow.
    placed = numbered.withColumn(
        "distance", F.col("position") - F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))
    )
    # A hash identifies each part of a file. Two parts with the same hash make one partition, which is correct too.
    piece = F.xxhash64(F.input_file_name(), F.expr("input_file_block_start()"))
    try:
        return _aggregate(placed.withColumn("piece", piece), ["partition", "piece", *by_source])
    except AnalysisException as error:
        if error.getCondition() != "MULTI_SOURCES_UNSUPPORTED_FOR_EXPRESSION":
            raise
        # A union or join of several reads.
        return _aggregate(placed, ["partition", *by_source])


def _with_session_numbers(rows: DataFrame, by_source: Sequence[str]) -> DataFrame:
    """Add numbers of sessions in the order of positions. Keep only the bytes of payloads that `_aggregate` needs."""
    prefixes = rows.withColumn("payload", F.substring("payload", 1, length_of(Commit) + 1))
    window = Window.partitionBy("range", *by_source).orderBy("position")
    is_new = ~F.col("session").eqNullSafe(F.lag("session").over(window))
    return prefixes.withColumn("is_new", is_new.cast("int")).withColumn("session_number", F.sum("is_new").over(window))


def _aggregate(rows: DataFrame, keys: Sequence[str]) -> pa.Table:
    """Collect the statistics of each group of rows. All are numbers, which Spark aggregates fastest."""
    tag = F.substring("payload", 1, 1)
    at_end = F.when(tag.isin(_bytes(BEGIN_COMMIT)), F.col("position"))
    starts_with_key = _byte(Update, "old_type", b"K") | _byte(Update, "old_type", b"K", in_stream=True)
    # A transactional logical message outside streams: the flag is 1. In a stream, the flag comes after the xid; outside
    # one, this byte is part of an LSN.
    is_message = tag == F.lit(b"M")
    is_logical = is_message & _byte(LogicalMessage, "flags", b"\1")
    may_be_streamed = is_message & _byte(LogicalMessage, "flags", b"\1", in_stream=True)
    # A Begin or Commit with a wrong length is bad, and is not a boundary.
    n_bytes = F.when(tag == F.lit(b"B"), length_of(Begin)).when(tag == F.lit(b"C"), length_of(Commit))
    is_cut = F.coalesce(n_bytes != F.length("payload"), F.lit(False))
    wanted = [
        F.count("*").alias("n"),
        F.count("position").alias("n_positions"),
        F.min("position").alias("first"),
        F.max("position").alias("last"),
        F.coalesce(F.max(tag.isin(_bytes(ROWS))), F.lit(False)).alias("has_rows"),
        F.coalesce(F.max(tag.isin(_bytes(STREAM_AND_TWO_PHASE))), F.lit(False)).alias("has_apart"),
        F.coalesce(F.max((tag == F.lit(b"U")) & starts_with_key), F.lit(False)).alias("may_move"),
        F.min(at_end).alias("first_end"),
        F.max(at_end).alias("last_end"),
        F.min(F.when(tag.isin(_bytes(ROWS)) | is_logical, F.col("position"))).alias("first_row"),
        F.min(F.when(may_be_streamed, F.col("position"))).alias("first_streamed"),
        F.min(F.when(tag.isin(_bytes(DELIMITERS)) & ~is_cut, F.col("position"))).alias("first_boundary"),
    ]
    if "distance" in rows.columns:
        in_order = F.min("distance") == F.max("distance")
        without_gaps = F.max("position") - F.min("position") == F.count("*") - 1
        wanted.append((in_order & without_gaps).alias("is_dense"))
    return rows.groupBy(*keys).agg(*wanted).drop("partition", "piece", "range", "session_number").toArrow()


def _messages(rows: DataFrame, partitions: pa.Table) -> pa.Table:
    """Collect the messages that `index_partitions` needs if there are no streams."""
    ends = {position for name in ("first_end", "last_end") for position in partitions[name].to_pylist()} - {None}
    tag = F.substring("payload", 1, 1)
    is_end = tag.isin(_bytes(BEGIN_COMMIT)) & F.col("position").isin(sorted(ends))
    return rows.where(tag.isin(_bytes(ALWAYS_NEEDED)) | is_end).drop("session").toArrow()


def _all_messages(sorted_rows: DataFrame, partitions: pa.Table) -> pa.Table:
    """Collect the messages that `index_partitions` needs if there are streams. Each task selects from its own."""
    tag = F.substring("payload", 1, 1)
    control = sorted_rows.where(tag.isin(_bytes(ALWAYS_NEEDED + BEGIN_COMMIT)))
    firsts = {
        source: tuple(sorted(partitions["first"].take(places).to_pylist()))
        for source, places in _by_source(partitions).items()
    }
    with for_workers():
        return control.mapInArrow(ControlFunction(firsts, "source" in sorted_rows.columns), control.schema).toArrow()


def _head_rows(rows: DataFrame, partitions: pa.Table) -> pa.Table | None:
    """Collect at most `_MOST_HEAD_ROWS` rows from before the first boundaries of the sources."""
    ranges: dict[Any, tuple[int, int]] = {}
    for source, places in _by_source(partitions).items():
        names = ("first_row", "first_streamed", "first_boundary")
        first, streamed, end = (pc.min(partitions[name].take(places)).as_py() for name in names)
        first = streamed if first is None else first
        if first is not None and (end is None or first < end):
            ranges[source] = first, first + 1 if end is None else end
    if not ranges:
        return None
    wanted = (F.col("position") >= min(first for first, _ in ranges.values())) & (
        F.col("position") < max(end for _, end in ranges.values())
    )
    if "source" in rows.columns:
        wanted &= F.col("source").isin(list(ranges))
    tag = F.substring("payload", 1, 1)
    return rows.where(wanted & tag.isin(_bytes(ROWS + b"M"))).drop("session").limit(_MOST_HEAD_ROWS).toArrow()


def _byte(message: type, field: str, value: bytes, *, in_stream: bool = False) -> Column:
    """Whether the first byte of a field has a value, if the payload is of a message class."""
    # Spark counts from 1.
    return F.substring("payload", 1 + offset_of(message, field, in_stream=in_stream), 1) == F.lit(value)


def _bytes(tags: bytes) -> list[Column]:
    return [F.lit(bytes([tag])) for tag in tags]


def _bounds(rows: DataFrame, n_rows: int) -> list[int]:
    """Choose the bounds of ranges of positions with about equal numbers of rows."""
    n = min(1 + n_rows // _ROWS_PER_RANGE, _MOST_RANGES)
    if n == 1:
        return []
    shares = [place / n for place in range(1, n)]
    row = rows.agg(F.percentile_approx("position", shares, 10 * n)).first()
    return sorted(set((row and row[0]) or ()))


def _range(bounds: Sequence[int]) -> Column:
    """Return the number of a position's range, as a binary search."""

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
        raise ValueError(
            f"position is null in {n_nulls} rows, or exceeds 2**63 - 1, but each payload needs one, in slot order"
        )
    first = pc.min(found["first"]).as_py()
    if first is not None and first < 0:
        raise ValueError(f"position {first} is negative")


def _by_source(found: pa.Table) -> dict[Any, pa.Array]:
    """Find the rows of each source."""
    if "source" not in found.column_names:
        return {None: pa.array(range(len(found)), pa.int64())}
    places: dict[Any, list[int]] = {}
    for place, source in enumerate(found["source"].to_pylist()):
        places.setdefault(source, []).append(place)
    return {source: pa.array(numbers, pa.int64()) for source, numbers in places.items()}


def _overlap(found: pa.Table) -> bool:
    """Whether the ranges of partitions of a source overlap."""
    for places in _by_source(found).values():
        ends = sorted(zip(*(found[name].take(places).to_pylist() for name in ("first", "last")), strict=True))
        if any(before[1] >= after[0] for before, after in pairwise(ends)):
            return True
    return False
