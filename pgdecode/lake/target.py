"""What a target does: its tables are changed, and one commit has the data with the position of the source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Protocol

import pyarrow as pa

from pgdecode.lake.applied import Applied


class MissingRow(ValueError):
    """An upsert with unknown values whose row is not in the target.

    Parameters
    ----------
    position : int
        `_position` of the upsert.
    """

    def __init__(self, position: int) -> None:
        super().__init__(
            f"position {position}: the updated row is not in the target, and the update did not send all its values"
        )
        self.position = position


@dataclass(frozen=True)
class ColumnSource:
    """Where the rows that a table has get the values of a column when the table gets other columns.

    Attributes
    ----------
    name : str or None
        The column that they are from; None if the column is added.
    missing : pa.Scalar
        The value that all rows get in an added column, with the type of the new field. It may be null.
    convert : callable or None
        Makes the new values of the former ones, both with the Arrow types of typed tables. None if they are the same,
        perhaps with a wider type: then `cast` of Arrow converts them.
    """

    name: str | None = None
    missing: pa.Scalar | None = None
    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray] | None = None


@dataclass
class TableCounts:
    """What was done to a table, for example since the last commit."""

    upserts: int = 0
    deletes: int = 0
    truncates: int = 0
    missing: int = 0  # rows to remove that the table did not have
    rows: int = 0  # of the table now
    files_added: int = 0
    files_removed: int = 0
    bytes_added: int = 0

    def add(self, later: TableCounts) -> None:
        """Add what was done later."""
        for item in fields(TableCounts):
            if item.name != "rows":
                setattr(self, item.name, getattr(self, item.name) + getattr(later, item.name))
        self.rows = later.rows


class TargetTable(Protocol):
    """A table of a target, with changes that are not committed yet.

    Attributes
    ----------
    counts : TableCounts
    """

    counts: TableCounts

    def create(self, schema: pa.Schema) -> None:
        """Make the table empty, with these columns, whether it exists or not.

        Fields are those of typed tables: Arrow types of PostgreSQL's types, with the metadata `pg:type`, and `pg:key`
        for the columns of the key, which are not null. The table has the types of its format for them.
        """

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Give the table other columns. `columns` has the source of each column of `schema`, in its order."""

    def apply(self, net: pa.Table) -> None:
        """Apply net changes, as `net_changes` returns them. Their columns are those of the table.

        A truncate comes first. Then the rows with the keys in `_key_before` are removed, and those with the keys of
        upserts that have none; then the upserts are added, with unknown columns from the removed row of `_key_before`.
        Keys are equal if their values are identical, null equals null. If `_key_before` has all columns, each net
        change removes one of the equal rows.

        Raises
        ------
        MissingRow
            If an upsert with unknown values has no row.
        """


@dataclass
class Target:
    """A place with tables. `lake_target` makes it.

    Use it as a context manager: it keeps other processes out where that is possible, and what is not committed is
    discarded at the end.

    Attributes
    ----------
    name : str
        As the caller has given it, without passwords.
    applied : dict of str to Applied
        The state of each table that it has, by "schema.table".
    """

    name: str
    applied: dict[str, Applied] = field(default_factory=dict, init=False)

    def opened(self) -> AbstractContextManager[Target]:
        """Connect, read `applied`, and keep other processes out.

        Raises
        ------
        RunError
            If another process is writing.
        """
        raise NotImplementedError

    def table(self, name: str) -> TargetTable:
        """Return a table, which may not exist yet, by "schema.table". Later calls return the same object.

        Raises
        ------
        RunError
            If it exists without a state: somebody else has made it. Or if it has a feature that is not written, such
            as partitions, column mapping or deletion vectors. The error names it.
        """
        raise NotImplementedError

    def commit(self, applied: Mapping[str, Applied]) -> None:
        """Commit what was done to tables, each with its state. Tables without changes get their state too.

        The data and the state of a table are one commit; where the format has such commits, so are all tables.

        Raises
        ------
        RunError
            If another writer has committed meanwhile. The target is then as that writer has left it.
        """
        raise NotImplementedError

    def roll_back(self) -> None:
        """Discard what was done to all tables since the last commit."""
        raise NotImplementedError

    def read(self, name: str) -> pa.RecordBatchReader:
        """Read the committed rows of a table, with the types of its format, in no particular order."""
        raise NotImplementedError
