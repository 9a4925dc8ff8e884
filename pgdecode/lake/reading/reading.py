"""One reading of the payloads, for all tables of a target that have the same state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_selection import IDENTITY
from pgdecode.files.change_reader import as_file_fault
from pgdecode.files.file_metadata import accepted_gaps, catalog_of, notes_of, source_of, with_footers
from pgdecode.files.ordered_files import OrderedBatch
from pgdecode.files.payload_file import fingerprint_of
from pgdecode.lake.applied import Applied
from pgdecode.lake.reading.column_names import plain_name, plain_version
from pgdecode.lake.reading.payload_source import PayloadSource, first_position
from pgdecode.lake.reading.replication import StateWriter, joined_state
from pgdecode.lake.reading.table_feed import FeedOptions, TableFeed, TableStale
from pgdecode.lake.reading.version_rows import VersionLayout, VersionOutput, in_commit_order
from pgdecode.lake.target import TableCounts, Target
from pgdecode.payloads.commits import rows_as_of
from pgdecode.payloads.workers import Workers
from pgdecode.protocol.as_of import AsOf
from pgdecode.relations.catalog import RelationCatalog, before_payloads
from pgdecode.relations.relation_json import version_from_json, version_to_json
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import named, normal_name
from pgdecode.rows.options import Options
from pgdecode.storage.errors import PathError
from pgdecode.types.user_types import UserType

# Bytes of payloads of undecided transactions that stay in memory. The others go to files.
_HELD_BYTES = 32 * 2**20
# Payloads of a batch.
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class ReadingOptions:
    """What all readings of a call have in common.

    Attributes
    ----------
    source : PayloadSource
    target : Target
    feeds : FeedOptions
    tables : tuple of str or None
        The tables to apply; None for all.
    until : AsOf or None
    catalog : RelationCatalog or None
    accept_gap : bool
    described : mapping
        The options that change rows, as JSON values.
    net_bytes : int
        How many bytes of net changes may be in memory.
    commit_bytes : int
        After how many bytes of payloads there is a commit.
    """

    source: PayloadSource
    target: Target
    feeds: FeedOptions
    tables: tuple[str, ...] | None
    until: AsOf | None
    catalog: RelationCatalog | None
    accept_gap: bool
    described: Mapping[str, Any]
    net_bytes: int
    commit_bytes: int


@dataclass
class Progress:
    """What a call has done so far.

    Attributes
    ----------
    tables : tuple of str or None
        Those that the caller names; None for all.
    counts : dict of str to TableCounts
        What was committed, by table.
    stale : dict of int to TableStale
        The tables whose rows are not known from a change on, by OID.
    builds : dict of int to str
        Tables to build from the beginning of the payloads, by OID.
    built : set of int
        Tables that were built.
    notes : dict of str to None
    offered : dict of str to None
        The tables that the caller may have named, in the order in which they came up.
    without_columns : set of str
        The tables that are left out, because they have no columns.
    """

    tables: tuple[str, ...] | None = None
    counts: dict[str, TableCounts] = field(default_factory=dict)
    stale: dict[int, TableStale] = field(default_factory=dict)
    builds: dict[int, str] = field(default_factory=dict)
    built: set[int] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)
    offered: dict[str, None] = field(default_factory=dict)
    without_columns: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._normal = {*map(normal_name, self.tables or ())}

    def is_chosen(self, name: str) -> bool:
        """Whether a table is one of those that the caller names.

        Raises
        ------
        PathError
            If the caller's name may mean another table, too.
        """
        if self.tables is None:
            return True
        self.offered[name] = None
        if name in self._normal or '"' not in name:
            return name in self._normal
        try:
            return any(named(table, {name}) == name == named(table, self.offered) for table in self.tables)
        except KeyError as error:
            raise PathError(f"table {error.args[0]}") from None

    def add(self, name: str, counts: TableCounts) -> None:
        """Add what a commit has done to a table."""
        self.counts.setdefault(name, TableCounts()).add(counts)


class Reading:
    """Reads payloads from the position of some tables on, and applies their changes.

    Parameters
    ----------
    options : ReadingOptions
    progress : Progress
    applied : mapping of str to Applied
        The states of the tables, all at the same position. If empty, it reads from the beginning.
    spill : Path
        A folder for temporary files.
    only : mapping of int to str, optional
        The tables to build, by OID.
    is_first : bool
        Whether to add tables that come up to the target. A reading that does not still adds those that get the name of
        one of its tables.
    elsewhere : collection of str
        The tables of later readings. These add what gets their names.
    """

    def __init__(
        self,
        options: ReadingOptions,
        progress: Progress,
        applied: Mapping[str, Applied],
        spill: Path,
        only: Mapping[int, str] | None = None,
        *,
        is_first: bool = True,
        elsewhere: Collection[str] = (),
    ) -> None:
        self._options, self._progress, self._spill = options, progress, spill
        self._only, self._is_first, self._elsewhere, self._names = only, is_first, elsewhere, {*applied}
        first = next(iter(applied.values()), None)
        self._before = first
        self._position = -1 if first is None else first.position
        replication = {} if first is None else _of(first)
        self._files = options.source.after(self._position, replication.get("session"), replication.get("seen"))
        self._n_rows = 0  # that were read
        self._fingerprint: str | None = None  # of the last payload
        self.n_rows = self._files.n_rows
        self._source = self._checked_source(first)
        if first is not None:
            options.source.check_follows(first, options.target.name)
        stored = {item.relation_id: _of(item) for item in applied.values()}
        state, self._others = ReplicationState(), dict[int, str]()
        if stored:
            state, self._others = joined_state(stored, options.source, spill)
        types = [UserType(*item) for of in stored.values() for item in of["types"]]
        given, self._types = with_footers(options.feeds.options, self._files.files, types)
        self._without_columns = {oid for of in stored.values() for oid in of.get("without_columns", ())}
        self._session = None if first is None else _of(first)["session"]
        self._engine = self._new_engine(state, given)
        self._feeds: dict[int, TableFeed] = {}
        for name, item in applied.items():
            feed = self._feeds[item.relation_id] = self._feed(name, version_of(item))
            feed.keep_columns(_of(item).get("last"), _of(item).get("columns"))
        self._ignored: set[int] = set()
        self._without_name: set[int] = set()  # those whose name another table has got: dropped, or renamed
        self._to_build: set[int] = set()  # those that this reading has found
        self._output = VersionOutput(self._engine.options, self._is_wanted)
        self._last: tuple[int, datetime | None] = (
            (-1, None) if first is None else (first.commit_lsn, first.commit_timestamp)
        )
        self._is_full = False  # net changes had to be applied since the last commit, because they were too many
        self._begins_late = self._begins_after_beginning()

    # -- before the first payload --------------------------------------------------------------------------------------

    def _checked_source(self, before: Applied | None) -> Mapping[str, Any] | None:
        """Check that the payloads follow those that were applied, and return where they were captured."""
        options, files = self._options, self._files.files
        # Without later payloads, the last file tells it too.
        source = source_of(files or options.source.footers())
        stored = (None if before is None else before.source) or {}
        for name in IDENTITY if source and stored else ():
            found, known = (source or {}).get(name), stored.get(name)
            if found != known:
                raise RunError(
                    f"{options.source.path}: comes from {name} {found!r}, but the tables of {options.target.name} from "
                    f"{name} {known!r}: apply it to another target"
                )
        accepted_gaps(files, accept_gap=options.accept_gap)
        self._progress.notes |= dict.fromkeys(notes_of(files))
        first = first_position(self._files)
        if before is not None and first is not None and first > self._position + 1:
            raise RunError(
                f"{options.source.path}: begins at position {first}, but the last position in {options.target.name} is "
                f"{self._position}: {first - self._position - 1:,} payloads between them are missing"
            )
        found = source or stored
        path = options.source.path
        return {**found, "path": str(path.absolute())} if found is not None and isinstance(path, Path) else found

    def _new_engine(self, state: ReplicationState, options: Options) -> ChangeEngine:
        catalog = state.first_catalog(self._options.catalog or catalog_of(self._files.files))
        if catalog is not None and self._files.position is None:
            catalog = before_payloads(catalog)
        return ChangeEngine(
            options,
            state=state,
            catalog=catalog,
            spill=self._spill,
            max_held_bytes=_HELD_BYTES,
            is_counted=self._files.is_counted,
        )

    def _begins_after_beginning(self) -> bool:
        """Whether the first payloads of a capture are missing, so that tables may have had rows before."""
        first = first_position(self._files)
        return self._before is None and first is not None and first > 0

    def _feed(self, name: str, version: RelationVersion | None, relation_id: int = 0) -> TableFeed:
        relation_id = relation_id if version is None else version.relation_id
        stale = self._progress.stale.get(relation_id)
        options = replace(self._options.feeds, options=self._engine.options)
        return TableFeed(name, self._options.target, options, version, None if stale is None else stale.place)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _is_wanted(self, version: RelationVersion) -> bool:
        """Whether the changes of a version are needed. Targets have no tables without columns."""
        relation_id, name = version.relation_id, version.qualified_name
        if self._only is None:
            is_wanted = relation_id in self._feeds or self._progress.is_chosen(name)
        else:
            is_wanted = relation_id in self._only
        if is_wanted and not version.columns and not any(item.columns for item in self._versions_of(relation_id)):
            self._progress.without_columns.add(name)
            self._progress.notes[f"table {name}: position {version.position}: it has no columns: it is left out"] = None
            return False
        return is_wanted

    def _feed_of(self, layout: VersionLayout, commit_position: int) -> TableFeed | None:
        """Return the feed of a table, which may be new to the target; None if its changes are not needed here.

        `commit_position` is that of the first of the changes.
        """
        version, relation_id = layout.version, layout.relation_id
        feed = self._feeds.get(relation_id)
        name = version.qualified_name if self._only is None else self._only[relation_id]
        if relation_id in self._ignored:
            if relation_id in self._progress.builds or relation_id in self._without_name:
                # It may have been renamed again.
                self._build(relation_id, name)
            return None
        if feed is not None and feed.name == name:
            return feed
        if feed is not None:
            self._rename(feed, version)
            return None
        if self._only is None:
            later = self._options.target.applied.get(name)
            if later is not None and later.relation_id != relation_id and commit_position <= later.position:
                # The table was dropped. The target has the one that was made later with its name.
                return None
            self._leave_name(name, relation_id)
            if not self._may_add(version):
                self._ignored.add(relation_id)
                return None
        for other, item in [*self._feeds.items()]:
            if item.name == name:
                # The table was dropped, and made again, or renamed, which its next change shows.
                del self._feeds[other]
                self._ignored.add(other)
                self._without_name.add(other)
                self._progress.stale.pop(other, None)
        feed = self._feeds[relation_id] = self._feed(name, None, relation_id)
        if relation_id in self._progress.stale:
            return feed
        if self._begins_late:
            first = first_position(self._files) or 0
            reason = f"position {first}: the payloads before it are missing, and the table may have had rows then"
            raise TableStale(relation_id, name, (first, first), reason)
        if any(not item.columns and item.position < version.position for item in self._versions_of(relation_id)):
            place = version.position, version.position
            reason = f"position {version.position}: the table had no columns before, and may have had rows then"
            raise TableStale(relation_id, name, place, reason)
        return feed

    def _may_add(self, version: RelationVersion) -> bool:
        """Whether a table that is new to this reading is added to the target from here on."""
        relation_id, name = version.relation_id, version.qualified_name
        known = self._options.target.applied.get(name)
        if name in self._elsewhere or not (self._is_first or name in self._names):
            # Another reading adds it.
            return False
        if known is not None and known.relation_id == relation_id:
            # Another reading has its changes.
            return False
        if relation_id in self._others or self._had_other_name(version):
            # It has had changes before.
            if relation_id not in self._progress.built:
                self._build(relation_id, name)
            return False
        return True

    def _build(self, relation_id: int, name: str) -> None:
        """Let a table that has got a name be built from the beginning of the payloads."""
        self._leave_name(name, relation_id)
        self._progress.builds[relation_id] = name
        self._to_build.add(relation_id)

    def _leave_name(self, name: str, relation_id: int) -> None:
        """Leave a name to a table. Another one that was to be built with it was dropped, or comes with another name."""
        builds = self._progress.builds
        for other in self._to_build - {relation_id}:
            if builds.get(other) == name:
                del builds[other]
                self._without_name.add(other)

    def _had_other_name(self, version: RelationVersion) -> bool:
        """Whether a table had another name in payloads so far."""
        return any(
            item.qualified_name != version.qualified_name and item.position < version.position
            for item in self._versions_of(version.relation_id)
        )

    def _versions_of(self, relation_id: int) -> Iterator[RelationVersion]:
        relations = self._engine.state.relations
        return (relations.versions[number] for number in relations.numbers_of(relation_id))

    def _rename(self, feed: TableFeed, version: RelationVersion) -> None:
        """Leave a table as it is, because from now on it has another name."""
        relation_id, stale = version.relation_id, self._progress.stale
        self._ignored.add(relation_id)
        self._build(relation_id, version.qualified_name)
        if relation_id in stale:
            stale[relation_id].name = version.qualified_name
            return
        self._progress.notes[
            f"table {feed.name} was renamed to {version.qualified_name} at position {version.position}: "
            f"{feed.name} stays as it was"
        ] = None
        feed.flush()
        feed.renamed = version.qualified_name

    # -- payloads ------------------------------------------------------------------------------------------------------

    def run(self, workers: Workers, on_rows: Callable[[int], None]) -> None:
        """Apply the changes, and commit.

        Raises
        ------
        TableStale
            If the rows of a table cannot be known. Nothing is lost if the changes since the last commit are rolled
            back and read again without those of the table.
        """
        n_bytes = 0
        for batch in self._files.batches(_BATCH_ROWS, workers):
            batch, is_last = self._begin(batch)
            n_bytes += batch.payloads.nbytes
            with as_file_fault(batch):
                functions, error = self._engine.slices(batch.payloads, batch.positions, self._output)
                for built in workers.map(lambda build: build(), functions):
                    self._apply(built)
                if error is not None:
                    raise error
            self._n_rows += len(batch.positions)
            if len(batch.payloads):
                self._fingerprint = fingerprint_of(batch.payloads[-1])
            on_rows(len(batch.positions))
            if n_bytes > self._options.commit_bytes or self._is_full:
                self._commit()
                n_bytes = 0
            if is_last:
                break
        self._commit()

    def _begin(self, batch: OrderedBatch) -> tuple[OrderedBatch, bool]:
        """Return the rows of a batch up to the last commit, and whether it has later ones."""
        if batch.is_reconnected:
            self._engine.state.is_reconnected = True
        if batch.session is not None:
            self._session = batch.session
        until = self._options.until
        n_rows = None if until is None or not len(batch.positions) else rows_as_of(batch.payloads, until)
        return (batch, False) if n_rows is None else (batch.first(n_rows), True)

    def _apply(self, built: Iterable[Any]) -> None:
        for layout, rows in in_commit_order([*built]):
            feed = self._feed_of(layout, rows["_commit_position"][0].as_py())
            if feed is None:
                continue
            feed.add(layout, rows)
            lsn, time = rows["_commit_lsn"][-1].as_py(), rows["_commit_timestamp"][-1].as_py()
            self._last = max(self._last[0], lsn), time
        feeds = self._feeds.values()
        while sum(feed.nbytes for feed in feeds) > self._options.net_bytes:
            max(feeds, key=lambda feed: feed.nbytes).flush()
            self._is_full = True

    def _commit(self) -> None:
        """Commit the changes of all tables so far, with their states."""
        engine, target, progress = self._engine, self._options.target, self._progress
        position = engine.state.position - 1
        feeds = {relation_id: feed for relation_id, feed in self._feeds.items() if feed.stale is None}
        feeds = {relation_id: feed for relation_id, feed in feeds.items() if feed.version is not None}
        for feed in feeds.values():
            feed.flush()
        if position == self._position and self._before is not None:
            return
        state = engine.saved_state
        if not feeds:
            return
        writer = StateWriter(state, self._others, self._without_columns)
        restart = min((item.begin_position for item in state.undecided), default=position + 1)
        types = [(item.oid, item.name, item.declaration) for item in self._types]
        seen = self._options.source.seen(position, self._n_rows, self._fingerprint)
        applied = {}
        for relation_id, feed in feeds.items():
            assert feed.version is not None
            replication = {**writer.table(relation_id), "types": types, "session": self._session, "seen": seen}
            if feed.renamed is not None:
                replication["renamed"] = feed.renamed
            if feed.kept is not None:
                columns = {plain_name(name): plain_name(kept) for name, kept in feed.kept.columns.items()}
                replication |= {"last": version_to_json(plain_version(feed.kept.last)), "columns": columns}
            applied[feed.name] = Applied(
                position,
                min(restart, position + 1),
                max(self._last[0], state.last_lsn),
                self._last[1],
                self._source,
                self._options.described,
                version_to_json(plain_version(feed.version)),
                replication,
            )
        for name in applied:
            progress.add(name, target.table(name).counts)
        target.commit(applied)
        self._is_full = False
        for relation_id, feed in [*feeds.items()]:
            if feed.renamed is not None:
                del self._feeds[relation_id]
        for relation_id in [*progress.stale]:
            if relation_id in feeds:
                del progress.stale[relation_id]
        self._position = position
        self._before = next(iter(applied.values()), self._before)

    @property
    def tables(self) -> Mapping[int, str]:
        """The tables of this reading, by OID."""
        return {relation_id: feed.name for relation_id, feed in self._feeds.items()}


def with_other_option(options: ReadingOptions) -> str:
    """Say how a target gets another option."""
    return f"delete {options.target.name}, and apply {options.source.path} again with the option, which makes it anew"


def version_of(applied: Applied) -> RelationVersion:
    """Return the version whose columns a table of a target has."""
    return version_from_json(applied.version or {})


def _of(applied: Applied) -> dict[str, Any]:
    """Return the state of the decoder that a table has."""
    return dict(applied.replication or {})
