"""A table of Parquet files that is changed by writing the files anew that have changed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import ColumnBounds, DataFile, renamed_bounds
from pgdecode.lake.file_writer import FileWriter, Pieces, SourceFile
from pgdecode.lake.net_rows import NetRows
from pgdecode.lake.stored_types import to_stored
from pgdecode.lake.table_format import StoredTable, TableChange, TableFormat
from pgdecode.lake.target import ColumnSource, TableCounts
from pgdecode.net.schema import without_truncate
from pgdecode.net.touched_rows import one_array
from pgdecode.payloads.workers import Workers

# At most so many small files are joined with others that are written, and always those up to this part of a new file.
_MOST_JOINED = 8
_LEAST_PART = 128


@dataclass(frozen=True, eq=False)
class TouchedFile:
    """A file that is written anew.

    Attributes
    ----------
    source : SourceFile
    groups : dict
        For each row group with rows that net changes claim: what `NetRows.claim` returns.
    n_lost : int
        How many rows nothing comes in the place of.
    """

    source: SourceFile
    groups: dict[int, tuple[pa.Array, pa.Array]]
    n_lost: int = 0

    @property
    def n_bytes(self) -> int:
        """About how many bytes it will have."""
        file = self.source.file
        return file.bytes * (file.rows - self.n_lost) // max(file.rows, 1)

    def rows(self, number: int, schema: pa.Schema, net: NetRows) -> pa.Table:
        """Read a row group, and put upserts in the place of the rows that they claim."""
        rows = self.source.group(number, schema)
        return net.replaced(rows, *self.groups[number]) if number in self.groups else rows


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
        self.forget()

    # -- commits -------------------------------------------------------------------------------------------------------

    def change(self, applied: Applied) -> TableChange:
        """Return what the next commit does to the table."""
        if self._format.needs_file and not self._files:
            with Workers() as workers, self._writer(workers) as writer:
                writer.write_empty_file()
            self._replace((), writer.files)
        files = [*self._files.values()]
        added = [file for file in files if file.path not in self._before]
        removed = [file for path, file in self._before.items() if path not in self._files]
        return TableChange(self._schema, self._file_schema, files, added, removed, applied, self._is_created)

    def set_committed(self, change: TableChange) -> None:
        """Take note that a change was committed."""
        self._stored = StoredTable(change.schema, change.file_schema, change.files, change.applied)
        self.forget()

    def discard(self) -> None:
        """Discard what was done since the last commit."""
        self._replace([*self._files], ())
        self.forget()

    def forget(self) -> None:
        """Go back to the last commit, but leave the files."""
        stored = self._stored
        self._schema = pa.schema([]) if stored is None else stored.schema
        self._file_schema = pa.schema([]) if stored is None else stored.file_schema
        self._before = {} if stored is None else {file.path: file for file in stored.files}
        self._files = dict(self._before)
        self._is_created = False
        self.counts = TableCounts(rows=self._n_rows)

    # -- changes -------------------------------------------------------------------------------------------------------

    def create(self, schema: pa.Schema) -> None:
        """Make the table empty, with these columns, whether it exists or not."""
        self._file_schema = self._format.create(self.name, schema)
        self._schema, self._is_created = schema, True
        self._replace([*self._files], ())

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Give the table other columns."""
        former, former_files = self._schema, self._file_schema
        file_schema, stay = self._format.evolve(self.name, schema, columns)
        sources = [source.name for source in columns.values() if source.convert is None]
        if stay or (file_schema.equals(former_files) and sources == former_files.names):
            for path, file in self._files.items():
                self._files[path] = replace(file, bounds=renamed_bounds(file.bounds, file_schema, columns))
        else:
            self._convert(former, former_files, schema, file_schema, columns)
        self._schema, self._file_schema = schema, file_schema

    def apply(self, net: pa.Table) -> None:
        """Apply net changes."""
        is_truncated, net = without_truncate(net)
        if is_truncated:
            self._replace([*self._files], ())
            self.counts.truncates += 1
        if not net.num_rows:
            return
        net_rows = NetRows(net, self._file_schema)
        with Workers(self._threads) as workers:
            touched = self._touched(net_rows, workers) if net_rows.has_claims else []
            new, n_missing = net_rows.unclaimed()
            self._rewrite(net_rows, touched, new, workers)
        n_upserts = net_rows.is_upsert.true_count
        self.counts.upserts += n_upserts
        self.counts.deletes += net.num_rows - n_upserts
        self.counts.missing += n_missing

    def read(self) -> pa.RecordBatchReader:
        """Read all rows, with the types of the format."""
        return pa.RecordBatchReader.from_batches(self._file_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files.values():
            source = SourceFile(self._format, file)
            for number in range(source.n_groups):
                yield from source.group(number, self._file_schema).to_batches()

    # -- rows that change ----------------------------------------------------------------------------------------------

    def _touched(self, net: NetRows, workers: Workers) -> list[TouchedFile]:
        """Find the files with rows that net changes claim."""
        schema = pa.schema([self._file_schema.field(name) for name in net.key])

        def matches(file: DataFile) -> tuple[SourceFile, list[tuple[int, memoryview, memoryview]]]:
            source = SourceFile(self._format, file)
            found = []
            for number in range(source.n_groups):
                if net.may_match(source.bounds([number], schema)):
                    rows = source.group(number, schema)
                    found.append((number, *net.find([one_array(column) for column in rows.columns], len(rows))))
            return source, [item for item in found if len(item[1])]

        candidates = [file for file in self._files.values() if file.rows and net.may_match(file.bounds)]
        touched = []
        for source, found in workers.map(matches, candidates):
            file = source.file
            if any(file.bounds.get(name, ColumnBounds()) == ColumnBounds() for name in net.key):
                # Another key than before. The next commit may have the bounds.
                known = source.bounds(range(source.n_groups), self._file_schema)
                self._files[file.path] = replace(file, bounds=known)
            claims = {number: net.claim(rows, numbers) for number, rows, numbers in found}
            groups = {number: item for number, item in claims.items() if len(item[0])}
            if groups:
                touched.append(TouchedFile(source, groups, sum(net.n_lost(by) for _, by in groups.values())))
        return touched

    def _rewrite(self, net: NetRows, touched: list[TouchedFile], new: pa.Array, workers: Workers) -> None:
        """Write the files anew that have changed rows, and new rows to new files."""
        bytes_of_row = sum(file.bytes for file in self._files.values()) / max(self._n_rows, 1)
        joined = [file for file in touched if file.n_bytes < self._file_bytes // 2]
        n_bytes = len(new) * (bytes_of_row or net.rows.nbytes / (4 * len(net.rows)))
        n_bytes += sum(file.n_bytes for file in joined)
        joined += [TouchedFile(SourceFile(self._format, file), {}) for file in self._small_files(touched, n_bytes)]
        with (
            self._writer(workers, self._file_bytes * 3 // 2) as same_files,
            self._writer(workers) as new_files,
        ):
            for file in touched:
                if file not in joined:
                    self._write_again(net, file, same_files)
            same_files.finish()
            self._join(net, joined, new, new_files)
        self._replace({file.source.file.path for file in (*touched, *joined)}, [*same_files.files, *new_files.files])

    def _small_files(self, touched: list[TouchedFile], n_bytes: float) -> list[DataFile]:
        """Choose untouched files that are joined with others that are written, which have so many bytes.

        The smallest come first. One that is much larger than those before it stays. So each row is written again a few
        times only, as its file grows, and few small files remain.
        """
        if not n_bytes:
            return []
        paths = {file.source.file.path for file in touched}
        small = [file for file in self._files.values() if file.rows and file.bytes < self._file_bytes // 2]
        small = sorted((file for file in small if file.path not in paths), key=lambda file: file.bytes)
        found: list[DataFile] = []
        for file in small[:_MOST_JOINED]:
            if n_bytes >= self._file_bytes or file.bytes > max(2 * n_bytes, self._file_bytes // _LEAST_PART):
                break
            found.append(file)
            n_bytes += file.bytes
        return found

    def _write_again(self, net: NetRows, file: TouchedFile, writer: FileWriter) -> None:
        """Write a file anew. Row groups without changed rows are copied."""

        def replaced(number: int) -> Pieces:
            rows = file.rows(number, self._file_schema, net)
            return writer.encoded(rows) if len(rows) else []

        for number in range(file.source.n_groups):
            if number in file.groups:
                writer.put(replaced, number)
            else:
                writer.copy(file.source, number)
        writer.end_file()

    def _join(self, net: NetRows, files: list[TouchedFile], new: pa.Array, writer: FileWriter) -> None:
        """Write the rows of small files, and new ones, to files of the usual size."""
        for file in files:
            for number in range(file.source.n_groups):
                if number not in file.groups and writer.can_copy(file.source) and file.source.has_large(number):
                    writer.copy(file.source, number)
                else:
                    writer.write(file.rows(number, self._file_schema, net))
        for rows in net.new_rows(new):
            writer.write(rows.cast(self._file_schema))
        writer.end_file()

    def _convert(
        self,
        former: pa.Schema,
        former_files: pa.Schema,
        schema: pa.Schema,
        file_schema: pa.Schema,
        columns: Mapping[str, ColumnSource],
    ) -> None:
        """Write all files anew, with other columns."""

        def converted(source: SourceFile, number: int) -> Pieces:
            rows = source.group(number, former_files)
            made = []
            for item in file_schema:
                of = columns[item.name]
                if of.name is None:
                    typed = schema.field(item.name).type
                    missing = pa.scalar(None, typed) if of.missing is None else of.missing
                    column = pa.chunked_array([pa.repeat(missing, len(rows))], typed)
                    made.append(to_stored(column, item.type))
                elif of.convert is None:
                    column = rows[of.name]
                    made.append(column if column.type == item.type else column.cast(item.type))
                else:
                    column = to_stored(rows[of.name], former.field(of.name).type)
                    made.append(to_stored(of.convert(column), item.type))
            return writer.encoded(pa.Table.from_arrays(made, schema=file_schema))

        with (
            Workers(self._threads) as workers,
            FileWriter(self.name, self._format, file_schema, workers, self._file_bytes * 3 // 2) as writer,
        ):
            for file in self._files.values():
                source = SourceFile(self._format, file)
                for number in range(source.n_groups):
                    writer.put(converted, source, number)
                writer.end_file()
        self._replace([*self._files], writer.files)

    # -- files ---------------------------------------------------------------------------------------------------------

    @property
    def _n_rows(self) -> int:
        return sum(file.rows for file in self._files.values())

    def _writer(self, workers: Workers, file_bytes: int | None = None) -> FileWriter:
        return FileWriter(self.name, self._format, self._file_schema, workers, file_bytes or self._file_bytes)

    def _replace(self, removed: Iterable[str], added: Iterable[DataFile]) -> None:
        """Take files out of the table, and add others."""
        for path in removed:
            file = self._files.pop(path)
            if path not in self._before:
                self._format.discard(file)
        self._files |= {file.path: file for file in added}
        n_rows = self._n_rows
        if n_rows:
            for path in [path for path, file in self._files.items() if not file.rows]:
                self._replace([path], ())
        new = [file for path, file in self._files.items() if path not in self._before]
        self.counts.rows, self.counts.files_added = n_rows, len(new)
        self.counts.bytes_added = sum(file.bytes for file in new)
        self.counts.files_removed = len(self._before.keys() - self._files.keys())
