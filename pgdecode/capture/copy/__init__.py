"""Copy of the rows that tables have already, as the payloads that pgoutput sends for inserts."""

from pgdecode.capture.copy.published_tables import PublishedTable, published_names, published_tables
from pgdecode.capture.copy.snapshot import Snapshot
from pgdecode.capture.copy.table_rows import TableRows

__all__ = ["PublishedTable", "Snapshot", "TableRows", "published_names", "published_tables"]
