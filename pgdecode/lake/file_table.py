"""A table of Parquet files that is changed by writing the files anew that have changed rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode.arrow.null_arrays import null_array
from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import DataFile, column_bounds, renamed_bounds
from pgdecode.lake.table_format import StoredTable, TableChange, TableFormat
from pgdecode.lake.target import ColumnSource, MissingRow, TableCounts
from pgdecode.net.keys import KeyNumbers
from pgdecode.storage.parquet_input import opened, read_footer, readable

FIELD_ID = b"PARQUET:field_id"


class FileTable:
    """A table of Parquet files, with changes that are not committed yet.

    Parameters
    ----------
    name : str
    format : TableFormat
    stored : StoredTable or None
        The table as it is; None if it does not exist.
    threads : int
    file_bytes : int
        Size of new files.
    """

    def __init__(
        self, name: str, format: TableFormat, stored: StoredTable | None, threads: int, file_bytes: int
    ) -> None:
        self.name, self._format, self._threads, self._file_bytes = name, format, threads, file_bytes
        self._stored = stored
        self._reset()

    def _reset(self) -> None:
        """Take the state of the last commit."""
        stored = self._stored
        self._schema = pa.schema([]) if stored is None else stored.schema
        self._file_schema = pa.schema([]) if stored is None else stored.file_schema
        self._before = {} if stored is None else {file.path: file for file in stored.files}
        self._files = dict(self._before)
        self._is_created = False
        self.counts = TableCounts(rows=self._n_rows())

    def _n_rows(self) -> int:
        return sum(file.rows for file in self._files.values())

    # -- commits -------------------------------------------------------------------------------------------------------

    def change(self, applied: Applied) -> TableChange:
        """Return what the next commit does to the table."""
        if self._format.needs_file and not self._files:
            self._write(self._file_schema.empty_table())
        files = [*self._files.values()]
        added = [file for file in files if file.path not in self._before]
        removed = [file for path, file in self._before.items() if path not in self._files]
        return TableChange(self._schema, self._file_schema, files, added, removed, applied, self._is_created)

    def set_committed(self, change: TableChange) -> None:
        """Take note that a change was committed."""
        self._stored = StoredTable(change.schema, change.file_schema, change.files, change.applied)
        self._reset()

    def discard(self) -> None:
        """Discard what was done since the last commit."""
        for path in [*self._files]:
            self._remove(path)
        self._reset()

    def forget(self) -> None:
        """Go back to the last commit, but leave the files."""
        self._reset()

    # -- changes -------------------------------------------------------------------------------------------------------

    def create(self, schema: pa.Schema) -> None:
        """Make the table empty, with these columns, whether it exists or not."""
        self._file_schema = self._format.create(self.name, schema)
        self._schema, self._is_created = schema, True
        self._remove_all()

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Give the table other columns."""
        former, former_file = self._schema, self._file_schema
        self._file_schema, stay = self._format.evolve(self.name, schema, columns)
        self._schema = schema
        if stay:
            for path, file in self._files.items():
                self._files[path] = replace(file, bounds=renamed_bounds(file.bounds, self._file_schema, columns))
            return
        for path, file in [*self._files.items()]:
            rows = self._read_file(file, former_file)
            self._write(self._converted(rows, former, columns))
            self._remove(path)
        self._count_files()

    def apply(self, net: pa.Table) -> None:
        """Apply net changes."""
        action = net["_action"]
        if net.num_rows and action[0].as_py() == "truncate":
            self._remove_all()
            self.counts.truncates += 1
            net, action = net.slice(1), action.slice(1)
        if not net.num_rows:
            return
        is_upsert = pc.equal(action, "upsert")
        n_upserts = pc.sum(is_upsert).as_py()
        self.counts.upserts += n_upserts
        self.counts.deletes += net.num_rows - n_upserts
        _Simple(self, net).run()
        self._count_files()

    def read(self) -> pa.RecordBatchReader:
        """Read all rows, with the types of the format."""
        return pa.RecordBatchReader.from_batches(self._file_schema, self._batches())

    # -- files ---------------------------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files.values():
            yield from self._read_file(file, self._file_schema).to_batches()

    def _read_file(self, file: DataFile, schema: pa.Schema) -> pa.Table:
        with readable(self._format.path(file)) as source:
            parquet = opened(source, read_footer(source).metadata)
            return as_schema(parquet.read(), schema)

    def _write(self, rows: pa.Table) -> None:
        new = self._format.new_file(self.name)
        with new, pq.ParquetWriter(new, self._file_schema, compression="zstd") as writer:
            writer.write_table(rows)
        path = self._format.accept(self.name, new, rows.num_rows)
        file = DataFile(path, rows.num_rows, 0)
        with readable(self._format.path(file)) as source:
            metadata = read_footer(source).metadata
        n_bytes = new.digested("", 0).bytes
        bounds = column_bounds(metadata, self._file_schema)
        self._files[path] = DataFile(path, rows.num_rows, n_bytes, bounds, metadata)

    def _remove(self, path: str) -> None:
        file = self._files.pop(path)
        if path not in self._before:
            self._format.discard(file)

    def _remove_all(self) -> None:
        for path in [*self._files]:
            self._remove(path)
        self._count_files()

    def _count_files(self) -> None:
        added = [file for path, file in self._files.items() if path not in self._before]
        self.counts.rows = self._n_rows()
        self.counts.files_added, self.counts.bytes_added = len(added), sum(file.bytes for file in added)
        self.counts.files_removed = len(self._before.keys() - self._files.keys())

    def _converted(self, rows: pa.Table, former: pa.Schema, columns: Mapping[str, ColumnSource]) -> pa.Table:
        """Give stored rows the columns of the table now."""
        made = []
        for item in self._file_schema:
            source = columns[item.name]
            if source.name is None:
                typed = self._schema.field(item.name)
                missing = pa.scalar(None, typed.type) if source.missing is None else source.missing
                column = pa.chunked_array([pa.repeat(missing, rows.num_rows)], typed.type)
                made.append(self._format.to_stored(column, item))
            elif source.convert is None:
                made.append(cast(rows[source.name], item.type))
            else:
                column = self._format.to_typed(rows[source.name], former.field(source.name))
                made.append(self._format.to_stored(source.convert(column), item))
        return pa.Table.from_arrays(made, schema=self._file_schema)


class _Simple:
    """Applies net changes by reading every file."""

    def __init__(self, table: FileTable, net: pa.Table) -> None:
        self.table = table
        format, schema = table._format, table._file_schema
        before = net["_key_before"].combine_chunks()
        self.names = [item.name for item in before.type]
        self.is_unique = len(self.names) < len(schema)
        has_key = before.is_valid()
        self.net = net
        self.rows = pa.Table.from_arrays([format.to_stored(net[item.name], item) for item in schema], schema=schema)
        keys = []
        for name in self.names:
            item = schema.field(name)
            key = format.to_stored(pa.chunked_array([pc.struct_field(before, name)]), item).combine_chunks()
            own = self.rows[name].combine_chunks()
            keys.append(pc.if_else(has_key, key, own) if self.is_unique else key)
        self.numbers = KeyNumbers([schema.field(name) for name in self.names])
        numbers = self.numbers.numbered(keys, net.num_rows).to_pylist()
        self.claims: dict[int, list[int]] = {}
        has = has_key.to_pylist()
        for row in sorted(range(len(numbers)), key=lambda row: not has[row]):
            if has[row] or self.is_unique:
                self.claims.setdefault(numbers[row], []).append(row)
        self.old: dict[int, pa.Table] = {}
        self.has = has

    def run(self) -> None:
        table, schema = self.table, self.table._file_schema
        for path, file in [*table._files.items()]:
            rows = table._read_file(file, schema)
            stays = [True] * rows.num_rows
            columns = [rows[name].combine_chunks() for name in self.names]
            for at, number in enumerate(self.numbers.find(columns, rows.num_rows).to_pylist()):
                claims = self.claims.get(number)
                if claims is None:
                    continue
                if claims:
                    self.old[claims.pop(0)] = rows.slice(at, 1)
                    stays[at] = False
                elif self.is_unique:
                    stays[at] = False
            if not all(stays):
                table._remove(path)
                left = rows.filter(pa.array(stays))
                if left.num_rows:
                    table._write(left)
        new = []
        unknown = self.net["_unknown"].to_pylist()
        for row, action in enumerate(self.net["_action"].to_pylist()):
            if self.has[row] and row not in self.old:
                if action == "upsert" and unknown[row]:
                    raise MissingRow(self.net["_position"][row].as_py())
                table.counts.missing += 1
            if action == "upsert":
                values = self.rows.slice(row, 1)
                for name in unknown[row] or ():
                    index = schema.get_field_index(name)
                    values = values.set_column(index, schema.field(index), self.old[row][name])
                new.append(values)
        if new:
            table._write(pa.concat_tables(new))


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give the rows of a file the columns of a table."""
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(schema.metadata)
    sources = file_columns(rows.schema, schema)
    columns = []
    for item, name in zip(schema, sources, strict=True):
        if name is None:
            columns.append(pa.chunked_array([null_array(rows.num_rows, item.type)]))
        else:
            columns.append(cast(rows[name], item.type))
    return pa.Table.from_arrays(columns, schema=schema)


def file_columns(file: pa.Schema, schema: pa.Schema) -> list[str | None]:
    """Return the name in a file of each column of a table; None if the file does not have it."""
    ids = {item.metadata[FIELD_ID]: item.name for item in file if FIELD_ID in (item.metadata or {})}
    names = set(file.names)
    found = []
    for item in schema:
        number = (item.metadata or {}).get(FIELD_ID)
        found.append(ids.get(number) if number is not None and ids else item.name if item.name in names else None)
    return found


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert a column to a type."""
    return column if column.type == kind else column.cast(kind)
