"""The rows that changes have touched, through the versions of their table."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from pgdecode.net.history import TableHistory
from pgdecode.net.touched_rows import TouchedRows
from pgdecode.protocol.errors import listed
from pgdecode.rows.old_values import decoded_value
from pgdecode.types.type_changes import TypeChange


class TableFold:
    """What net changes and snapshots do to the rows so far when the table gets another version."""

    def __init__(self, history: TableHistory) -> None:
        self._history = history
        self._version = -1  # the number of the last version that a change used

    def _key_of(self, rows: TouchedRows, version: int) -> tuple[tuple[str, ...], bool]:
        """Return the key of rows from a version on, and whether it is unique."""
        raise NotImplementedError

    def _told(self, rows: TouchedRows, changes: pa.RecordBatch, version: int) -> set[str]:
        """Return the columns that changes of a version, which may be an earlier one, can tell.

        Raises
        ------
        ValueError
            If they do not tell the key.
        """
        told = {*self._history.columns(version)}
        for at in range(version + 1, self._version + 1):
            told.difference_update(self._history.added(at))
        absent = [name for name in rows.key if name not in told]
        if absent and len(changes):
            raise ValueError(
                f"position {changes['_position'][0]}: the change does not tell column {absent[0]!r} of the key"
            )
        return told

    def _advance(self, rows: TouchedRows, version: int) -> None:
        """Follow the rows so far to a later version of the table."""
        first, self._version = self._version, max(version, self._version)
        if first < 0:
            self._identify(rows, version, {})
            return
        for at in range(first + 1, version + 1):
            before, after = self._history.versions[at - 1 : at + 1]
            if len(rows) and before.relation_id != after.relation_id:
                raise ValueError(
                    f"position {after.position}: the table is another one from here on (OID {after.relation_id}, "
                    f"before {before.relation_id}): make net changes of the changes before and after it apart"
                )
            added = self._history.added(at)
            changes = self._history.type_changes(at - 1, at)
            of_key = {*rows.key}.intersection(self._key_of(rows, at)[0])
            for name, change in changes.items() if len(rows) else ():
                if name not in added and name not in of_key:
                    rows.alter(name, change)
            for name, value in added.items() if len(rows) else ():
                if name in rows.fields:
                    kind = rows.fields[name].type
                    rows.set_missing(name, None if value is None else decoded_value(*value, kind))
            self._identify(rows, at, {name: changes[name] for name in of_key & {*changes} - {*added}}, added)

    def _identify(
        self, rows: TouchedRows, version: int, changes: Mapping[str, TypeChange], added: Collection[str] = ()
    ) -> None:
        """Find rows by the key of a version."""
        key, is_unique = self._key_of(rows, version)
        is_same = (key, is_unique) == (rows.key, rows.is_unique)
        if is_same and not {*key} & {*added} and all(item.is_same_text for item in changes.values()):
            return
        position = self._history.versions[version].position
        if len(rows) and not set(key) <= set(rows.key) and rows.has_keys_before:
            was_there = self._history.columns(version - 1) if version else []
            if any(name in was_there for name in key if name not in rows.key):
                raise ValueError(
                    f"position {position}: the key of the table is {listed(key)} from here on, and was "
                    f"{listed(rows.key)}: make net changes of the changes before and after it apart"
                )
        rows.identify(key, changes, position, is_unique=is_unique, added=added)
