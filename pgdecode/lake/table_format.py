"""What a format of tables that consist of Parquet files does: it names the files, and commits which of them count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pgdecode.datasets.file_digest import NewFile
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import DataFile
from pgdecode.lake.target import ColumnSource
from pgdecode.storage.object_path import FilePath


@dataclass(frozen=True)
class StoredTable:
    """A table as the last commit has left it.

    Attributes
    ----------
    schema : pa.Schema
        With the types of typed tables, as `TableFormat.create` or `evolve` got it.
    file_schema : pa.Schema
        With the types of the format. New files are written with it.
    files : sequence of DataFile
        With bounds of the columns of the key, where the format knows them.
    applied : Applied
    """

    schema: pa.Schema
    file_schema: pa.Schema
    files: Sequence[DataFile]
    applied: Applied


@dataclass(frozen=True)
class TableChange:
    """What a commit does to a table.

    Attributes
    ----------
    schema, file_schema : pa.Schema
        As in `StoredTable`, after the commit.
    files, added, removed : sequence of DataFile
        All files after the commit, and how they differ from those before. A table that is made anew removes all files
        that it had.
    applied : Applied
    is_created : bool
        Whether the table is made anew, whether it exists or not.
    """

    schema: pa.Schema
    file_schema: pa.Schema
    files: Sequence[DataFile]
    added: Sequence[DataFile]
    removed: Sequence[DataFile]
    applied: Applied
    is_created: bool = False


class TableFormat(Protocol):
    """A place with tables of Parquet files. A table is named "schema.table".

    Columns of files belong to those of `file_schema` with the same name; if the fields have a Parquet field id
    (`PARQUET:field_id`), to those with the same id. Columns that a file does not have are null, and values of another
    type are cast.

    Attributes
    ----------
    needs_file : bool
        Whether a table without rows needs a file, which has its columns.
    """

    needs_file: bool

    def opened(self) -> AbstractContextManager[Mapping[str, Applied]]:
        """Connect, keep other processes out where that is possible, and yield the state of each table.

        Raises
        ------
        RunError
            If another process is writing.
        """

    def load(self, name: str) -> StoredTable | None:
        """Read the metadata of a table, and not its files; None if it does not exist.

        Raises
        ------
        RunError
            If somebody else has made the table, or it has a feature that is not written.
        """

    def create(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Plan a new table with these columns, and return the schema of its files. `commit` makes it.

        Raises
        ------
        RunError
            If the format has no type for a column.
        """

    def evolve(self, name: str, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> tuple[pa.Schema, bool]:
        """Plan other columns of a table, and return the schema of its files.

        It also returns whether the files stay as they are. Otherwise all files are written anew.
        """

    def path(self, file: DataFile) -> FilePath:
        """Return where a file is now."""

    def new_file(self, name: str) -> NewFile:
        """Create a file of a table."""

    def accept(self, name: str, file: NewFile, rows: int) -> str:
        """Take a complete file, and return its path as the format names it."""

    def discard(self, file: DataFile) -> None:
        """Remove a file that was accepted, unless it is or may be part of a commit."""

    def commit(self, changes: Mapping[str, TableChange]) -> None:
        """Commit changes of tables, each with its state, in one commit if the format has such commits.

        Raises
        ------
        RunError
            If another writer has committed meanwhile.
        """

    def roll_back(self) -> None:
        """Forget what was planned since the last commit. The files that were accepted have been discarded."""
