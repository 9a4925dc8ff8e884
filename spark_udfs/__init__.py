"""Decodes pgoutput payloads on Spark, with functions for columns and DataFrames, and with jobs.

One package with two names: `from spark_udfs import changes` and `from pgdecode.spark import changes` import the same
function, and both come with `pip install 'pgdecode[spark]'`. The driver and all executors need it, in the same version.
pyspark is imported when the first name is used. An import never creates a session.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_udfs.columns.envelope_column import parse_pgoutput
    from spark_udfs.columns.row_column import from_pgoutput, register_relation
    from spark_udfs.dataframes.captured_frame import read_capture
    from spark_udfs.dataframes.changes import changes, relation_catalog, table_changes
    from spark_udfs.dataframes.net_changes import net_changes
    from spark_udfs.dataframes.replication_state import replication_state
    from spark_udfs.dataframes.run_reader import read_run
    from spark_udfs.dataframes.snapshot import snapshot
    from spark_udfs.jobs.decode_files import decode_files
    from spark_udfs.lake.apply_stream import apply_stream
    from spark_udfs.lake.merge_into import merge_into
    from spark_udfs.runtime.executors import check_executors
    from spark_udfs.sources.auto_cdc import auto_cdc
    from spark_udfs.sources.registration import register

__all__ = [
    "apply_stream",
    "auto_cdc",
    "changes",
    "check_executors",
    "decode_files",
    "from_pgoutput",
    "merge_into",
    "net_changes",
    "parse_pgoutput",
    "read_capture",
    "read_run",
    "register",
    "register_relation",
    "relation_catalog",
    "replication_state",
    "snapshot",
    "table_changes",
]

_MODULES = {
    "apply_stream": "spark_udfs.lake.apply_stream",
    "auto_cdc": "spark_udfs.sources.auto_cdc",
    "changes": "spark_udfs.dataframes.changes",
    "check_executors": "spark_udfs.runtime.executors",
    "decode_files": "spark_udfs.jobs.decode_files",
    "from_pgoutput": "spark_udfs.columns.row_column",
    "merge_into": "spark_udfs.lake.merge_into",
    "net_changes": "spark_udfs.dataframes.net_changes",
    "parse_pgoutput": "spark_udfs.columns.envelope_column",
    "read_capture": "spark_udfs.dataframes.captured_frame",
    "read_run": "spark_udfs.dataframes.run_reader",
    "register": "spark_udfs.sources.registration",
    "register_relation": "spark_udfs.columns.row_column",
    "relation_catalog": "spark_udfs.dataframes.changes",
    "replication_state": "spark_udfs.dataframes.replication_state",
    "snapshot": "spark_udfs.dataframes.snapshot",
    "table_changes": "spark_udfs.dataframes.changes",
}


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pyspark", "pandas"):
            raise
        raise ModuleNotFoundError(f"spark_udfs needs {missing}: pip install 'pgdecode[spark]'", name=missing) from error
    return getattr(module, name)
