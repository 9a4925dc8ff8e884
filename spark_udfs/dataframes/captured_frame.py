"""`read_capture` on Spark: the payloads of captured files as a DataFrame, and what their footers say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pgdecode
from pgdecode.files.captured_payloads import CaptureFacts
from pgdecode.files.ordered_files import interruptions
from pgdecode.files.payload_file import CAPTURE_SESSION
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import Location
from spark_udfs.dataframes.run_reader import read_parquet


@dataclass(frozen=True)
class CapturedFrame(CaptureFacts):
    """The payloads of captured files, as a DataFrame, and what the footers say for decoding them.

    Attributes
    ----------
    df : DataFrame
    session : str or None
        The column of `df` that identifies the connection to the server, where it matters.
    """

    df: DataFrame
    session: str | None

    @property
    def options(self) -> dict[str, Any]:
        """`types=`, `catalog=`, `encoding=` and `session=` of the functions that decode the DataFrame."""
        return {**super().options, "session": self.session}


def read_capture(
    spark: SparkSession,
    source: Location | Iterable[Location],
    *,
    types: Mapping[str | int, str] | None = None,
    accept_gap: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> CapturedFrame:
    """Read files that `pgdecode capture` has written as a DataFrame, with what their footers say for decoding them.

    Parameters
    ----------
    spark : SparkSession
    source, types, accept_gap, storage_options
        As in `pgdecode.read_capture`. On a cluster, all machines must share a path. Tasks read object stores with
        pyarrow, so that Spark needs no connector.

    Returns
    -------
    CapturedFrame
        `df` has the columns of the files: `seq`, `lsn`, `received` and `data`. `types`, `relations`, `encoding`, `gaps`
        and `notes` are those of `pgdecode.read_capture`. `options` has what `changes`, `table_changes` and `snapshot`
        need beside the DataFrame.

    Raises
    ------
    PathError, RunError, ValueError
        As in `pgdecode.read_capture`.

    Notes
    -----
    The DataFrame has the files of the time of the call. `decode_files` and the data source read footers themselves.

    Examples
    --------
    >>> capture = spark_udfs.read_capture(spark, "tests/data/capture")
    >>> spark_udfs.table_changes(capture.df, "public.orders", **capture.options).count()
    7
    """
    found = pgdecode.read_capture(source, types=types, accept_gap=accept_gap, storage_options=storage_options)
    files = found.ordered.files
    if any(file.converted for file in files):
        raise PathError(f"{files[0]}: not a Parquet file; on Spark, payloads are in Parquet")
    schema = pa.unify_schemas([file.columns for file in files])
    df = read_parquet(spark, [file.path for file in files], schema)
    starts = interruptions(files)
    if starts:
        # Sessions are ranges of positions. Only those after an interrupted stream matter.
        before = F.filter(F.lit(starts), lambda first: first <= F.col("seq"))
        df = df.withColumn(CAPTURE_SESSION, F.size(before))
    session = CAPTURE_SESSION if starts else None
    return CapturedFrame(found.types, found.relations, found.encoding, found.gaps, found.notes, df, session)
