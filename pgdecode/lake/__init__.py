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
from pgdecode.lake.target import Target
from pgdecode.lake.targets import lake_target

__all__ = ["ApplyResult", "StaleTables", "TableResult", "Target", "apply", "lake_target"]
