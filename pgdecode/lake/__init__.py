"""Tables in a lake that equal those of the server: apply net changes to Parquet, Delta, Iceberg and DuckDB tables.

Examples
--------
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     result = pgdecode.lake.apply("tests/data/capture", f"parquet:{folder}/lake", tables="public.orders")
>>> result.tables["public.orders"].rows
2
"""

from pgdecode.lake.apply_run import ApplyResult, StaleTables, TableResult, apply
from pgdecode.lake.sync_run import Sync
from pgdecode.lake.target import Target
from pgdecode.lake.targets import lake_target
from pgdecode.lake.verification.verify_run import VerifyResult, verify

__all__ = [
    "ApplyResult",
    "StaleTables",
    "Sync",
    "TableResult",
    "Target",
    "VerifyResult",
    "apply",
    "lake_target",
    "verify",
]
