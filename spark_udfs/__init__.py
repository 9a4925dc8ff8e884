"""pgoutput payloads on Spark: functions of columns and DataFrames, and jobs, over `pgdecode`.

The package is needed on the driver and on every executor, in one version. pyspark is imported with the first name
that is used, and a session is never made by an import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_udfs.dataframes import changes, relation_catalog, table_changes
    from spark_udfs.functions import parse_pgoutput, register
    from spark_udfs.jobs import decode_files
    from spark_udfs.snapshots import snapshot
    from spark_udfs.typed import from_pgoutput, register_relation

__all__ = [
    "changes",
    "decode_files",
    "from_pgoutput",
    "parse_pgoutput",
    "register",
    "register_relation",
    "relation_catalog",
    "snapshot",
    "table_changes",
]

_ROOMS = {
    "changes": "spark_udfs.dataframes",
    "decode_files": "spark_udfs.jobs",
    "from_pgoutput": "spark_udfs.typed",
    "parse_pgoutput": "spark_udfs.functions",
    "register": "spark_udfs.functions",
    "register_relation": "spark_udfs.typed",
    "relation_catalog": "spark_udfs.dataframes",
    "snapshot": "spark_udfs.snapshots",
    "table_changes": "spark_udfs.dataframes",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        room = import_module(_ROOMS[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing != "pyspark":
            raise
        raise ModuleNotFoundError(f"spark_udfs needs {missing}: pip install 'pgdecode[spark]'", name=missing) from error
    return getattr(room, name)
