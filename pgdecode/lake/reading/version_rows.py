"""Rows of tables with the columns and types of the version that each row was sent with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_engine import BuiltRows, ChangeEngine
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.record_batches import LimitedBuilder
from pgdecode.changes.table_rows import Table, TableBuilder
from pgdecode.files.change_reader import TableError
from pgdecode.lake.reading.column_names import marked_options, marked_version, plain_text
from pgdecode.protocol.errors import DecodeError, Unrepresentable
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.options import Options


@dataclass(frozen=True, eq=False)
class VersionLayout:
    """Versions of a table that follow each other and are alike: their rows have the same columns.

    Attributes
    ----------
    version : RelationVersion
        The first of them.
    table : Table
    """

    version: RelationVersion
    table: Table

    @property
    def relation_id(self) -> int:
        """OID of the table."""
        return self.version.relation_id


class _Builder(TableBuilder):
    """Builds the rows of alike versions. A slice without such rows costs nothing.

    A row with a value that Arrow does not have is null, and `_error` says so: other tables go on.
    """

    def changes(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes, with a row for each."""
        if self.numbers.isdisjoint(change_slice.used_versions):
            return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in self.schema], schema=self.schema)
        try:
            return super().changes(change_slice)
        except DecodeError as error:
            # Without the name of the option, the caller has to declare a type.
            if isinstance(error, Unrepresentable) and "unrepresentable=" in error.detail:
                options = replace(self.options, mode="PERMISSIVE")
                found = TableBuilder(self.table, self.sent_versions, options).changes(change_slice)
                codes = pc.starts_with(found[self.error].drop_null(), f"{Unrepresentable.code} ")
                if pc.all(codes).as_py():
                    return found
            raise error.with_detail(plain_text(error.detail)) from None


class VersionOutput:
    """The changes of tables, with the columns of each version.

    Parameters
    ----------
    options : Options
    is_wanted : callable
        Whether the rows of a version are needed.
    """

    tables: Sequence[str | int] | None = None

    def __init__(self, options: Options, is_wanted: Callable[[RelationVersion], bool]) -> None:
        self._options = marked_options(options)
        self._is_wanted = is_wanted
        self._layouts: dict[int, VersionLayout] = {}  # by OID: the last one
        self._builders: dict[VersionLayout, _Builder] = {}
        self._numbers: dict[VersionLayout, dict[int, RelationVersion]] = {}
        self._n_versions = 0

    def builders(self, engine: ChangeEngine) -> list[tuple[VersionLayout, LimitedBuilder]]:
        """Make the builders of the versions so far."""
        versions = engine.state.relations.versions
        changed = set()
        for number, version in enumerate(versions[self._n_versions :], self._n_versions):
            if not version.relation_id or not self._is_wanted(version):
                continue
            version = marked_version(version, self._options)
            layout = self._layouts.get(version.relation_id)
            if layout is None or not layout.version.is_like(version):
                try:
                    layout = VersionLayout(version, Table([version], self._options))
                except ValueError as error:
                    raise TableError(version.qualified_name, plain_text(str(error))) from error
                self._layouts[version.relation_id] = layout
            self._numbers.setdefault(layout, {})[number] = version
            changed.add(layout)
        self._n_versions = len(versions)
        for layout in changed:
            self._builders[layout] = _Builder(layout.table, self._numbers[layout], self._options)
        return [*self._builders.items()]


Rows = tuple[VersionLayout, pa.RecordBatch]


def in_commit_order(built: Sequence[BuiltRows[VersionLayout]]) -> list[Rows]:
    """Put the rows of a slice into the order in which to apply them: those of each table in the order of commits.

    Batches of different tables are in the order of their first rows, because a table that was renamed or dropped leaves
    its name to another one.
    """
    by_table: dict[int, list[Rows]] = {}
    for layout, batch, _ in built:
        if len(batch):
            by_table.setdefault(layout.relation_id, []).append((layout, batch))
    batches: list[Rows] = []
    for parts in by_table.values():
        if len({layout for layout, _ in parts}) == 1:
            batches += parts
            continue
        columns = {name: pa.concat_arrays([batch[name] for _, batch in parts]) for name in _ORDER}
        numbers = [pa.repeat(pa.scalar(at, pa.int32()), len(batch)) for at, (_, batch) in enumerate(parts)]
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in _ORDER])
        runs = pc.run_end_encode(pa.concat_arrays(numbers).take(order))
        firsts, start = [0] * len(parts), 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            layout, batch = parts[number]
            batches.append((layout, batch.slice(firsts[number], end - start)))
            firsts[number] += end - start
            start = end
    return sorted(batches, key=lambda rows: [rows[1][name][0].as_py() for name in _ORDER])


_ORDER = ("_commit_position", "_position")
