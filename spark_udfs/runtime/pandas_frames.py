"""Makes the pandas frame that a `pandas_udf` returns from decoded columns. Importing this module imports pandas."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa


class _Finished(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    """Arrow data that already has the declared type, and is passed to Spark unchanged.

    Otherwise Spark would rebuild lists and structs from Python objects, one by one. That fails on nulls, replaces NaN
    by null, and supports only Python's years.
    """

    def map(self, mapper: Any, na_action: Any = None) -> _Finished:
        """Return the values unchanged."""
        return self

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        """Return the data, with another type if Spark requests it, such as large strings."""
        data = super().__arrow_array__()
        return data if type is None else data.cast(type)

    def __getitem__(self, item: Any) -> Any:
        """Return None for a single value. pandas only checks its type, and Python cannot represent all values."""
        return None if isinstance(item, int) else super().__getitem__(item)


def pandas_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """Make a frame that Spark converts back to exactly these columns; numpy would make floats of nullable integers."""
    return pd.DataFrame({name: pd.Series(_Finished(batch.column(name))) for name in batch.schema.names}, copy=False)
