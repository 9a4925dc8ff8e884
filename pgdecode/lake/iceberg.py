"""Iceberg tables in a catalog of pyiceberg: each commit is one snapshot, with the state in its summary."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import exceptions
from pyiceberg import types as iceberg_types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io import ARROW_FILE_IO, PY_IO_IMPL, load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, StagedTable, Table, TableProperties, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.transforms import VoidTransform
from sqlalchemy.exc import SQLAlchemyError

from pgdecode.datasets.errors import OtherWriter, RunError
from pgdecode.datasets.file_digest import NewFile
from pgdecode.files.change_export import table_file_name
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.stored_types import stored_schema
from pgdecode.lake.table_format import StoredTable, TableChange
from pgdecode.lake.target import ColumnSource
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.relations.schema_metadata import KEY
from pgdecode.storage.durable import locked
from pgdecode.storage.object_path import FilePath, object_path
from pgdecode.storage.object_store import remove_file

# The state, in the summary of a snapshot and, with the snapshot that it belongs to, in the properties of the table.
_APPLIED, _SNAPSHOT = "pgdecode.applied", "pgdecode.snapshot-id"
_POSITION, _LSN = "pgdecode.position", "pgdecode.commit-lsn"
# The schema of the typed table, by the ID of the schema of Iceberg.
_SCHEMA = "pgdecode.schema."
_NO_SNAPSHOT = "none"
_FIELD_ID = b"PARQUET:field_id"
_PROPERTIES = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
}
# These alone say that a commit does not exist.
_CONFLICTS = (exceptions.CommitFailedException, exceptions.ValidationException, exceptions.TableAlreadyExistsError)
_LOCAL = re.compile(r"[./~]")
# Options of object stores as obstore names them, and properties of pyiceberg. What is not here is pyiceberg's own.
_S3 = {
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "skip_signature": "s3.anonymous",
}
_AZURE = {
    "account_name": "adls.account-name",
    "account_key": "adls.account-key",
    "sas_token": "adls.sas-token",
    "tenant_id": "adls.tenant-id",
    "client_id": "adls.client-id",
    "client_secret": "adls.client-secret",
}
# An endpoint of Azure, which has the account in the name of the host or in the path.
_AUTHORITY, _PROTOCOL = "adls.blob-storage-authority", "adls.blob-storage-scheme"
_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def open_target(target: str, storage_options: Mapping[str, Any] | None = None) -> FileTarget:
    """Make the target of "iceberg:CATALOG", "iceberg:CATALOG/NAMESPACE" or "iceberg:./FOLDER"."""
    return FileTarget(target, IcebergFormat(target.removeprefix("iceberg:"), storage_options))


@dataclass
class _Stored:
    """A table with a state, as the catalog had it when it was opened or committed.

    Attributes
    ----------
    table : Table
    applied : Applied
    schema : Schema
        Of the current snapshot. After a rollback it is not the current one of the table.
    typed : pa.Schema
    entries : dict of str to Entry
        The files of the current snapshot by their paths. They are read when they are needed.
    """

    table: Table
    applied: Applied
    schema: Schema
    typed: pa.Schema
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass
class _Plan:
    """What is planned for a table.

    Attributes
    ----------
    created : CreateTableTransaction or None
        If the catalog does not have the table.
    last_id : int
        The greatest field ID that is in use.
    file_schema : pa.Schema
    """

    created: CreateTableTransaction | None
    last_id: int
    file_schema: pa.Schema


class IcebergFormat:
    """The tables of a catalog, or of a namespace of it.

    A table "schema.table" is the table of this name in the namespace of the schema, which is below NAMESPACE if there
    is one.

    Parameters
    ----------
    location : str
        A folder, if it begins with ".", "/" or "~": it has a catalog in SQLite, and the files of the tables. Otherwise
        CATALOG or CATALOG/NAMESPACE, where CATALOG has properties in the configuration of pyiceberg or in `options`.
    options : mapping, optional
        Properties of the catalog, and options of object stores as for other targets.
    """

    needs_file = False

    def __init__(self, location: str, options: Mapping[str, Any] | None = None) -> None:
        self._name = f"iceberg:{location}"
        self._folder = Path(location).expanduser().absolute() if _LOCAL.match(location) else None
        catalog, _, namespace = location.partition("/")
        self._catalog_name = "default" if self._folder else catalog
        self._prefix = tuple(namespace.split(".")) if namespace and not self._folder else ()
        self._properties = _catalog_properties(options or {})
        self._catalog: Catalog
        self._tables: dict[str, _Stored] = {}
        self._foreign: set[str] = set()
        self._plans: dict[str, _Plan] = {}
        self._locations: dict[FilePath, str] = {}
        # Files that are part of a commit, or may be.
        self._committed: set[str] = set()

    # -- the catalog ---------------------------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[Mapping[str, Applied]]:
        """Connect to the catalog, and yield the state of each table."""
        with ExitStack() as stack:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                lock = self._folder / ".pgdecode.lock"
                stack.enter_context(locked(lock, OtherWriter(f"{self._name}: another process is writing")))
            with self._errors(self._name):
                self._catalog = stack.enter_context(self._connect())
                self._read_tables()
            yield {name: stored.applied for name, stored in self._tables.items()}

    def _connect(self) -> Catalog:
        if self._folder is None:
            if not self._properties and not _is_configured(self._catalog_name):
                raise RunError(
                    f"{self._name}: pyiceberg's configuration has no catalog {self._catalog_name!r}: configure it, "
                    "or pass its uri as a storage option; a folder is ./FOLDER or /FOLDER"
                )
            return load_catalog(self._catalog_name, **self._properties)
        if re.search(r"[#?%]", str(self._folder)):
            raise RunError(f"{self._name}: Iceberg has no locations with '#', '?' or '%'")
        local = {
            "type": "sql",
            "uri": f"sqlite:///{self._folder / 'catalog.db'}",
            "warehouse": f"file://{self._folder}",
        }
        return load_catalog(self._catalog_name, **{**local, **self._properties})

    def _read_tables(self) -> None:
        """Read the states of all tables."""
        self._tables, self._foreign, self._plans = {}, set(), {}
        try:
            namespaces = self._catalog.list_namespaces(self._prefix)
        except exceptions.NoSuchNamespaceError:
            return
        for namespace in namespaces:
            for identifier in self._catalog.list_tables(namespace):
                name = f"{namespace[-1]}.{identifier[-1]}"
                try:
                    stored = _stored(name, self._catalog.load_table(identifier))
                except exceptions.NoSuchTableError:  # dropped meanwhile
                    continue
                if stored is None:
                    self._foreign.add(name)
                else:
                    self._tables[name] = stored

    def _identifier(self, name: str) -> tuple[str, ...]:
        schema, _, table = name.partition(".")
        return (*self._prefix, schema, table)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert errors of pyiceberg and of catalogs to errors with one line."""
        try:
            yield
        except _CONFLICTS:
            raise OtherWriter(
                f"{what}: another writer has committed meanwhile, and nothing was written: apply again"
            ) from None
        except exceptions.CommitStateUnknownException:
            raise RunError(f"{what}: the catalog did not say whether it has committed: apply again") from None
        except RunError:
            raise
        except Exception as error:
            is_known = isinstance(error, SQLAlchemyError | OSError | ValueError | NotImplementedError | ImportError)
            if not is_known and type(error).__module__ != exceptions.__name__:
                raise
            lines = str(error).splitlines()
            raise RunError(f"{what}: {lines[0] if lines else type(error).__name__}") from None

    # -- tables --------------------------------------------------------------------------------------------------------

    def load(self, name: str) -> StoredTable | None:
        """Read the metadata of a table; None if it does not exist."""
        if name in self._foreign:
            raise RunError(f"{self._name}: table {name} exists without a state of pgdecode: somebody else has made it")
        stored = self._tables.get(name)
        if stored is None:
            return None
        what = f"{self._name}, table {name}"
        with self._errors(what):
            _check_features(what, stored.table)
            file_schema = _file_schema(stored.typed, stored.schema)
            stored.entries = {entry.file_path: entry for entry in _entries(what, stored.table)}
            keys = [item for item in file_schema if KEY in (item.metadata or {}) and not pa.types.is_nested(item.type)]
            types = {item.name: stored.schema.find_field(_id(item)) for item in keys}
            files = [
                DataFile(
                    path,
                    entry.record_count,
                    entry.file_size_in_bytes,
                    {item.name: _bounds(entry, types[item.name], item.type) for item in keys},
                )
                for path, entry in stored.entries.items()
            ]
        return StoredTable(stored.typed, file_schema, files, stored.applied)

    def create(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Plan a new table with these columns, and return the schema of its files."""
        file_schema = _stored_schema(name, schema)
        stored = self._tables.get(name)
        if stored is not None:
            plan = self._plan(name, stored)
            ids = count(plan.last_id + 1)
            plan.file_schema = pa.schema([_numbered(item, ids) for item in file_schema])
            plan.last_id = next(ids) - 1
            return plan.file_schema
        with self._errors(f"{self._name}, table {name}"):
            created = self._stage(name, file_schema)
        metadata = created.table_metadata
        self._plans[name] = _Plan(created, metadata.last_column_id, _file_schema(schema, metadata.schema()))
        return self._plans[name].file_schema

    def _plan(self, name: str, stored: _Stored) -> _Plan:
        """Return what is planned for a table that the catalog has."""
        if name not in self._plans:
            last_id = stored.table.metadata.last_column_id
            self._plans[name] = _Plan(None, last_id, _file_schema(stored.typed, stored.schema))
        return self._plans[name]

    def _stage(self, name: str, file_schema: pa.Schema) -> CreateTableTransaction:
        """Begin a table that the catalog does not have."""
        ids = count(1)
        schema = _iceberg_schema(pa.schema([_numbered(item, ids) for item in file_schema]), 0)
        identifier = self._identifier(name)
        for depth in range(1, len(identifier)):
            self._catalog.create_namespace_if_not_exists(identifier[:depth])
        created = self._begin(identifier, schema, None)
        location, table = created.table_metadata.location, identifier[-1]
        safe = table_file_name(table)
        # A location is read as a URI by some, and as a path by others.
        safe = re.sub(r"[^\w. -]", "_", safe) + f"-{uuid4().hex[:8]}" if re.search(r"[^\w. -]", safe) else safe
        if safe != table:
            location = f"{location.removesuffix(table).rstrip('/')}/{safe}"
            created = self._begin(identifier, schema, location)
        return created

    def _begin(self, identifier: tuple[str, ...], schema: Schema, location: str | None) -> CreateTableTransaction:
        catalog = self._catalog
        if len(identifier) == 2 or not isinstance(catalog, SqlCatalog):
            return catalog.create_table_transaction(identifier, schema, location=location, properties=_PROPERTIES)
        # This catalog has namespaces in namespaces, but not in transactions.
        location = catalog._resolve_table_location(location, ".".join(identifier[:-1]), identifier[-1])
        made = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, dict(_PROPERTIES)
        )
        path = load_location_provider(location, _PROPERTIES).new_table_metadata_file_location()
        io = load_file_io(catalog.properties, path)
        return CreateTableTransaction(StagedTable(identifier, made, path, io, catalog))

    def evolve(self, name: str, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> tuple[pa.Schema, bool]:
        """Plan other columns of a table, and return the schema of its files, and whether files stay as they are."""
        plan = self._plans[name] if name in self._plans else self._plan(name, self._tables[name])
        ids = count(plan.last_id + 1)
        fields, stays = [], True
        for item in _stored_schema(name, schema):
            source = columns[item.name]
            before = None if source.name is None else plan.file_schema.field(source.name)
            if before is not None and source.convert is None and _is_promoted(before.type, item.type):
                kind = before.type if before.type == item.type else item.type
                metadata = {**(item.metadata or {}), _FIELD_ID: str(_id(before))}
                nullable = item.nullable or before.nullable
                fields.append(item.with_type(kind).with_metadata(metadata).with_nullable(nullable))
            else:
                is_null = before is None and (source.missing is None or not source.missing.is_valid)
                stays = stays and is_null
                fields.append(_numbered(item.with_nullable(item.nullable or is_null), ids))
        plan.last_id = next(ids) - 1
        plan.file_schema = pa.schema(fields)
        return plan.file_schema, stays

    # -- files ---------------------------------------------------------------------------------------------------------

    def path(self, file: DataFile) -> FilePath:
        """Return where a file is."""
        return self._path(file.path)

    def _path(self, location: str) -> FilePath:
        parts = urlsplit(location)
        if parts.scheme in ("", "file"):
            return Path(location.removeprefix("file://") if parts.scheme else location)
        # A catalog may give credentials for a table.
        tables = (item.table for item in self._tables.values())
        table = next((item for item in tables if location.startswith(f"{item.location()}/")), None)
        properties = self._catalog.properties if table is None else table.io.properties
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        names = _S3 if scheme == "s3" else _AZURE
        options = {name: properties[key] for name, key in reversed(names.items()) if properties.get(key) is not None}
        options.pop("endpoint_url", None)
        if scheme != "s3" and (host := properties.get(_AUTHORITY)):
            account, protocol = properties["adls.account-name"], properties.get(_PROTOCOL, "https")
            options["endpoint"] = f"{protocol}://" + (account + host if host.startswith(".") else f"{host}/{account}")
        return object_path(f"{scheme}{location.removeprefix(parts.scheme)}", options)

    def new_file(self, name: str) -> NewFile:
        """Create a file of a table."""
        plan = self._plans.get(name)
        table = plan.created._table if plan is not None and plan.created is not None else self._tables[name].table
        location = table.location_provider().new_data_location(f"pgdecode-{uuid4()}.parquet")
        path = self._path(location)
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._locations[path] = location
        return NewFile(path)

    def accept(self, name: str, file: NewFile, rows: int) -> str:
        """Take a complete file, and return its location."""
        return self._locations.pop(file.path)

    def discard(self, file: DataFile) -> None:
        """Remove a file that is not part of a commit."""
        if file.path in self._committed:
            return
        remove_file(self._path(file.path))

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, changes: Mapping[str, TableChange]) -> None:
        """Commit changes of tables, each in a commit of its own."""
        for name, change in changes.items():
            self._commit(name, change)
            self._plans.pop(name, None)

    def roll_back(self) -> None:
        """Forget what was planned since the last commit."""
        self._plans.clear()

    def _commit(self, name: str, change: TableChange) -> None:
        stored = self._tables.get(name)
        plan = self._plans.get(name)
        created = None if plan is None else plan.created
        state = change.applied.to_json()
        if (
            stored is not None
            and plan is None
            and not (change.added or change.removed)
            and stored.table.metadata.properties.get(_APPLIED) == state
            and stored.applied == change.applied
        ):
            return
        what = f"{self._name}, table {name}"
        with self._errors(what):
            transaction: Transaction = _Transaction(stored.table) if created is None else created  # type: ignore[union-attr]
            schema = self._set_schema(transaction, change)
            entries = {} if stored is None else dict(stored.entries)
            for file in change.removed:
                del entries[file.path]
            added = {file.path: _entry(transaction.table_metadata, file) for file in change.added}
            producer, snapshot_id = None, transaction.table_metadata.current_snapshot_id
            if change.added or change.removed:
                producer = _Overwrite(
                    operation=_operation(change),
                    transaction=transaction,
                    io=transaction._table.io,
                    snapshot_properties={
                        _APPLIED: state,
                        _POSITION: str(change.applied.position),
                        _LSN: lsn_to_text(max(change.applied.commit_lsn, 0)),
                    },
                )
                for entry in added.values():
                    producer.append_data_file(entry)
                for file in change.removed:
                    producer.delete_data_file(stored.entries[file.path])  # type: ignore[union-attr]
                transaction._stage(producer._commit()[0])
                snapshot_id = producer.snapshot_id
            properties = {
                _APPLIED: state,
                _SNAPSHOT: str(snapshot_id or _NO_SNAPSHOT),
                f"{_SCHEMA}{schema.schema_id}": _encoded(change.schema),
            }
            transaction._stage((SetPropertiesUpdate(updates=properties),))
            table = transaction._table
            requirements = (AssertCreate(),) if created is not None else _requirements(table.metadata)
            self._committed |= added.keys()
            try:
                table._do_commit(updates=transaction._updates, requirements=requirements)
            except _CONFLICTS:
                self._committed -= added.keys()
                if producer is not None:
                    producer._clean_all_uncommitted()
                raise
        if created is not None:
            table = Table(table.name(), table.metadata, table.metadata_location, table.io, self._catalog)
        self._tables[name] = _Stored(table, change.applied, schema, change.schema, entries | added)

    def _set_schema(self, transaction: Transaction, change: TableChange) -> Schema:
        """Make the schema of a change the current one, and return it."""
        metadata = transaction.table_metadata
        schema = _iceberg_schema(change.file_schema, 0, metadata.schemas)
        newest = sorted(metadata.schemas, key=lambda item: item.schema_id != metadata.current_schema_id)
        same = next((item for item in newest if _is_same(item, schema)), None)
        if same is None:
            same = schema.model_copy(update={"schema_id": max(item.schema_id for item in metadata.schemas) + 1})
            transaction._stage((AddSchemaUpdate(schema=same), SetCurrentSchemaUpdate.model_validate({"schema-id": -1})))
        elif same.schema_id != metadata.current_schema_id:
            transaction._stage((SetCurrentSchemaUpdate.model_validate({"schema-id": same.schema_id}),))
        return same


class _Transaction(Transaction):
    """A transaction whose metadata are made once for the same updates.

    pyiceberg makes them, with a copy of all snapshots, each time that it asks for them: 20 times in a commit.
    """

    _made: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        updates = self._updates
        if not updates:
            return self._table.metadata
        if self._made is None or self._made[0] is not updates:
            self._made = updates, super().table_metadata
        return self._made[1]


class _Overwrite(_OverwriteFiles):
    """A snapshot without the manifests that have no file, and with small manifests joined."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return [item for item in super()._existing_manifests() if item.has_added_files() or item.has_existing_files()]

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        merger: Any = _ManifestMergeManager(
            int(properties.get(TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 2**20)),
            int(properties.get(TableProperties.MANIFEST_MIN_MERGE_COUNT, 100)),
            True,
            self,
        )
        merged: list[ManifestFile] = merger.merge_manifests(manifests)
        return merged


def _operation(change: TableChange) -> Operation:
    if not change.removed:
        return Operation.APPEND
    return Operation.OVERWRITE if change.added else Operation.DELETE


def _requirements(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Require that nobody has changed the rows or the columns of a table."""
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}),
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
        AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
    )


# -- states ------------------------------------------------------------------------------------------------------------


def _stored(name: str, table: Table) -> _Stored | None:
    """Read the state of a table; None if it has none.

    The state is that of the current snapshot or, if others have made it, of the newest one below it. The properties
    have it if they name that snapshot: they are as new as it, and newer after a run without changes. A table that was
    rolled back has the state in the summary of the snapshot, and its columns.
    """
    metadata = table.metadata
    properties = metadata.properties
    if _APPLIED not in properties:
        return None
    try:
        number = metadata.current_snapshot_id
        own, text, schema_id = properties[_SNAPSHOT], "", metadata.current_schema_id
        while not text:
            snapshot = None if number is None else metadata.snapshot_by_id(number)
            if str(number or _NO_SNAPSHOT) == own:
                text = properties[_APPLIED]
            elif snapshot is None:
                raise RunError(f"table {name}: its snapshots have no state: drop it, and apply again")
            elif snapshot.summary is not None and snapshot.summary.get(_APPLIED) is not None:
                text = str(snapshot.summary[_APPLIED])
                current = metadata.current_snapshot()
                if current is not None and current.schema_id is not None:
                    schema_id = current.schema_id
            else:
                number = snapshot.parent_snapshot_id
        applied = Applied.from_json(text)
        schema = next(item for item in metadata.schemas if item.schema_id == schema_id)
        known = (item for item in metadata.schemas if f"{_SCHEMA}{item.schema_id}" in properties)
        same = next((item for item in sorted(known, key=lambda item: item != schema) if _is_same(item, schema)), None)
        if same is None:
            raise RunError(f"table {name}: another writer has changed its columns: undo that, or drop the table")
        typed = _decoded(properties[f"{_SCHEMA}{same.schema_id}"])
    except (LookupError, TypeError, zlib.error, pa.ArrowException) as error:
        raise RunError(f"table {name}: the state of pgdecode is damaged: {type(error).__name__}") from None
    return _Stored(table, applied, schema, typed)


def _encoded(schema: pa.Schema) -> str:
    return base64.b64encode(zlib.compress(schema.serialize().to_pybytes(), 9)).decode()


def _decoded(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(text))))


def _check_features(what: str, table: Table) -> None:
    """Check that a table has no feature that is not written.

    Raises
    ------
    RunError
        If it has one. The error names it.
    """
    metadata = table.metadata
    specs = metadata.partition_specs
    if metadata.format_version != 2:
        raise _refused(what, f"format version {metadata.format_version}")
    if any(not isinstance(item.transform, VoidTransform) for spec in specs for item in spec.fields):
        raise _refused(what, "partitions, or had them")


def _refused(what: str, feature: str) -> RunError:
    return RunError(
        f"{what}: it has {feature}, which pgdecode does not write: drop it, and apply again; it is then made with "
        "version 2 and without partitions"
    )


def _entries(what: str, table: Table) -> Iterator[Entry]:
    """Read the files of the current snapshot.

    Raises
    ------
    RunError
        If it has delete files, or files of another format.
    """
    snapshot = table.current_snapshot()
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if manifest.content == ManifestContent.DELETES:
                raise RunError(
                    f"{what}: another writer has made delete files (merge-on-read), which pgdecode does not write: "
                    "rewrite the data files (rewrite_data_files), and set write.delete.mode, write.update.mode and "
                    "write.merge.mode to copy-on-write"
                )
            if entry.data_file.file_format != FileFormat.PARQUET:
                raise RunError(
                    f"{what}: another writer has made files of format {entry.data_file.file_format.value}, which "
                    "pgdecode does not write: rewrite them as Parquet (rewrite_data_files)"
                )
            yield entry.data_file


# -- columns -----------------------------------------------------------------------------------------------------------


def _stored_schema(name: str, schema: pa.Schema) -> pa.Schema:
    try:
        return stored_schema(schema, "iceberg")
    except TypeError as error:
        raise RunError(f"table {name}: {error}") from None


def _id(item: pa.Field) -> int:
    return int(item.metadata[_FIELD_ID])


def _numbered(item: pa.Field, ids: Iterator[int]) -> pa.Field:
    """Give a field and those within it IDs."""
    number, kind = next(ids), item.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(part, ids) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, ids), _numbered(kind.item_field, ids))
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, ids))
    return item.with_type(kind).with_metadata({**(item.metadata or {}), _FIELD_ID: str(number)})


def _ids(kind: iceberg_types.IcebergType) -> Iterator[int]:
    """Yield the IDs within a type, in the order of `_numbered`."""
    if isinstance(kind, iceberg_types.StructType):
        for item in kind.fields:
            yield item.field_id
            yield from _ids(item.field_type)
    elif isinstance(kind, iceberg_types.ListType):
        yield kind.element_id
        yield from _ids(kind.element_type)
    elif isinstance(kind, iceberg_types.MapType):
        yield kind.key_id
        yield from _ids(kind.key_type)
        yield kind.value_id
        yield from _ids(kind.value_type)


def _file_schema(typed: pa.Schema, schema: Schema) -> pa.Schema:
    """Return the schema of the files of a table."""
    ids = _ids(schema.as_struct())
    fields = [_numbered(item, ids) for item in stored_schema(typed, "iceberg")]
    return pa.schema([item.with_nullable(not of.required) for item, of in zip(fields, schema.fields, strict=True)])


def _iceberg_schema(file_schema: pa.Schema, schema_id: int, known: Sequence[Schema] = ()) -> Schema:
    """Return the schema of Iceberg, with the comments that columns have in the newest schema."""
    docs = {item.field_id: item.doc for schema in known for item in schema.fields}
    fields = [
        item.model_copy(update={"doc": docs.get(item.field_id)}) for item in pyarrow_to_schema(file_schema).fields
    ]
    keys = [
        _id(item)
        for item in file_schema
        if KEY in (item.metadata or {})
        and not item.nullable
        and not (pa.types.is_nested(item.type) or pa.types.is_floating(item.type))
    ]
    return Schema(*fields, schema_id=schema_id, identifier_field_ids=keys)


def _is_same(one: Schema, other: Schema) -> bool:
    """Whether schemas have the same columns, comments aside."""

    def plain(schema: Schema) -> list[Any]:
        columns = [(item.field_id, item.name, item.field_type, item.required) for item in schema.fields]
        return [columns, sorted(schema.identifier_field_ids)]

    return plain(one) == plain(other)


def _is_promoted(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether Iceberg reads files with a type as another one."""
    if pa.types.is_decimal128(before) and pa.types.is_decimal128(after):
        return bool(before.scale == after.scale and before.precision <= after.precision)
    promotions = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    return before == after or (before, after) in promotions


# -- bounds ------------------------------------------------------------------------------------------------------------


def _bounds(entry: Entry, of: iceberg_types.NestedField, kind: pa.DataType) -> ColumnBounds:
    """Read the bounds of a column in a file."""
    nulls = (entry.null_value_counts or {}).get(of.field_id)
    limits = [_limit(bounds, of, kind) for bounds in (entry.lower_bounds, entry.upper_bounds)]
    return ColumnBounds(nulls, *limits)


def _limit(bounds: Mapping[int, bytes] | None, of: iceberg_types.NestedField, kind: pa.DataType) -> pa.Scalar | None:
    content = (bounds or {}).get(of.field_id)
    if content is None or pa.types.is_floating(kind):
        return None
    # Files from before a promotion have the bounds of the former type.
    former: Any = iceberg_types.IntegerType() if pa.types.is_int64(kind) and len(content) == 4 else of.field_type
    value: Any = from_bytes(former, content)
    if pa.types.is_temporal(kind):
        return pa.scalar(value, pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    return pa.scalar(value, kind)


def _entry(metadata: TableMetadata, file: DataFile) -> Entry:
    """Describe a new file in a manifest, by its footer."""
    assert file.metadata is not None
    # The file has the names and types from when it was written.
    schema = pyarrow_to_schema(file.metadata.schema.to_arrow_schema())
    plan, ids = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for path in _beyond_python(file.metadata):
        plan[ids[path]] = replace(plan[ids[path]], mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(file.metadata, plan, ids)
    entry = Entry.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(metadata.spec(), metadata.schema()),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    # Entries that are read have it as an attribute. The next commit may remove the file.
    entry.spec_id = metadata.default_spec_id
    return entry


def _beyond_python(metadata: pq.FileMetaData) -> set[str]:
    """Find the columns with dates and times outside of the years 1 to 9999, of which pyiceberg cannot make bounds."""
    kinds = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    temporal = [index for index, kind in enumerate(kinds) if kind.logical_type.type in ("DATE", "TIMESTAMP")]
    found = set()
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        for column in map(group.column, temporal):
            try:
                _ = column.statistics and (column.statistics.min, column.statistics.max)
            except OverflowError:
                found.add(column.path_in_schema)
    return found


# -- options -----------------------------------------------------------------------------------------------------------


def _catalog_properties(options: Mapping[str, Any]) -> dict[str, str]:
    """Name options of object stores as pyiceberg does."""
    names = _S3 | _AZURE
    found = {names.get(str(name).lower(), str(name)): value for name, value in options.items()}
    if (account := found.get("adls.account-name")) and (endpoint := found.pop("s3.endpoint", None)):
        parts = urlsplit(str(endpoint))
        blob = {_AUTHORITY: parts.netloc.removeprefix(str(account)), _PROTOCOL: parts.scheme}
        dfs = {name.replace("blob", "dfs"): value.replace(".blob.", ".dfs.") for name, value in blob.items()}
        found = {**blob, **dfs, **found}
    if found.keys() & _AZURE.values() and find_spec("adlfs") is None:
        # pyiceberg prefers fsspec, which needs it.
        found = {PY_IO_IMPL: ARROW_FILE_IO, **found}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _is_configured(name: str) -> bool:
    from pyiceberg.utils.config import Config

    return Config().get_catalog_config(name) is not None
