"""A target whose tables consist of Parquet files: Parquet, Delta and Iceberg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from pgdecode.datasets.errors import RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.file_table import FileTable
from pgdecode.lake.table_format import TableFormat
from pgdecode.lake.target import Target
from pgdecode.payloads.workers import all_cores


@dataclass
class FileTarget(Target):
    """A target whose tables consist of Parquet files.

    Attributes
    ----------
    format : TableFormat
    threads : int
    file_bytes : int
        Size of new files.
    """

    format: TableFormat
    threads: int = field(default_factory=all_cores)
    file_bytes: int = 128 * 2**20
    _tables: dict[str, FileTable] = field(default_factory=dict, init=False)

    @contextmanager
    def opened(self) -> Iterator[FileTarget]:
        """Connect, read `applied`, and keep other processes out."""
        with self.format.opened() as applied:
            self.applied = dict(applied)
            # Others may have written them since they were loaded.
            self._tables.clear()
            try:
                yield self
            finally:
                self.roll_back()

    def table(self, name: str) -> FileTable:
        """Return a table, which may not exist yet, by "schema.table"."""
        if name not in self._tables:
            self._tables[name] = FileTable(name, self.format, self.format.load(name), self.threads, self.file_bytes)
        return self._tables[name]

    def commit(self, applied: Mapping[str, Applied]) -> None:
        """Commit what was done to tables, each with its state."""
        tables = {name: self.table(name) for name in applied}
        changes = {name: table.change(applied[name]) for name, table in tables.items()}
        try:
            self.format.commit(changes)
        except RunError:
            raise
        except BaseException:
            # The commit may exist all the same. Then its files must stay.
            for table in tables.values():
                table.forget()
            raise
        for name, table in tables.items():
            table.set_committed(changes[name])
        self.applied |= applied

    def roll_back(self) -> None:
        """Discard what was done to all tables since the last commit."""
        for table in self._tables.values():
            table.discard()
        self.format.roll_back()

    def read(self, name: str) -> pa.RecordBatchReader:
        """Read the committed rows of a table, with the types of its format, in no particular order."""
        table = FileTable(name, self.format, self.format.load(name), self.threads, self.file_bytes)
        return table.read()
