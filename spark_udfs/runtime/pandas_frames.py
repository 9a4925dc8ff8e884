"""Decoded columns as the pandas frame that a `pandas_udf` returns; pandas is imported with this module."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa


class _Finished(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    """Arrow data that has the declared type already, and comes to Spark as it is.

    Spark rebuilds lists and structs from Python objects, one by one. That fails on nulls, makes nulls of NaN, and has
    no years but Python's.
    """

    def map(self, mapper: Any, na_action: Any = None) -> _Finished:
        """Leave all values as they are."""
        return self

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        """Give the data, as large strings for instance where Spark was told to use those."""
        data = super().__arrow_array__()
        return data if type is None else data.cast(type)

    def __getitem__(self, item: Any) -> Any:
        """Give no single value: pandas only asks whether it is a series, and some cannot be Python objects."""
        return None if isinstance(item, int) else super().__getitem__(item)


def pandas_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Make a frame that Spark turns back into just these columns: numpy would make floats of integers with nulls."""
    return pd.DataFrame({name: pd.Series(_Finished(batch.column(name))) for name in batch.schema.names}, copy=False)
