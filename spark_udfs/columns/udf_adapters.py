"""Makes Spark functions: `arrow_udf` or `pandas_udf`."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pyspark
from pyspark.sql import functions as F

from pgdecode.protocol.options import check_option
from spark_udfs.runtime.session import for_workers
from spark_udfs.schema.spark_types import spark_schema

Adapter = Literal["auto", "arrow", "pandas"]
# The functions of pyspark that make them.
_MAKERS = {"arrow": "arrow_udf", "pandas": "pandas_udf"}


def adapter_named(adapter: Adapter) -> Literal["arrow", "pandas"]:
    """Choose "arrow" or "pandas".

    Parameters
    ----------
    adapter : {"auto", "arrow", "pandas"}
        "auto" is "arrow" if pyspark supports it.

    Raises
    ------
    TypeError, ValueError
        If the adapter does not exist, or pyspark does not support it.
    """
    check_option("adapter", adapter, Adapter)
    available = vars(F)
    if adapter == "auto":
        return "arrow" if "arrow_udf" in available else "pandas"
    if _MAKERS[adapter] not in available:
        raise ValueError(f'adapter "{adapter}" needs pyspark 4.1 or later, this is {pyspark.__version__}')
    return adapter


def user_defined(adapter: str, function: Any, schema: pa.Schema) -> Any:
    """Make a Spark function that calls `function` in workers, and returns a struct with the columns of `schema`."""
    with for_workers():
        return vars(F)[_MAKERS[adapter]](function, spark_schema(schema))
