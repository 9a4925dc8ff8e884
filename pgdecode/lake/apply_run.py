"""Applies payloads to the tables of a target, so that they equal those of the server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

from pgdecode.datasets.errors import RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.reading.dry_run import DryRun
from pgdecode.lake.reading.payload_source import PayloadSource
from pgdecode.lake.reading.reading import Progress, Reading, ReadingOptions, with_other_option
from pgdecode.lake.reading.table_feed import FeedOptions, TableStale
from pgdecode.lake.target import TableCounts, Target
from pgdecode.lake.targets import lake_target
from pgdecode.payloads.workers import Workers, all_cores
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.errors import did_you_mean, listed
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import SchemaChanges, Unwrap, check_option, options_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.table_names import named
from pgdecode.rows.options import ApplyKeywords, Options, with_options
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import Location, file_path

# Net changes in memory, and payloads between two commits.
_NET_BYTES = 128 * 2**20
_COMMIT_BYTES = 4 * 2**30

# Called with the number of payloads of a reading. Yields a function that is called with the number of each batch.
OnProgress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


def _no_progress(n_rows: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda n_rows: None)


@dataclass
class TableResult(TableCounts):
    """What a call has done to a table, and where the table is now.

    Attributes
    ----------
    upserts, deletes, truncates : int
        Rows that were written and removed, and how often the table was emptied.
    missing : int
        Rows to remove that the table did not have. It is 0 if the table had all rows of the server.
    rows : int
        Of the table now.
    files_added, files_removed, bytes_added : int
        Files that were written and replaced, and the bytes written.
    position : int
        The payloads up to this position are applied.
    commit_lsn : int
        The greatest LSN of a commit that is applied; -1 without one.
    commit_timestamp : datetime or None
        Of the last commit that is applied.
    """

    position: int = -1
    commit_lsn: int = -1
    commit_timestamp: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        """Convert it to JSON values, with the LSN in PostgreSQL's text form."""
        return _as_dict(vars(self))


@dataclass(frozen=True)
class ApplyResult:
    """What a call of `apply` has done.

    Attributes
    ----------
    tables : dict of str to TableResult
        By "schema.table".
    position : int
        The payloads up to this position are applied to all these tables.
    commit_lsn : int
        The greatest LSN of a commit that is applied; -1 without one.
    commit_timestamp : datetime or None
        Of the last commit that is applied.
    notes : tuple of str
        On the payloads and on tables that were renamed.
    is_dry_run : bool
    """

    tables: dict[str, TableResult] = field(default_factory=dict)
    position: int = -1
    commit_lsn: int = -1
    commit_timestamp: datetime | None = None
    notes: tuple[str, ...] = ()
    is_dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Convert it to JSON values, with LSNs in PostgreSQL's text form."""
        return _as_dict({**vars(self), "tables": {name: table.as_dict() for name, table in self.tables.items()}})


def _as_dict(found: Mapping[str, Any]) -> dict[str, Any]:
    lsn, time = found["commit_lsn"], found["commit_timestamp"]
    return {
        **found,
        "commit_lsn": None if lsn < 0 else lsn_to_text(lsn),
        "commit_timestamp": None if time is None else time.isoformat(),
    }


class StaleTables(RunError):
    """Tables whose rows cannot be known from a change on. They stay as they were before; the others are applied.

    Attributes
    ----------
    result : ApplyResult
        What was done to all tables.
    tables : dict of str to str
        The reason, by the name of the table.
    choices : dict of str to str
        What helps, other than a copy alone, for tables that have a value which Arrow does not have.
    """

    def __init__(self, stale: Collection[TableStale], other_option: str, result: ApplyResult) -> None:
        stale = sorted(stale, key=lambda item: item.name)
        self.tables, self.result = {item.name: item.reason for item in stale}, result
        choice = f"{other_option}; or change the value on the server, and "
        self.choices = {item.name: choice for item in stale if item.is_value}
        super().__init__(
            "\n".join(
                f"table {name}: {reason}; {self.choices.get(name, '')}copy it again: pgdecode capture with "
                f"copy={name!r}"
                for name, reason in self.tables.items()
            )
        )


@with_options()
def apply(
    source: Location,
    target: str | Target,
    *,
    tables: str | Sequence[str] | None = None,
    until: AsOf | int | str | datetime | None = None,
    key: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    schema_changes: SchemaChanges = "evolve",
    accept_gap: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    payload: str = "data",
    position: str | None = None,
    session: str | None = None,
    unwrap: Unwrap = "auto",
    catalog: RelationCatalog | None = None,
    workers: int | None = None,
    on_progress: OnProgress = _no_progress,
    **options: Unpack[ApplyKeywords],
) -> ApplyResult:
    """Apply payloads to the tables of a target, so that they equal those of the server as of a commit.

    The target has the position up to which payloads are applied, in the commit of the data. The next call goes on from
    there; the same call again changes nothing.

    Parameters
    ----------
    source : path or URI
        A file of payloads or a folder with files, such as that of `pgdecode capture`.
    target : str or Target
        "parquet:FOLDER", "delta:FOLDER", "iceberg:CATALOG/NAMESPACE", "duckdb:FILE" or "ducklake:CATALOG".
    tables : str or sequence of str, optional
        "schema.table". By default, all tables that the payloads describe.
    until : LSN or time, optional
        The last commit to apply, as `as_of` of `pgdecode.snapshot`. "now" is the last one that there is.
    key : sequence of str, or mapping of str to sequence of str, optional
        The columns that tell the rows of a table apart, for all tables with REPLICA IDENTITY FULL, or by table. By
        default, such tables have the primary key if captured files tell it. Without one, rows are compared whole.
    schema_changes : {"evolve", "ignore", "fail"}
        What to do if the columns of a table change: change those of the target; keep those of the target; stop.
    accept_gap : bool
        Read over gaps that the capture accepted, where changes are missing.
    dry_run : bool
        Return what would be done, and write nothing.
    storage_options : mapping, optional
        How to connect to object stores, such as {"region": "eu-west-1"}.
    payload, position, session, unwrap
        The columns of the files, as in the command `pgdecode decode`.
    catalog : RelationCatalog, optional
        Relations that the first payloads do not describe.
    workers : int, optional
        The number of threads. By default that of the cores.
    on_progress : callable, optional
        Called with the number of payloads to read. Returns a context manager, which yields a function that is called
        with the number of payloads of each batch.
    **options
        As in `ChangeDecoder`.

    Returns
    -------
    ApplyResult

    Raises
    ------
    StaleTables
        If the rows of a table cannot be known from a change on, such as those of a column that was added without a
        known default, or have a value that Arrow does not have (`unrepresentable`). The other tables are applied.
    RunError
        If the payloads do not follow those that were applied, or options are others; if another process writes.
    PathError, FileFault
        If a file cannot be used, or a payload or value is bad.
    """
    check_option("schema_changes", schema_changes, SchemaChanges)
    chosen = None if tables is None else ((tables,) if isinstance(tables, str) else tuple(tables))
    found = Options.of(options)
    described = {**options_of(found), "key": _plain_key(key), "schema_changes": schema_changes}
    found_target = lake_target(target, storage_options=storage_options)
    reading = ReadingOptions(
        PayloadSource(file_path(source, storage_options), payload, position, session, unwrap),
        DryRun(found_target) if dry_run else found_target,
        FeedOptions(found, schema_changes, key),
        chosen,
        _last_commit(until),
        catalog,
        accept_gap,
        json.loads(json.dumps(described)),
        _NET_BYTES,
        _COMMIT_BYTES,
    )
    reading.source.find()
    with reading.target.opened(), Workers(all_cores() if workers is None else workers) as threads:
        return _Run(reading, threads, on_progress).run()


def _last_commit(until: AsOf | int | str | datetime | None) -> AsOf | None:
    try:
        return None if until == "now" else AsOf.of(until)
    except ValueError as error:
        raise ValueError(str(error).replace("as_of", "until")) from None


def _plain_key(key: Sequence[str] | Mapping[str, Sequence[str]] | None) -> Any:
    if isinstance(key, str):
        raise TypeError(f"key is a sequence of columns' names, or a mapping of tables to them: pass key=[{key!r}]")
    if isinstance(key, Mapping):
        return {name: [*columns] for name, columns in sorted(key.items())}
    return None if key is None else [*key]


class _Run:
    """The readings of a call: one for all tables with the same position."""

    def __init__(self, options: ReadingOptions, workers: Workers, on_progress: OnProgress) -> None:
        self._options, self._workers, self._on_progress = options, workers, on_progress
        self._target = options.target
        self._progress = Progress(options.tables)
        self._finished: set[str] = set()
        self._has_added = False  # whether a reading has added the tables that are new to the target

    def run(self) -> ApplyResult:
        """Read until the end, and return what was done."""
        for name, applied in self._states().items():
            self._check_options(name, applied)
        self._find_missing()
        while True:
            group = self._next_group()
            if group:
                self._read(group)
            elif not self._has_added and not self._states():
                self._read({})
            elif self._progress.builds:
                self._read({}, dict(self._progress.builds))
            else:
                break
        result = self._result()
        if stale := self._progress.stale.values():
            raise StaleTables(stale, with_other_option(self._options), result)
        self._check_tables()
        return result

    def _states(self) -> dict[str, Applied]:
        """Return the states of the tables to apply, without those that have another name now."""
        found = {name: item for name, item in self._target.applied.items() if self._progress.is_chosen(name)}
        last: dict[int, int] = {}  # the last position of each table: one that was stale when it was renamed has no mark
        for item in self._target.applied.values():
            last[item.relation_id] = max(item.position, last.get(item.relation_id, -1))
        return {
            name: item
            for name, item in found.items()
            if "renamed" not in (item.replication or {}) and item.position == last[item.relation_id]
        }

    def _next_group(self) -> dict[str, Applied]:
        """Return the tables at the least position that were not read to the end."""
        states = {name: item for name, item in self._states().items() if name not in self._finished}
        least = min((item.position for item in states.values()), default=-1)
        return {name: item for name, item in states.items() if item.position == least}

    def _find_missing(self) -> None:
        """Note the tables that earlier payloads have described, and the target does not have."""
        for item in self._target.applied.values():
            replication = item.replication or {}
            for oid, name in replication.get("others", {}).items():
                if name in self._target.applied or not self._progress.is_chosen(name):
                    continue
                if int(oid) in replication.get("without_columns", ()):
                    self._progress.without_columns.add(name)
                else:
                    self._progress.builds[int(oid)] = name

    def _read(self, group: Mapping[str, Applied], only: Mapping[int, str] | None = None) -> None:
        with tempfile.TemporaryDirectory(prefix="pgdecode-") as spill:
            is_first = only is None and not self._has_added
            elsewhere = {*self._states()} - {*group} - self._finished
            reading = Reading(
                self._options, self._progress, group, Path(spill), only, is_first=is_first, elsewhere=elsewhere
            )
            try:
                with self._on_progress(reading.n_rows) as on_rows:
                    reading.run(self._workers, on_rows)
            except TableStale as error:
                self._target.roll_back()
                self._progress.stale[error.relation_id] = error
                return
        self._has_added = self._has_added or is_first
        self._finished |= {*group, *reading.tables.values()}
        self._progress.built |= {*(only or ())}
        for relation_id, name in [*self._progress.builds.items()]:
            if relation_id in (only or ()) or reading.tables.get(relation_id) == name:
                del self._progress.builds[relation_id]

    def _check_options(self, name: str, applied: Applied) -> None:
        """Check that the options are those of the calls before."""
        for option, value in self._options.described.items():
            before = applied.options.get(option)
            if before != value:
                raise RunError(
                    f"table {name}: was applied with {option}={before!r}, and not {value!r}: use the same, or another "
                    f"target. To change it, {with_other_option(self._options)}"
                )

    def _check_tables(self) -> None:
        offered, known = self._progress.offered, {*self._target.applied, *self._progress.without_columns}
        for table in self._options.tables or ():
            if named(table, offered) not in known:
                raise PathError(
                    f"table {table}: no committed transaction of {self._options.source.path} describes or uses it"
                    f"{did_you_mean(table, [*offered])}; there are {listed(sorted(offered))}"
                )

    def _result(self) -> ApplyResult:
        tables = {}
        for name, state in sorted(self._states().items()):
            counts = self._progress.counts.get(name)
            if counts is None:
                counts = TableCounts(rows=self._target.table(name).counts.rows)
            tables[name] = TableResult(
                **vars(counts),
                position=state.position,
                commit_lsn=state.commit_lsn,
                commit_timestamp=state.commit_timestamp,
            )
        last = max(tables.values(), key=lambda item: item.commit_lsn, default=TableResult())
        return ApplyResult(
            tables,
            min((item.position for item in tables.values()), default=-1),
            last.commit_lsn,
            last.commit_timestamp,
            tuple(self._progress.notes),
            isinstance(self._target, DryRun),
        )
