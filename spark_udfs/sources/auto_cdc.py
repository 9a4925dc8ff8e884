"""`auto_cdc`: the changes of a table as declarative pipelines take them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgdecode.net.schema import key_of
from pgdecode.protocol.errors import listed
from pgdecode.protocol.options import check_option
from pgdecode.rows.own_names import OWN_NAMES
from spark_udfs.schema.spark_types import arrow_schema, quoted
from spark_udfs.sources.registration import register_source

UnknownValues = Literal["error", "apart"]
_SEQUENCE = ("_commit_lsn", "_position", "_part")
_KEPT = ("_op", *_SEQUENCE, "_commit_timestamp")
_NEEDED = ("_op", "_commit_lsn", "_position", "_commit_timestamp", "_old_type", "_old", "_unchanged", "_error")


@dataclass(frozen=True)
class AutoCdc:
    """A source of AUTO CDC.

    Attributes
    ----------
    changes : DataFrame
        `_op` ("insert", "update" or "delete"), `_commit_lsn`, `_position`, `_part`, `_commit_timestamp`, and the
        columns of the table.
    arguments : dict
        Of `pyspark.pipelines.create_auto_cdc_flow`, beside target and source.
    unknown : DataFrame
        The changes that are not in `changes`, because a value is in no payload or is bad, with the columns of the
        table's changes. Empty with `unknown="error"`.
    """

    changes: DataFrame
    arguments: dict[str, Any]
    unknown: DataFrame


def auto_cdc(
    raw: DataFrame | str | os.PathLike[str],
    relation: str,
    *,
    key: Sequence[str] | None = None,
    unknown: UnknownValues = "error",
    **options: str,
) -> AutoCdc:
    """Prepare the changes of a table for `create_auto_cdc_flow` of declarative pipelines.

    Parameters
    ----------
    raw : path or DataFrame
        A folder of payload files, which becomes a stream of the data source `pgoutput`; or the changes of the table, as
        this data source or `table_changes` returns them.
    relation : str
        "schema.table".
    key : sequence of str, optional
        The columns that tell the rows of the table apart. By default, those of the replica identity. With REPLICA
        IDENTITY FULL, it is needed.
    unknown : {"error", "apart"}
        What to do with a change of which a value is in no payload, such as a TOAST value that did not change without
        REPLICA IDENTITY FULL: fail the query; or leave it out of `changes`, and return it in `unknown`. It is never
        passed on as null.
    **options
        Of the data source, if `raw` is a path.

    Returns
    -------
    AutoCdc
        The changes and the arguments. An update that changes the key makes two rows: a delete with the former key, and
        after it the new row. `sequence_by` is `struct(_commit_lsn, _position, _part)`. The target leaves out the
        columns that begin with `_` of these.

    Raises
    ------
    TypeError, ValueError
        If the columns do not tell the key, or are not those of a table's changes; for values that an option does not
        have. The query fails at a truncate, which AUTO CDC does not have: refresh the target.

    Examples
    --------
    >>> from pyspark import pipelines as dp  # doctest: +SKIP
    >>> cdc = spark_udfs.auto_cdc("raw/", "public.orders")  # doctest: +SKIP
    >>> dp.temporary_view(name="orders_changes")(lambda: cdc.changes)  # doctest: +SKIP
    >>> dp.create_streaming_table("orders")  # doctest: +SKIP
    >>> dp.create_auto_cdc_flow("orders", "orders_changes", **cdc.arguments)  # doctest: +SKIP
    """
    check_option("unknown", unknown, UnknownValues)
    if isinstance(key, str):
        raise TypeError(f"key is a sequence of columns' names: pass key=[{key!r}]")
    if isinstance(raw, DataFrame):
        if options:
            raise TypeError(f"{next(iter(options))} is an option of the data source: pass a path, or decode with it")
        changes = raw
    else:
        session = SparkSession.active()
        # Pipelines do not allow to register functions, which `register` does too.
        register_source(session)
        changes = session.readStream.format("pgoutput").options(what=relation, **options).load(os.fspath(raw))
    missing = [name for name in _NEEDED if name not in changes.columns]
    if missing:
        raise ValueError(f"the columns {listed(map(repr, missing))} are missing: raw has the changes of a table")
    columns = [name for name in changes.columns if name not in OWN_NAMES]
    keys = key_of(arrow_schema(changes.schema), key)
    if key is None and len(keys) == len(columns):
        raise ValueError(f"{relation} has no key among its columns: pass key, with REPLICA IDENTITY FULL")
    if clashes := sorted(set(columns) & {"_part"}):
        raise ValueError(f"the table has a column {clashes[0]!r}, which is the name of an added column: rename it")
    is_unknown = F.col("_error").isNotNull() | ((F.col("_op") != "delete") & (F.size("_unchanged") > 0))
    is_unknown = F.coalesce(is_unknown, F.lit(True))
    left_out = changes.where(is_unknown if unknown == "apart" else F.lit(False))
    if unknown == "apart":
        changes = changes.where(~is_unknown)
    return AutoCdc(
        _parts(changes, relation, columns, keys, is_unknown),
        {
            "keys": list(keys),
            "sequence_by": f"struct({', '.join(_SEQUENCE)})",
            "apply_as_deletes": "_op = 'delete'",
            "except_column_list": list(_KEPT),
        },
        left_out,
    )


def _parts(
    changes: DataFrame, relation: str, columns: Sequence[str], keys: Sequence[str], is_unknown: Any
) -> DataFrame:
    """Divide updates that change the key, and fail at what cannot be passed on."""
    place = F.concat(F.lit(f"table {relation}, position "), F.col("_position").cast("string"))
    unknown = F.concat(
        place, F.lit(": no message has the value of a column. REPLICA IDENTITY FULL or unknown='apart' mends that")
    )
    truncated = F.concat(place, F.lit(": the table was truncated, which AUTO CDC does not have: refresh the target"))
    old = {name: F.col("_old").getField(name) for name in keys}
    new = {name: F.col(quoted(name)) for name in columns}
    moves = (F.col("_op") == "update") & F.col("_old_type").isNotNull()
    moves = moves & (F.struct(*old.values()) != F.struct(*(new[name].alias(name) for name in keys)))
    types = changes.schema
    whole = F.struct(F.col("_op").alias("_op"), F.lit(1).alias("_part"), *(new[name].alias(name) for name in columns))
    former = F.struct(
        F.lit("delete").alias("_op"),
        F.lit(0).alias("_part"),
        *(old.get(name, F.lit(None).cast(types[name].dataType)).alias(name) for name in columns),
    )
    parts = (
        F.when(F.col("_op") == "truncate", F.raise_error(truncated).cast("array<int>").isNull())
        .when(is_unknown, F.raise_error(unknown).cast("array<int>").isNull())
        .otherwise(F.lit(True))
    )
    checked = changes.where(parts)
    divided = checked.select(
        "_commit_lsn",
        "_position",
        "_commit_timestamp",
        F.explode(F.when(moves, F.array(former, whole)).otherwise(F.array(whole))).alias("_row"),
    )
    return divided.select(
        F.col("_row._op").alias("_op"),
        "_commit_lsn",
        "_position",
        F.col("_row._part").alias("_part"),
        "_commit_timestamp",
        *(F.col("_row").getField(name).alias(name) for name in columns),
    )
