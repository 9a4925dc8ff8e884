"""What runs in Spark's Python workers: callables that travel as a class name and a few options."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

import pgdecode
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.envelope_text import flat_columns, json_lines
from pgdecode.protocol.options import Empty, Format, InStream, RowMode

if TYPE_CHECKING:
    import pandas as pd

# What is wrong with a row, where that is told apart from its columns.
ERROR = "_pgdecode_error"


def enter_task(version: str) -> None:
    """Hold this process to the driver's version of pgdecode, and make it ready for many tasks.

    Raises
    ------
    RuntimeError
        If it has another.
    """
    if version != pgdecode.__version__:
        raise RuntimeError(
            f"pgdecode {version} on the driver, but {pgdecode.__version__} on a worker ({sys.executable}): "
            "install the same on all"
        )
    if TaskContext.get() is not None:
        _settle()


@functools.cache
def _settle() -> None:
    """Keep what is loaded out of garbage collection, once in a process: workers collect after each task, for 25 ms."""
    gc.freeze()


@dataclass(frozen=True)
class Options:
    """How to decode, as the driver was told, and which version of the package the driver has."""

    fields: tuple[str, ...]
    in_stream: InStream | bool
    mode: RowMode
    empty: Empty = "null"
    version: str = pgdecode.__version__

    def decoder(self, in_stream: pa.Array | None = None) -> pgdecode.MessageDecoder:
        """Make a decoder; a column of stream states comes before what the options say of them."""
        enter_task(self.version)
        states = self.in_stream if in_stream is None else in_stream
        return pgdecode.MessageDecoder(in_stream=states, fields=self.fields, mode=self.mode, empty=self.empty)


class ScalarFunction:
    """A function of payloads and, where the second column is given, of whether each was sent inside a stream."""

    # A signature without hints is a scalar function to pyspark; hints of an object it does not resolve.
    __signature__ = inspect.Signature(
        [
            inspect.Parameter("payloads", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("in_stream", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
        ]
    )
    # What plans and columns are called by.
    __name__ = "parse_pgoutput"

    def __init__(self, options: Options) -> None:
        self.options = options


class ArrowFunction(ScalarFunction):
    """For `arrow_udf`: Arrow columns as they are."""

    def __call__(self, payloads: pa.Array, in_stream: pa.Array | None = None) -> pa.StructArray:
        """Decode a batch."""
        return self.options.decoder(in_stream).decode(payloads).to_struct_array()


class PandasFunction(ScalarFunction):
    """For `pandas_udf`: series of bytes in, a frame out that converts to just the declared Arrow types."""

    def __call__(self, payloads: pd.Series, in_stream: pd.Series | None = None) -> pd.DataFrame:
        """Decode a batch."""
        from spark_udfs.runtime.pandas_frames import pandas_frame

        states = None if in_stream is None else _booleans(in_stream)
        return pandas_frame(self.options.decoder(states).decode(pa.Array.from_pandas(payloads)))


def _booleans(states: pd.Series) -> pa.Array:
    # With a null among them, booleans come as objects.
    return pa.Array.from_pandas(states, type=pa.bool_() if states.dtype == object else None)


@dataclass(frozen=True)
class PartitionFunction:
    """For `mapInArrow`: the rows of one partition in their order, as what is to be written, each with its error.

    Input columns are known by their place, for Spark does not bring every name this far.

    Attributes
    ----------
    options : Options
        Their fields are all that `format` needs, and `error`.
    payload : int
        The place of the payloads.
    keep : tuple of str
        Names of the first columns, which are carried along.
    fields : tuple of str or None
        Envelope columns to write, as of `render.json_lines`.
    format : str
        "parquet" gives columns, "csv" columns of text, "jsonl" one column of lines.
    drop_bad : bool
        Whether bad rows are to be left out, once they have been counted.
    """

    options: Options
    payload: int
    keep: tuple[str, ...]
    fields: tuple[str, ...] | None
    format: Format
    drop_bad: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode one batch after the other; the stream state is carried along."""
        decoder = self.options.decoder()
        for batch in batches:
            envelope = decoder.decode(batch.column(self.payload))
            columns = [*batch.columns[: len(self.keep)], *envelope.columns]
            rows = pa.RecordBatch.from_arrays(columns, names=[*self.keep, *envelope.schema.names])
            yield self._written(rows).append_column(ERROR, envelope.column("error"))

    def _written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.format == "jsonl":
            lines = json_lines(rows, keep=self.keep, fields=self.fields)
            return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=["value"])
        if self.format == "csv":
            table = flat_columns(rows, keep=self.keep, fields=self.fields)
            texts = [column.cast(pa.string()) for column in table.columns]
            return pa.RecordBatch.from_arrays(texts, names=table.schema.names)
        return rows.select([*self.keep, *envelope_schema(self.fields).names])


@dataclass(frozen=True)
class FaultFinder:
    """For `mapInArrow` over payload, file and row in the file: the first bad row of a partition, with its error."""

    options: Options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look for it."""
        decoder = self.options.decoder()
        for batch in batches:
            errors = decoder.decode(batch.column(0)).column("error")
            if errors.null_count < len(errors):
                bad = errors.is_valid().index(True).as_py()
                found = [column.slice(bad, 1) for column in (batch.column(1), batch.column(2), errors)]
                yield pa.RecordBatch.from_arrays(found, names=["file", "row", "error"])
                return
