"""Benchmark cases of the command line on Parquet files. Their baseline only reads and writes the same data."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases.case import require
from benchmarks.cases.changes import committed_rows, table_of
from benchmarks.datasets import BATCH_ROWS, DataSet
from pgdecode.cli.main import main
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.writers import CHANGE_LAYOUT, message_layout, writer_to


def write_payloads(path: Path, payloads: pa.BinaryArray, first: int = 0) -> None:
    """Write payloads to a Parquet file, with positions from `first` on."""
    positions = pa.array(range(first, first + len(payloads)), pa.int64())
    pq.write_table(pa.table({"seq": positions, "data": payloads}), path, compression="zstd")


def run_command(arguments: Sequence[str]) -> bytes:
    """Run the command line in this process, so the start of Python is not timed. Return what it prints."""
    printed, problems = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(problems):
        code = main(arguments)
    if code:
        raise RuntimeError(problems.getvalue())
    return printed.buffer.getvalue()


@dataclass
class DecodedFile:
    """`pgdecode decode` of a file."""

    data: DataSet
    table: str | None
    folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="pgdecode-benchmarks-"))

    def __post_init__(self) -> None:
        write_payloads(self.source, self.data.payloads)

    @property
    def source(self) -> Path:
        """The file of payloads."""
        return Path(self.folder.name, "raw.parquet")

    @property
    def target(self) -> Path:
        """The decoded file."""
        return Path(self.folder.name, "decoded.parquet")

    def __call__(self) -> Path:
        """Decode the file."""
        what = ["--table", self.table] if self.table else []
        run_command(["decode", str(self.source), str(self.target), "--overwrite", *what])
        return self.target


@dataclass
class Copy:
    """The same reading and writing by pyarrow, with a result made before: a decoder that takes no time."""

    command: DecodedFile

    def __post_init__(self) -> None:
        self.result = pq.read_table(self.command()).combine_chunks().to_batches(BATCH_ROWS)

    def __call__(self) -> Path:
        """Read the payloads, then write the result."""
        target = self.command.target.with_name("copy.parquet")
        target.unlink(missing_ok=True)
        for _ in pq.ParquetFile(self.command.source).iter_batches(BATCH_ROWS, columns=["data"]):
            pass
        layout = CHANGE_LAYOUT if self.command.table else message_layout()
        schema = self.result[0].schema if self.command.table else envelope_schema()
        with target.open("xb") as file, writer_to(file, "parquet", schema, layout) as write:
            for batch in self.result:
                write(batch)
        return target


def decode_messages(data: DataSet) -> DecodedFile:
    """Prepare decoding a file to messages."""
    return DecodedFile(data, None)


def decode_table(data: DataSet) -> DecodedFile:
    """Prepare decoding a file to one table's rows."""
    return DecodedFile(data, table_of(data))


def copy_messages(data: DataSet) -> Copy:
    """Prepare copying the messages of a file."""
    return Copy(decode_messages(data))


def copy_table(data: DataSet) -> Copy:
    """Prepare copying one table's rows."""
    return Copy(decode_table(data))


def verify_files(data: DataSet, work: DecodedFile | Copy) -> None:
    """Compare the number of rows with the number that plain Python reads from the bytes."""
    command = work.command if isinstance(work, Copy) else work
    expected = committed_rows(data, command.table) if command.table else data.n_rows
    require(data, "number of rows", digest_file(work()), expected)


def digest_file(path: Path) -> int:
    """Count rows."""
    return int(pq.read_metadata(path).num_rows)
