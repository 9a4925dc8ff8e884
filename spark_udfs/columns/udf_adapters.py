"""Which of Spark's kinds of function a column function becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import functions as F

from spark_udfs.runtime.session import pandas_not_minded
from spark_udfs.schema.spark_types import spark_schema

# What makes each, of Spark's functions.
_MAKERS = {"arrow": "arrow_udf", "pandas": "pandas_udf"}


def adapter_named(adapter: str) -> str:
    """Choose "arrow" or "pandas".

    Parameters
    ----------
    adapter : {"auto", "arrow", "pandas"}
        "auto" is "arrow" where this pyspark has it.

    Raises
    ------
    ValueError
        If there is no such adapter, or not in this pyspark.
    """
    there_is = vars(F)
    if adapter == "auto":
        adapter = "arrow" if "arrow_udf" in there_is else "pandas"
    if adapter not in _MAKERS:
        raise ValueError(f'adapter is "auto", "arrow" or "pandas", not {adapter!r}')
    if _MAKERS[adapter] not in there_is:
        raise ValueError(f'adapter "{adapter}" needs pyspark 4.1 or later, this is {pyspark.__version__}')
    return adapter


def user_defined(adapter: str, function: Any, schema: pa.Schema) -> Any:
    """Make Spark's function of one that a worker calls, and that gives a struct with the columns of `schema`."""
    with pandas_not_minded():
        return vars(F)[_MAKERS[adapter]](function, spark_schema(schema))


def require_mode_of_columns(mode: str, error: str) -> None:
    """Refuse the mode that leaves rows out; `error` is the column to filter by instead."""
    if mode == "DROPMALFORMED":
        raise ValueError(
            f'a column has all its rows: use mode "PERMISSIVE" and a filter on {error} for "DROPMALFORMED"'
        )
