"""What the rows that a table has become when the table gets another version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from pgdecode.lake.target import ColumnSource
from pgdecode.net.history import TableHistory, ValueBefore
from pgdecode.net.touched_rows import converted
from pgdecode.relations.column_history import NO_RENAMES, Renames
from pgdecode.relations.column_types import column_types, common_type
from pgdecode.relations.relation_version import RelationVersion, used_from
from pgdecode.rows.old_values import decoded_value
from pgdecode.rows.own_names import with_free_names
from pgdecode.types.type_changes import ColumnType, TypeChange, compare_alike


class UnknownValues(ValueError):
    """The rows that a table has get values that the payloads do not tell."""


class SchemaStep:
    """The step from one version of a table to a later one.

    Parameters
    ----------
    before, after : RelationVersion
    old, new : pa.Schema
        The columns of the two versions.
    renames : Renames, optional
        What the caller states.
    between : sequence of RelationVersion
        Those between the two, if columns are matched from one version to the next. A column may have been dropped, and
        another one with its name added.

    Attributes
    ----------
    origins : dict
        The columns that `after` has, each with its name in `before`, or None if it was added.
    sources : dict
        Those of them that are in `new`.
    """

    def __init__(
        self,
        before: RelationVersion,
        after: RelationVersion,
        old: pa.Schema,
        new: pa.Schema,
        renames: Renames | None = None,
        between: Sequence[RelationVersion] = (),
    ) -> None:
        self.before, self.after, self.old, self.new = before, after, old, new
        self._renames = renames or NO_RENAMES
        self._history = self._history_of(before, after)
        # For each column, that of the version before, and the types that it has had.
        first = with_free_names(before)
        sources: dict[str, str | None] = {item.name: item.name for item in first.columns}
        types: dict[str, tuple[ColumnType, ...]] = {name: (kind,) for name, kind in column_types(first).items()}
        for pair in pairwise((before, *between, after)):
            history = self._history_of(*pair) if between else self._history
            added, kinds = history.added(1), column_types(history.versions[1])
            by_last = {last: name for name, last in history.names[0].items()}
            former = {name: None if name in added else by_last[name] for name in kinds}
            sources = {name: None if old is None else sources[old] for name, old in former.items()}
            types = {name: (*(() if old is None else types[old]), kinds[name]) for name, old in former.items()}
        self.origins = sources
        self.sources = {name: sources[name] for name in new.names}
        self._types = {name: types[name] for name in new.names}

    def _history_of(self, before: RelationVersion, after: RelationVersion) -> TableHistory:
        history = TableHistory([before, after], self._renames)
        if history.versions[0].columns != before.columns or after.visible_from is None:
            # A stream may commit after later versions were sent.
            since = min(before.position, after.position - 1)
            first = replace(before, position=since, visible_from=since)
            history = TableHistory([first, replace(after, visible_from=used_from(after))], self._renames)
        return history

    @property
    def is_any(self) -> bool:
        """Whether columns change: their names, types, order, or the key, or a column is or may be another one."""
        return None in self.sources.values() or not self.old.equals(self.new, check_metadata=True)

    @property
    def type_changes(self) -> dict[str, TypeChange]:
        """The columns of the new version whose type is another one."""
        every = {name: (types[0], types[-1]) for name, types in self._types.items() if self.sources[name] is not None}
        return {name: TypeChange(*pair) for name, pair in every.items() if pair[0] != pair[1]}

    def columns(self, *, is_empty: bool) -> dict[str, ColumnSource]:
        """Return the source of each column of the new version.

        Parameters
        ----------
        is_empty : bool
            Whether the table has no rows. Their values then need not be known.

        Raises
        ------
        UnknownValues
            If rows get values that the payloads do not tell.
        """
        missing = self._history.added(1)
        changes = self.type_changes
        found = {}
        for name, source in self.sources.items():
            kind = self.new.field(name).type
            if is_empty:
                found[name] = ColumnSource(None, pa.scalar(None, kind))
            elif source is None:
                found[name] = ColumnSource(None, self._missing(name, missing, kind))
            else:
                change = changes.get(name)
                kinds = self._types[name]
                if sum(one != other for one, other in pairwise(kinds)) > 1 and not compare_alike(kinds):
                    raise _unknown_type(name)
                found[name] = ColumnSource(
                    source, convert=None if change is None else self._convert(name, source, change)
                )
        return found

    def _missing(self, name: str, missing: Mapping[str, ValueBefore | None], kind: pa.DataType) -> pa.Scalar:
        known = missing.get(name)
        value = None if known is None else decoded_value(*known, kind)
        if value is None:
            raise UnknownValues(f"column {name!r} was added, and its values in older rows are not known")
        return value

    def _convert(
        self, name: str, source: str, change: TypeChange
    ) -> Callable[[pa.ChunkedArray], pa.ChunkedArray] | None:
        """Return the function that makes the new values of a column whose type is another."""
        unknown = _unknown_type(name)
        old, new = self.before.facts, self.after.facts
        is_certain = old is not None and new is not None and new.has_storage_of(old)
        # A type that keeps all values needs no rewrite, so USING may have computed other values.
        if change.is_kept and not is_certain and (old is not None or new is not None):
            raise unknown
        if not change.is_certain:
            raise unknown
        former, kind = self.old.field(source).type, self.new.field(name).type
        if change.is_same_text:
            return None
        common = common_type([former, kind]) or pa.string()
        if common == pa.string() and not _has_text_form(former):
            raise unknown

        def convert(values: pa.ChunkedArray) -> pa.ChunkedArray:
            try:
                found = change.converted(converted(values, common)).cast(kind)
            except pa.ArrowException:
                raise unknown from None
            if found.null_count > values.null_count:
                raise unknown
            return found

        return convert

    @property
    def text(self) -> str:
        """Say which columns change."""
        olds = {source: name for name, source in self.sources.items() if source is not None}
        parts = [f"column {name!r} was added" for name, source in self.sources.items() if source is None]
        parts += [f"column {name!r} was dropped" for name in self.old.names if name not in olds]
        parts += [f"column {old!r} was renamed to {new!r}" for old, new in olds.items() if old != new]
        parts += [
            f"the type of column {new!r} was changed"
            for old, new in olds.items()
            if self.old.field(old).type != self.new.field(new).type
        ]
        return ", ".join(parts) or "the key or the order of the columns was changed"


def _unknown_type(name: str) -> UnknownValues:
    return UnknownValues(f"the type of column {name!r} was changed, and the new values of older rows are not known")


def _has_text_form(kind: pa.DataType) -> bool:
    """Whether a cast of Arrow to text gives PostgreSQL's text form."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and 0 <= kind.scale <= 6)  # Arrow writes 1E-7
        or pa.types.is_date(kind)
        or kind == pa.string()
    )
