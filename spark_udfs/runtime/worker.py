"""Functions for Spark's Python workers. They are small when pickled: a class name and a few options."""

from __future__ import annotations

import functools
import gc
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

import pgdecode
from pgdecode.payloads.unwrap import unwrap_in_place
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.options import Empty, InStream, RowMode, Unwrap
from spark_udfs.runtime.loader import load

if TYPE_CHECKING:
    import pandas as pd


class WorkerFunction:
    """A function that Spark sends to its Python workers. A worker that cannot load it explains why in one line."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes of a script, which workers cannot import, are sent as code.
        sent: bytes = cloudpickle.dumps((type(self), vars(self)))  # type: ignore[no-untyped-call]
        return load, (sent, pgdecode.__version__)


def enter_task() -> None:
    """Prepare this process for many tasks, if it is one of Spark's workers."""
    if TaskContext.get() is not None:
        _freeze_loaded_objects()


@functools.cache
def _freeze_loaded_objects() -> None:
    """Exclude loaded objects from garbage collection. Workers run a collection after each task, which takes 25 ms."""
    gc.freeze()


@dataclass(frozen=True)
class Options:
    """The options of decoding."""

    fields: tuple[str, ...]
    in_stream: InStream | bool
    mode: RowMode
    empty: Empty = "null"
    unwrap: Unwrap = "none"
    limits: Limits = LIMITS

    def decode(self, payloads: pa.Array, in_stream: pa.Array | None = None) -> pa.RecordBatch:
        """Decode a batch. Keepalives become null."""
        return self.decoder(in_stream).decode(unwrap_in_place(payloads, self.unwrap).payloads)

    def decoder(self, in_stream: pa.Array | None = None) -> pgdecode.MessageDecoder:
        """Make a decoder. A column of stream states takes precedence over the option."""
        enter_task()
        states = self.in_stream if in_stream is None else in_stream
        return pgdecode.MessageDecoder(
            in_stream=states, fields=self.fields, mode=self.mode, empty=self.empty, limits=self.limits
        )


class ScalarFunction(WorkerFunction):
    """A function of payloads, with the name that it has in plans and columns.

    The optional second column of `parse_pgoutput` is whether each payload was sent inside a stream.
    """

    # pyspark treats a signature without type hints as a scalar function. It cannot resolve the hints of an object.
    # SQL can name the arguments, so `__call__` has the same names.
    __signature__ = inspect.Signature(
        [
            inspect.Parameter("payloads", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            inspect.Parameter("in_stream", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
        ]
    )
    __name__ = "parse_pgoutput"

    def __init__(self, options: Any, name: str = __name__) -> None:
        self.options = options
        self.__name__ = name

    def _decoded(self, payloads: pa.Array, in_stream: pa.Array | None) -> pa.RecordBatch:
        states = () if in_stream is None else (in_stream,)
        return self.options.decode(payloads, *states)


class ArrowFunction(ScalarFunction):
    """A function for `arrow_udf`."""

    def __call__(self, payloads: pa.Array, in_stream: pa.Array | None = None) -> pa.StructArray:
        """Decode a batch."""
        return self._decoded(payloads, in_stream).to_struct_array()


class PandasFunction(ScalarFunction):
    """A function for `pandas_udf`. The returned frame converts exactly to the declared Arrow types."""

    def __call__(self, payloads: pd.Series, in_stream: pd.Series | None = None) -> pd.DataFrame:
        """Decode a batch."""
        from spark_udfs.runtime.pandas_frames import pandas_frame

        states = None if in_stream is None else _booleans(in_stream)
        return pandas_frame(self._decoded(pa.Array.from_pandas(payloads), states))


def _booleans(states: pd.Series) -> pa.Array:
    # A boolean series with nulls has the dtype object.
    return pa.Array.from_pandas(states, type=pa.bool_() if states.dtype == object else None)


# By the adapter.
FUNCTIONS = {"arrow": ArrowFunction, "pandas": PandasFunction}
