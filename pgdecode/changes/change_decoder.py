"""Decodes payloads in slot order to committed changes: those that a PostgreSQL subscriber would apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

import pyarrow as pa

from pgdecode.changes.change_engine import ChangeEngine, PayloadCounts
from pgdecode.changes.change_rows import CHANGES, TextOutput
from pgdecode.changes.checkpoint import spent_from_json, state_from_json, state_to_json
from pgdecode.changes.record_batches import ONE_BATCH, one_batch
from pgdecode.changes.stored_state import renames_since, replication_of, with_replication
from pgdecode.changes.table_rows import TableCache, TableOutput
from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.datasets.manifest import Input, Manifest
from pgdecode.datasets.run import check_options
from pgdecode.datasets.state import InputFile, State
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import Shape, options_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.rows.options import DecoderKeywords, Options, with_options
from pgdecode.storage.object_path import local_path
from pgdecode.types.user_types import DescribedTypes, UserType

_Name = TypeVar("_Name", bound=str | int)
_LIMITS = Limits()


class ChangeDecoder:
    """Decodes payloads in slot order to committed changes, batch by batch.

    It tracks transactions, streams with sub-transactions, two-phase commits and the versions of relations. A change is
    returned when its transaction commits. Apply the changes in the order of (commit_position, position).

    Parameters
    ----------
    state : mapping, optional
        The `state` of another decoder. This decoder continues from there.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe, because the payloads begin in the middle of a session. If the first
        call has positions, versions from later positions are ignored. The catalog is part of the `state`. So with a
        `state` from after the first payload, this option is ignored.
    spill : path, optional
        A folder for the payloads of undecided transactions beyond `max_held_bytes`. By default they stay in memory. The
        decoder deletes a file with the call after the one that ended its transaction. The `state` names the files, so
        it is valid only until the next call of the decoder.
    max_held_bytes : int
        With `spill`: how many bytes of payloads stay in memory. If there are more, the largest transactions are written
        to files, until at most half of this number is left.
    threads : int
        How many threads may decode the committed rows of a batch, as in `decode_messages`. The result is the same.
        Scanning payloads and assembling transactions always uses one thread.

    Other Parameters
    ----------------
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Raise on the first bad payload; or return it as a row with the reason in `error`; or leave it out. `bad_rows`
        counts bad rows in the last two modes.
    start : {"transaction", "anywhere"}
        Where the payloads begin, if there is no `state`. With "transaction", they begin between transactions, and a
        message of a transaction without a beginning is an error. With "anywhere", such transactions are left out, and
        `skipped` counts them.
    empty : {"null", "error"}
        What to do with payloads of 0 bytes, which servers send for an origin without a name: ignore and count them
        (`empty_payloads`), or treat them as bad payloads.
    include_uncommitted : bool
        Return also changes that were rolled back (`committed` is false) or that have no outcome (null).
    drop_duplicates : bool
        Leave out transactions that were delivered before: those whose commit LSN is not greater than all earlier ones.
        Logical replication delivers at least once: after a reconnect the server sends unconfirmed transactions again.
        `repeated` counts them. Without this option, such a transaction is returned again, and (commit_lsn, xid)
        identifies it. If the payloads have no positions, it is an error unless `reconnected` was called before it.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        Types that the stream does not describe, as in `decode_rows`.
    columns : mapping of a table to a mapping of a column's name to a PostgreSQL type, optional
        Types of columns of typed tables, as in `decode_rows`: {"public.orders": {"price": "numeric(20,4)"}}. They take
        precedence over `types`. A table's key is its last name or its OID. If no version of the table so far has the
        column, decoding the table raises ValueError. `decode` ignores this option: it returns all values as text.
    renames : mapping of a table to a list of (old name, new name, position), optional
        Columns of typed tables that were renamed where the payloads do not show it: {"public.orders": [("price",
        "total", 4711)]}. The position is that of the Relation message with the new name, which `pgdecode inspect`
        prints. A table's key is one of its names or its OID. Other renames are found by the order of the columns.
    unrepresentable : {"error", "null", "clamp", "text"}
        For typed tables: what to do with a value that the Arrow type cannot represent, as in `decode_rows`.
    name_clash : {"error", "rename"}
        For typed tables: what to do with a column that has the name of a column that pgdecode adds, such as `_op`:
        raise ValueError, or append "_" to its name.
    shape : {"changes", "delta"}
        For typed tables: the columns of their changes. "changes": those of `table`, with a row for each change.
        "delta": the columns of the table, then `_change_type`, `_commit_version` and `_commit_timestamp` as Delta's
        change feed has them, `_position`, `_commit_position`, `_unknown` and `_error`. `_change_type` is "insert",
        "update_preimage", "update_postimage", "delete" or, unlike Delta's, "truncate"; a bad change has none. An update
        makes two rows. `_commit_version` is the commit LSN, which `snapshot(as_of=)` takes. `_unknown` lists columns
        that are null here because the change does not tell them: without REPLICA IDENTITY FULL, all but the key in a
        row before an update and in a deleted row; and unchanged TOAST values.
    encoding, datestyle : str
        client_encoding and DateStyle of the session that captured the payloads, as in `decode_rows`.
    limits : Limits
    strict_flags : bool
        As in `decode_messages`.

    Notes
    -----
    Only one thread at a time may use a decoder; a concurrent call raises RuntimeError. After an exception the decoder
    has the state from before the call; after Ctrl-C too, unless it comes while the call returns. docs/options.md
    compares options and defaults with those of the other functions.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> changes = pgdecode.ChangeDecoder().decode(capture["data"], capture["seq"])
    >>> changes.select(["op", "relation_name", "commit_position"]).slice(0, 1).to_pylist()
    [{'op': 'insert', 'relation_name': 'products', 'commit_position': 62}]
    >>> orders = pgdecode.ChangeDecoder().table(capture["data"], "public.orders", capture["seq"])
    >>> orders.select(["_op", "id", "state", "total"]).slice(0, 1).to_pylist()
    [{'_op': 'insert', 'id': 1, 'state': 'new', 'total': Decimal('639.51')}]
    """

    @with_options()
    def __init__(
        self,
        *,
        state: Mapping[str, Any] | None = None,
        catalog: RelationCatalog | None = None,
        spill: str | Path | None = None,
        max_held_bytes: int = 256 * 2**20,
        threads: int = 1,
        **options: Unpack[DecoderKeywords],
    ) -> None:
        folder = None if spill is None else Path(spill)
        self._engine = ChangeEngine(
            Options.of(options),
            state=None if state is None else state_from_json(state, folder),
            catalog=catalog,
            spill=folder,
            max_held_bytes=max_held_bytes,
            threads=threads,
            obsolete=spent_from_json(state, folder),
        )
        self._changes = TextOutput()
        self._tables: TableCache = {}
        # Of the last run: its manifest and state, and what was counted until then.
        self._last: Manifest | None = None
        self._state = State()
        self._saved_counts = PayloadCounts()
        self._position, self._skipped = self._engine.state.position, self.skipped
        self._types = DescribedTypes.of(options.get("types"))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        types: Mapping[str | int, str] | None = None,
        catalog: RelationCatalog | None = None,
        **options: Any,
    ) -> ChangeDecoder:
        """Make a decoder that continues a data set, which `save`, the command line or Spark has written.

        Parameters
        ----------
        folder : path
            The folder of the data set.
        types : mapping, optional
            As above. They take precedence over the types in the footers of the payload files so far. Those of
            `read_capture` are added to them.
        catalog : RelationCatalog, optional
            That of `read_capture` for the next files. The relations are part of the data set; what the server's catalog
            tells of them is added.
        **options
            Other options of `ChangeDecoder`, except `state`. Those that change rows must be the same as before.

        Raises
        ------
        pgdecode.datasets.errors.RunError
            If an option has another value than in the last run.
        pgdecode.datasets.errors.RunFault
            If it is not the folder of a data set with a state of changes, or a file is missing, damaged or of another
            format.
        pgdecode.storage.errors.PathError
            If the folder is a URI.

        Notes
        -----
        Payloads of an undecided transaction stay in the folder until the transaction ends. So the folder must not be
        removed before. When the transaction ends, they are in memory, or with `spill` in a file.
        """
        if "state" in options:
            raise TypeError("state is part of the data set that is continued")
        path = local_path(folder, "the folder of a data set")
        target = LocalFolder(path)
        last = target.manifests()[-1]
        given = DescribedTypes.of(types)
        check_options(path, last, (), cls(types=given, **options)._in_manifest)
        state = target.state(last)
        if state.replication is None:
            raise RunFault(f"{path}: has no state of changes: it was decoded to {', '.join(last.what)}")
        decoder = cls(types=given.after(UserType(*item) for item in state.user_types) or None, **options)
        spill = options.get("spill")
        decoder._engine.begin(replication_of(state, None if spill is None else Path(spill)), catalog)
        decoder._last, decoder._state = last, state
        decoder._position, decoder._skipped = decoder._engine.state.position, decoder.skipped
        return decoder

    def save(self, folder: str | Path) -> None:
        """Write the state into the folder of a data set, so that `load`, the command line or Spark can continue.

        Call it when the output of the payloads so far is complete, best with the folder of the output. If the process
        ends before, `save` can be called again.

        Parameters
        ----------
        folder : path
            The data set that `load` has read, or a folder without files. It is made if it is missing.

        Raises
        ------
        FileExistsError
            If the folder has files, but is not a data set.
        pgdecode.datasets.errors.RunError
            If the last run of the data set is not the one that this decoder continues, or if another process is writing
            it now.
        pgdecode.storage.errors.PathError
            If the folder is a URI.
        """
        path = local_path(folder, "the folder of a data set")
        path.parent.mkdir(parents=True, exist_ok=True)
        engine, before = self._engine, self._saved_counts
        with engine.lock, LocalFolder(path).begin((), self._in_manifest) as run:
            if run.last is not None and (self._last is None or self._last.sha256 != run.last.sha256):
                raise RunError(f"{path}: its last run is not the one that this decoder continues: load() it")
            counts, replication = engine.counts, engine.saved_state
            n_rows = counts.n_payloads - before.n_payloads
            ends = counts.first_position, counts.last_position
            files = [*self._state.files, *([InputFile("", 0, "", n_rows, *ends)] if n_rows else [])]
            is_counted = counts.is_counted if n_rows else self._state.is_counted
            manifest = Manifest(
                "python",
                () if run.last is None else run.last.what,
                {**({} if run.last is None else run.last.options), **self._in_manifest},
                Input(n_rows, *ends, is_counted),
                bad_rows=dict(sorted((counts.bad_rows - before.bad_rows).items())),
                skipped=self.skipped - self._skipped,
                undecided=replication.n_undecided,
                last_lsn=replication.last_lsn,
                renames=renames_since(replication, engine.options.renames, self._position),
            )
            types = [(item.oid, item.name, item.declaration) for item in self._types.user_types]
            state = replace(self._state, files=files, is_counted=is_counted, user_types=types)
            self._state = with_replication(state, replication, run.files.payload_path())
            self._last = run.commit(manifest, self._state)
            self._position, self._skipped = replication.position, self.skipped
            engine.counts = replace(counts, first_position=None, last_position=None)
            self._saved_counts = engine.counts.copy()

    @property
    def _in_manifest(self) -> dict[str, Any]:
        """The options that change rows."""
        return options_of(replace(self._engine.options, types=self._types.given))

    @property
    def state(self) -> dict[str, Any]:
        """All that another decoder needs to continue from here, as plain JSON types.

        It contains the payloads of undecided transactions. Between transactions it is small.
        """
        engine = self._engine
        return {**state_to_json(engine.saved_state), "spent": [path.name for path in engine.obsolete]}

    @property
    def catalog(self) -> RelationCatalog:
        """The versions of relations so far, including those of the `catalog` parameter."""
        return self._engine.catalog

    @property
    def n_undecided(self) -> int:
        """Number of transactions without an outcome so far."""
        return self._engine.state.n_undecided

    @property
    def skipped(self) -> int:
        """Number of transactions left out so far because their beginning is missing, with `start="anywhere"`."""
        return self._engine.state.skipped.count

    @property
    def repeated(self) -> int:
        """Number of commits so far whose LSN is not greater than that of all before: sent again, or out of order."""
        return self._engine.state.n_repeated

    @property
    def bad_rows(self) -> dict[str, int]:
        """Number of rows with an error so far, returned or left out, by error code."""
        return dict(self._engine.counts.bad_rows)

    @property
    def empty_payloads(self) -> int:
        """Number of ignored payloads of 0 bytes so far."""
        return self._engine.counts.n_empty

    def reconnected(self) -> None:
        """Declare that the next payloads come from a new connection. The server sends unconfirmed transactions again.

        Open plain and streamed transactions are discarded; prepared ones stay. Transactions that were committed before
        may come again: they are returned again, or with `drop_duplicates` left out.
        """
        with self._engine.lock:
            self._engine.state.is_reconnected = True

    def decode(self, payloads: Any, position: Any = None) -> pa.RecordBatch:
        """Decode the next payloads.

        Parameters
        ----------
        payloads : column of payloads, as in `decode_messages`
            In slot order. Null rows are ignored.
        position : column of ascending integers, optional
            The position of each payload in slot order. By default, payloads are counted from 0 across all calls. An LSN
            is not a position.

        Returns
        -------
        pa.RecordBatch
            The changes of transactions that these payloads commit, with the schema `CHANGES`. `xid` is that of the
            top-level transaction, `subxid` that of the sub-transaction, if any. `old` and `new` map column names to
            PostgreSQL's text form, also for binary values. SQL NULL is null; a column that was not sent is missing from
            the map. An unchanged TOAST value is taken from the old row; if the old row does not have it, `unchanged`
            names the column. A truncate makes one row for each table. docs/options.md explains
            why this column is `op` and that of `table` is `_op`.

        Raises
        ------
        DecodeError
            For a bad payload, with `row` and `offset`; `TransactionDesync` and `StreamDesync` if a message is missing,
            `CommitOrder` if transactions are out of order or were sent again, `UnknownRelation` if no message has
            described a relation.
        """
        engine = self._engine
        with engine.lock, engine.call() as call:
            found = engine.batches(call, payloads, position, self._changes, ONE_BATCH)
            return one_batch([batch for _, batch in found], CHANGES)

    def decode_batches(self, payloads: Any, position: Any = None, *, max_rows: int = 65536) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `decode` does, in batches of at most `max_rows` changes.

        All payloads are processed with the first batch. The batches are then built one by one.
        """
        with self._engine.call() as call:
            for _, batch in self._engine.batches(call, payloads, position, self._changes, max_rows):
                yield batch

    def table(
        self, payloads: Any, relation: str | int, position: Any = None, *, shape: Shape | None = None
    ) -> pa.RecordBatch:
        """Decode the next payloads, and return the changes of one table as typed columns.

        Parameters
        ----------
        payloads, position
            As in `decode`.
        relation : str or int
            "schema.table", or the OID of a table, which covers all names of the table.
        shape : {"changes", "delta"}, optional
            By default, that of the decoder.

        Returns
        -------
        pa.RecordBatch
            `_op`, `_position`, `_commit_position`, `_xid`, `_commit_lsn`, `_commit_timestamp`, `_old_type`, `_old` (a
            struct of the table's columns), `_unchanged`, `_error`, then the columns of the table: the new values, or
            for a delete the old values that were sent. If the table has several versions, the columns are those of
            `Table`: a renamed column has its last name in all rows. Later batches may bring versions with more columns.
            With the shape "delta", the columns of the table, then those of `shape`.

        Raises
        ------
        DecodeError
            As in `decode`, and for a value that the Arrow type cannot represent.
        KeyError
            If no payload so far has described the table.
        """
        engine = self._engine
        with engine.lock, engine.call() as call:
            found = engine.batches(call, payloads, position, self._table_output(relation, shape=shape), ONE_BATCH)
            return one_batch([batch for _, batch in found], self.table_schema(relation, shape=shape))

    def table_schema(self, relation: str | int, *, shape: Shape | None = None) -> pa.Schema:
        """Return the schema of `table` for a table, by the versions of relations so far.

        Raises
        ------
        KeyError
            If no payload so far has described the table.
        """
        return self._table_output(relation, shape=shape).builder(self._engine, relation).schema

    def table_batches(
        self,
        payloads: Any,
        relation: str | int,
        position: Any = None,
        *,
        max_rows: int = 65536,
        with_version: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the next payloads as `table` does, in batches. Each batch is made from at most `max_rows` changes.

        With `with_version`, the last column has the number of each row's version in `catalog`.
        """
        output = self._table_output(relation, with_version=with_version)
        with self._engine.call() as call:
            for _, batch in self._engine.batches(call, payloads, position, output, max_rows):
                yield batch

    def tables_batches(
        self, payloads: Any, relations: Sequence[_Name], position: Any = None, *, max_rows: int = 65536
    ) -> Iterator[tuple[_Name, pa.RecordBatch]]:
        """Decode the next payloads once for several tables: the batches of `table_batches`, each with its table."""
        with self._engine.call() as call:
            yield from self._engine.batches(call, payloads, position, self._table_output(*relations), max_rows)

    def undecided(self, relation: str | int | None = None) -> pa.RecordBatch:
        """Build the changes of undecided transactions, as `decode` does; `committed` is null.

        With a relation, build those of one table, as `table` does.
        """
        engine = self._engine
        if relation is None:
            return engine.undecided(self._changes.builder(engine))
        return engine.undecided(self._table_output(relation).builder(engine, relation, everything=True))

    def _table_output(
        self, *relations: _Name, with_version: bool = False, shape: Shape | None = None
    ) -> TableOutput[_Name]:
        return TableOutput(relations, with_version=with_version, shape=shape, cache=self._tables)
