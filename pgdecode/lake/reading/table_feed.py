"""The changes of one table on their way to a target: folded to net changes, version by version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.table_rows import Table
from pgdecode.datasets.errors import RunError
from pgdecode.files.change_reader import TableError
from pgdecode.lake.reading.column_names import (
    marked_name,
    marked_options,
    marked_version,
    plain_net,
    plain_schema,
    plain_sources,
    plain_text,
)
from pgdecode.lake.reading.kept_columns import KeptColumns
from pgdecode.lake.reading.schema_steps import SchemaStep, UnknownValues
from pgdecode.lake.reading.version_rows import VersionLayout
from pgdecode.lake.target import MissingRow, Target
from pgdecode.net.net_changes import NetChanges
from pgdecode.net.schema import NET_COLUMNS, net_schema
from pgdecode.protocol.options import SchemaChanges
from pgdecode.relations.relation_json import version_from_json
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import KEY
from pgdecode.rows.options import Options

# Where a change is: the positions of its commit and its own.
Place = tuple[int, int]


class TableStale(Exception):
    """A table whose rows cannot be known from a change on.

    Attributes
    ----------
    relation_id : int
    name : str
    place : tuple of int
        The change.
    reason : str
    is_value : bool
        Whether a value is the reason that Arrow does not have. A copy of the table would have it too.
    """

    def __init__(self, relation_id: int, name: str, place: Place, reason: str, *, is_value: bool = False) -> None:
        super().__init__(reason)
        self.relation_id, self.name, self.place, self.reason = relation_id, name, place, reason
        self.is_value = is_value


@dataclass(frozen=True)
class FeedOptions:
    """Options of all tables.

    Attributes
    ----------
    options : Options
    schema_changes : {"evolve", "ignore", "fail"}
    key : sequence of str, mapping of str to sequence of str, or None
        As in `apply`.
    """

    options: Options
    schema_changes: SchemaChanges = "evolve"
    key: Sequence[str] | Mapping[str, Sequence[str]] | None = None

    def key_of(self, name: str, version: RelationVersion) -> tuple[str, ...] | None:
        """Return the key of a table if it is not the replica identity."""
        key: Sequence[str] | None = None
        if isinstance(self.key, Mapping) and name in self.key:
            key = self.key[name]
        elif version.replica_identity == "f":
            key = version.primary_key or None if self.key is None or isinstance(self.key, Mapping) else self.key
        return None if key is None else tuple(marked_name(item, self.options) for item in key)


class TableFeed:
    """Collects the changes of a table, and applies them to the table of a target.

    Parameters
    ----------
    name : str
        "schema.table".
    target : Target
    options : FeedOptions
    version : RelationVersion, optional
        The version whose columns the table of the target has.
    stale : tuple of int, optional
        A change up to which the rows cannot be known. A later truncate mends that.

    Attributes
    ----------
    renamed : str or None
        The other name that the table has from now on.
    kept : KeptColumns or None
        With schema_changes="ignore": the columns of the target.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        options: FeedOptions,
        version: RelationVersion | None = None,
        stale: Place | None = None,
    ) -> None:
        self.name, self._target = name, target
        self._options = replace(options, options=marked_options(options.options))
        self.version = None if version is None else marked_version(version, options.options)
        self.stale = stale
        self._layout: VersionLayout | None = None
        self._schema: pa.Schema | None = None if self.version is None else self._columns_of(self.version)
        self._net: NetChanges | None = None
        self._place: Place = (-1, -1)
        self.renamed: str | None = None
        self.kept: KeptColumns | None = None

    def keep_columns(self, last: Mapping[str, Any] | None = None, columns: Mapping[str, str] | None = None) -> None:
        """Keep the columns that the table of the target has, with schema_changes="ignore".

        Parameters
        ----------
        last : mapping, optional
            The last version of the table, as JSON, if it is not that of the target.
        columns : mapping of str to str, optional
            The columns of the target by those of the last version.
        """
        if self._options.schema_changes == "ignore" and self.version is not None and self._schema is not None:
            options = self._options.options
            version = self.version if last is None else marked_version(version_from_json(last), options)
            names = dict(zip(self._schema.names, self._schema.names, strict=True))
            if columns is not None:
                names = {marked_name(name, options): marked_name(kept, options) for name, kept in columns.items()}
            self.kept = KeptColumns(self.name, self._schema, version, names)

    # -- columns and key of a version ----------------------------------------------------------------------------------

    def _columns_of(self, version: RelationVersion, table: Table | None = None) -> pa.Schema:
        """Return the columns of the table of the target. Those of a key that is unique have the metadata `pg:key`."""
        key = self._options.key_of(self.name, version)
        try:
            found = net_schema((table or Table([version], self._options.options)).schema, key)
        except ValueError as error:
            raise TableError(self.name, plain_text(str(error))) from error
        fields = [item for item in found if item.name not in NET_COLUMNS]
        has_identity = version.replica_identity != "f" and any(item.flags & 1 for item in version.columns)
        if key is None and not has_identity:
            # Rows are found whole, and may be equal.
            fields = [
                item.with_metadata({name: value for name, value in (item.metadata or {}).items() if name != KEY})
                for item in fields
            ]
        return pa.schema(fields)

    # -- changes -------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of the changes in memory."""
        return 0 if self._net is None else self._net.nbytes

    def add(self, layout: VersionLayout, rows: pa.RecordBatch) -> None:
        """Add the next changes, all of one version.

        Raises
        ------
        TableStale
            If the rows cannot be known from a change on.
        RunError
            With schema_changes="fail", if the columns are others.
        """
        truncates = pc.indices_nonzero(pc.equal(rows["_op"], "truncate"))
        is_truncated = len(truncates) > 0
        if is_truncated:
            rows = rows.slice(truncates[-1].as_py())
        if self.stale is not None:
            if not is_truncated or _place(rows, 0) <= self.stale:
                return
            self.stale = None
        errors = rows["_error"]
        if errors.null_count < len(errors):
            place = _place(rows, first := pc.index(errors.is_valid(), True).as_py())
            reason = plain_text(f"position {place[1]}: {errors[first].as_py().partition(': ')[2]}")
            raise TableStale(layout.relation_id, self.name, place, reason, is_value=True)
        self._place = _place(rows, 0)
        if is_truncated:
            self._net = None
        if layout is not self._layout:
            self._set_layout(layout, is_truncated=is_truncated)
        if self._net is None:
            self._net = NetChanges(self._options.key_of(self.name, layout.version))
        self._place = _place(rows, len(rows) - 1)
        try:
            self._net.add(rows)
        except ValueError as error:
            raise self._stale(str(error)) from error

    def _set_layout(self, layout: VersionLayout, *, is_truncated: bool) -> None:
        """Give the table of the target the columns of another version."""
        if not layout.version.columns:
            reason = f"position {self._place[1]}: the table has no columns from here on"
            raise TableStale(layout.relation_id, self.name, self._place, reason)
        new = self._columns_of(layout.version, layout.table)
        before, old = self.version, self._schema
        if before is None or old is None or before.relation_id != layout.relation_id:
            self._net = None
            self._target.table(self.name).create(plain_schema(new))
        elif self.kept is not None:
            self._keep(self.kept, layout, new)
            return
        elif not before.is_like(layout.version):
            self._step(SchemaStep(before, layout.version, old, new, self._options.options.renames), is_truncated)
        self._layout, self.version, self._schema = layout, layout.version, new
        if self.kept is None:
            self.keep_columns()

    def _keep(self, kept: KeptColumns, layout: VersionLayout, new: pa.Schema) -> None:
        """Follow the table to another version, while the target keeps its columns."""
        self._layout = layout
        if not kept.last.is_like(layout.version):
            step = SchemaStep(
                kept.last, layout.version, self._columns_of(kept.last), new, self._options.options.renames
            )
            self.flush()
            kept.advance(step)

    def _step(self, step: SchemaStep, is_truncated: bool) -> None:
        if not step.is_any:
            self.flush()
            return
        if self._options.schema_changes == "fail":
            raise RunError(
                f"table {self.name}: position {self._place[1]}: {plain_text(step.text)}: apply with "
                "schema_changes='evolve', or into another target"
            )
        if is_truncated:
            self._target.table(self.name).create(plain_schema(step.new))
            return
        self.flush()
        table = self._target.table(self.name)
        try:
            columns = step.columns(is_empty=table.counts.rows == 0)
            table.evolve(plain_schema(step.new), plain_sources(columns))
        except UnknownValues as error:
            raise self._stale(str(error)) from error

    def flush(self) -> None:
        """Apply the changes so far to the table of the target.

        Raises
        ------
        TableStale
            If the rows cannot be known from a change on.
        """
        if self._net is None:
            return
        try:
            net = self._net.table()
        except ValueError as error:
            raise self._stale(str(error)) from error
        self._net = None
        if not net.num_rows:
            return
        if self.kept is not None:
            net = self.kept.net(net)
        try:
            self._target.table(self.name).apply(plain_net(net))
        except MissingRow as error:
            raise self._stale(str(error)) from error

    def _stale(self, reason: str) -> TableStale:
        assert self.version is not None
        reason = plain_text(reason)
        where = "" if reason.startswith("position ") else f"position {self._place[1]}: "
        return TableStale(self.version.relation_id, self.name, self._place, f"{where}{reason}")


def _place(rows: pa.RecordBatch, at: int) -> Place:
    return rows["_commit_position"][at].as_py(), rows["_position"][at].as_py()
