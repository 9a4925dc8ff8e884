"""What is measured, one object per line of the table; add a line by adding it to `LINES`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from benchmarks.baselines import CellWalk, MemoryRead, NoCompiler, WideRows, library
from benchmarks.changes import (
    all_changes,
    digest_changes,
    table_changes,
    verify_changes,
    without_transactions,
)
from benchmarks.datasets import FILES, MESSAGES, ROWS, VALUES, DataSet
from benchmarks.decoders import (
    load_pypgoutput,
    load_reference,
    node_decoder,
    one_by_one,
    without_node,
    without_pypgoutput,
    without_reference,
)
from benchmarks.files import copy_messages, copy_table, decode_messages, decode_table, digest_file, verify_files
from benchmarks.halves import Halves, digest_halves, halves_of_messages, halves_of_rows, verify_halves, without_start
from benchmarks.line import (
    BINARY,
    C_ROWS,
    C_WALK,
    CAST,
    COPIES,
    MEMORY_READ,
    NODE,
    PLAIN_PYTHON,
    PYPGOUTPUT,
    TEXT,
    Line,
    Work,
    require,
)
from benchmarks.values import ValueSet
from pgdecode._native.codecs.registry import decode_values

TWO_THREADS = ", two threads"
TWO_HALVES = ", two halves"
TUPLES = ("kind", "relation_id", "old", "old_formats", "new", "new_formats")

# Baselines


def without_compiler(data: DataSet) -> str | None:
    """Why there is no baseline in C."""
    try:
        library()
    except NoCompiler as problem:
        return str(problem)
    return None


def verify_read(data: DataSet, read: MemoryRead) -> None:
    """Compare the sum of 64-bit words with one made in Python, where the data are few enough for that."""
    if data.n_bytes <= 1 << 20:
        whole = data.payloads.buffers()[2].to_pybytes()[: data.n_bytes]
        words = (int.from_bytes(whole[at : at + 8], "little") for at in range(0, len(whole), 8))
        require(data, "sum of words", read(), sum(words) % 2**64)


def verify_walk(data: DataSet, walk: CellWalk) -> None:
    """Compare what the walk writes to its index with the cells that pgdecode finds."""
    require(data, "number of cells", walk(), walk.n_cells)
    index = walk.index()
    found = pgdecode.decode_messages(data.payloads, fields=TUPLES)
    cells = [found[name].flatten() for name in ("old", "new")]
    require(data, "number of cells", walk.n_cells, sum(map(len, cells)))
    n_bytes = [pc.sum(pc.binary_length(part)).as_py() or 0 for part in cells]
    require(data, "bytes in cells", pc.sum(index.lengths).as_py() or 0, sum(n_bytes))
    for kind in "nutb":
        counted = [pc.sum(pc.count_substring(found[f"{name}_formats"], kind)).as_py() or 0 for name in ("old", "new")]
        indexed = pc.sum(pc.equal(index.kinds, ord(kind))).as_py() or 0
        require(data, f"number of {kind!r} cells", indexed, sum(counted))


# pgdecode


@dataclass(frozen=True)
class Batches:
    """Batch after batch, each dropped when the next is done, as a reader of files or a Spark task does it."""

    payloads: list[pa.BinaryArray]
    fields: Sequence[str] | None
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode them as they are asked for."""
        return map(pgdecode.MessageDecoder(fields=self.fields, threads=self.threads).decode, self.payloads)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode them all and keep the last."""
        return deque(self.decoded(), maxlen=1)


@dataclass(frozen=True)
class OneCall:
    """All payloads at once, into one batch."""

    payloads: pa.BinaryArray
    fields: Sequence[str] | None
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode when asked for."""
        yield from self()

    def __call__(self) -> tuple[pa.RecordBatch]:
        """Decode."""
        return (pgdecode.decode_messages(self.payloads, fields=self.fields, threads=self.threads),)


def digest_batch(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Row count and sum of relation ids of the one batch that was kept."""
    (batch,) = result
    return batch.num_rows, pc.sum(batch["relation_id"]).as_py() or 0


def verify_batches(data: DataSet, work: Batches | OneCall) -> None:
    """Compare rows and relation ids of all batches with plain Python."""
    digests = [digest_batch([batch]) for batch in work.decoded()]
    require(data, "number of rows", sum(n_rows for n_rows, _ in digests), data.n_rows)
    require(data, "sum of relation ids", sum(ids for _, ids in digests), data.relation_id_sum)


def in_batches(name: str, fields: Sequence[str] | None, threads: int = 1) -> Line:
    """Make a line of `Batches`."""

    def prepare(data: DataSet) -> Work:
        return Batches(data.batches(), fields, threads)

    return Line(name, "pgdecode", prepare, verify_batches, digest_batch, baselines=beside(name, threads))


def beside(name: str, threads: int, usual: tuple[str, ...] = (MEMORY_READ, C_WALK)) -> tuple[str, ...]:
    """Name the baselines of a line, among them, where it has several threads, the line of one."""
    return usual if threads == 1 else (*usual, name.removesuffix(TWO_THREADS))


def in_one_call(name: str, fields: Sequence[str] | None, threads: int = 1) -> Line:
    """Make a line of `OneCall`."""

    def prepare(data: DataSet) -> Work:
        return OneCall(data.payloads, fields, threads)

    return Line(name, "pgdecode", prepare, verify_batches, digest_batch, baselines=beside(name, threads))


def in_halves(name: str, prepare: Callable[[DataSet], Halves], kind: str) -> Line:
    """Make a line of `Halves`, beside one of one thread."""
    baselines = (name.removesuffix(TWO_HALVES),)
    return Line(name, "baseline", prepare, verify_halves, digest_halves, without_start, None, baselines, (kind,))


# Rows of one table


@dataclass(frozen=True)
class TypedRows:
    """Batch after batch of one table's rows, as a reader of files or a Spark task does it."""

    payloads: list[pa.BinaryArray]
    relation: pgdecode.Relation
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode them as they are asked for."""
        return (pgdecode.decode_rows(payloads, self.relation, threads=self.threads) for payloads in self.payloads)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode them all and keep the last."""
        return deque(self.decoded(), maxlen=1)


def typed_rows(data: DataSet, threads: int = 1, in_one_call: bool = False) -> TypedRows:
    """Cut a table's rows into batches."""
    assert data.relation is not None
    return TypedRows([data.payloads] if in_one_call else data.batches(), data.relation, threads)


def in_rows(name: str, threads: int, in_one_call: bool = False) -> Line:
    """Make a line of `TypedRows`."""
    prepare = partial(typed_rows, threads=threads, in_one_call=in_one_call)
    baselines = beside(name, threads, (MEMORY_READ, C_WALK, C_ROWS))
    return Line(name, "pgdecode", prepare, verify_rows, digest_rows, baselines=baselines, kinds=(ROWS,))


def key_of(payload: bytes) -> int:
    """Read the first column of the first tuple, an integer in text or binary, in plain Python."""
    cell = payload[8:]
    value = cell[5 : 5 + int.from_bytes(cell[1:5], "big")]
    return int(value) if cell[:1] == b"t" else int.from_bytes(value, "big", signed=True)


def verify_rows(data: DataSet, work: TypedRows) -> None:
    """Compare the number of rows, of each operation, and the sum of the keys, with plain Python."""
    payloads = data.payloads.to_pylist()
    keys, counts = 0, dict.fromkeys(("insert", "update", "delete"), 0)
    for batch in work.decoded():
        keys += pc.sum(batch[work.relation.columns[0].name]).as_py()
        for counted in pc.value_counts(batch["_op"]).to_pylist():
            counts[counted["values"]] += counted["counts"]
    for op, count in counts.items():
        require(data, f"number of {op}s", count, sum(payload[0] == ord(op[0].upper()) for payload in payloads))
    require(data, "sum of keys", keys, sum(map(key_of, payloads)))


def without_wide_rows(data: DataSet) -> str | None:
    """Why there is no loop in C for a table."""
    if data.relation is None or data.relation.name != "wide":
        return "it is written for the wide table"
    return without_compiler(data)


def verify_wide_rows(data: DataSet, work: WideRows) -> None:
    """Compare what the loop in C writes with what pgdecode decodes."""
    require(data, "number of rows", work(), data.n_rows)
    decoded = pgdecode.decode_rows(data.payloads, typed_rows(data).relation)
    n_values = 0
    for name, column in work.columns().items():
        same = pc.sum(pc.equal(column, decoded[name])).as_py() or 0
        require(data, f"number of equal values of {name}", same, data.n_rows - decoded[name].null_count)
        n_values += same
    require(data, "number of values", work.n_values(), n_values)


def digest_rows(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Row count and length of all texts of the one batch that was kept."""
    (batch,) = result
    return batch.num_rows, sum(pc.sum(pc.binary_length(c)).as_py() or 0 for c in batch if pa.types.is_string(c.type))


# Values of one type


@dataclass(frozen=True)
class Values:
    """A column of cells in one format."""

    data: ValueSet
    binary: bool

    def __call__(self) -> pa.Array:
        """Decode them."""
        forms = self.data.binaries if self.binary else self.data.payloads
        return decode_values(self.data.name, forms, binary=self.binary, typmod=self.data.typmod)


@dataclass(frozen=True)
class Cast:
    """The same by pyarrow, from its own array of strings."""

    data: ValueSet

    def __call__(self) -> pa.Array:
        """Cast them."""
        return pc.cast(self.data.to_cast, self.data.expected.type)


def without_cast(data: DataSet) -> str | None:
    """Why there is nothing to compare with."""
    return None if isinstance(data, ValueSet) and data.to_cast is not None else "pyarrow has no cast from its text"


def values_in(binary: bool) -> Callable[[DataSet], Work]:
    """Make a line's `prepare` for a format."""

    def prepare(data: DataSet) -> Work:
        assert isinstance(data, ValueSet)
        return Values(data, binary)

    return prepare


def prepare_cast(data: DataSet) -> Work:
    """Make the cast ready."""
    assert isinstance(data, ValueSet)
    return Cast(data)


def verify_values(data: DataSet, work: Values | Cast) -> None:
    """Compare all values with those that the forms were made from."""
    found, expected = work(), work.data.expected
    require(data, "number of values", len(found), len(expected))
    require(data, "number of right values", pc.sum(pc.equal(found, expected)).as_py() or 0, len(expected))


def digest_values(found: pa.Array) -> tuple[int, int]:
    """Count values and nulls."""
    return len(found), found.null_count


LINES = (
    Line(MEMORY_READ, "baseline", MemoryRead, verify_read, int, without_compiler, kinds=(MESSAGES, ROWS)),
    Line(C_WALK, "baseline", CellWalk, verify_walk, int, without_compiler, kinds=(MESSAGES, ROWS)),
    in_batches("envelope", None),
    in_batches("envelope, tuples", TUPLES),
    in_batches("envelope, kind and relation", ("kind", "relation_id")),
    in_batches("envelope, two threads", None, 2),
    in_batches("envelope, tuples, two threads", TUPLES, 2),
    in_one_call("envelope, one call", None),
    in_one_call("envelope, tuples, one call", TUPLES),
    in_one_call("envelope, one call, two threads", None, 2),
    in_one_call("envelope, tuples, one call, two threads", TUPLES, 2),
    in_halves("envelope, one call, two halves", partial(halves_of_messages, fields=None), MESSAGES),
    in_halves("envelope, tuples, one call, two halves", partial(halves_of_messages, fields=TUPLES), MESSAGES),
    Line("changes", "pgdecode", all_changes, verify_changes, digest_changes, without_transactions),
    Line(
        "changes of one table, typed", "pgdecode", table_changes, verify_changes, digest_changes, without_transactions
    ),
    one_by_one("decode, one message", "pgdecode", lambda: pgdecode.decode, 200_000),
    one_by_one(PLAIN_PYTHON, "other decoders", load_reference, 10_000, without_reference),
    one_by_one(PYPGOUTPUT, "other decoders", load_pypgoutput, 10_000, without_pypgoutput),
    node_decoder(10_000, without_node),
    Line(C_ROWS, "baseline", WideRows, verify_wide_rows, int, without_wide_rows, kinds=(ROWS,)),
    in_rows("typed rows", 1),
    in_rows("typed rows, two threads", 2),
    in_rows("typed rows, one call", 1, True),
    in_rows("typed rows, one call, two threads", 2, True),
    in_halves("typed rows, one call, two halves", halves_of_rows, ROWS),
    Line(COPIES[0], "baseline", copy_messages, verify_files, digest_file, baselines=(), kinds=(FILES,)),
    Line("command line", "pgdecode", decode_messages, verify_files, digest_file, baselines=COPIES[:1], kinds=(FILES,)),
    Line(COPIES[1], "baseline", copy_table, verify_files, digest_file, without_transactions, None, (), (FILES,)),
    Line(
        "command line, one table",
        "pgdecode",
        decode_table,
        verify_files,
        digest_file,
        without_transactions,
        baselines=COPIES[1:],
        kinds=(FILES,),
    ),
    Line(CAST, "baseline", prepare_cast, verify_values, digest_values, without_cast, None, (), (VALUES,)),
    Line(TEXT, "pgdecode", values_in(False), verify_values, digest_values, baselines=(CAST,), kinds=(VALUES,)),
    Line(BINARY, "pgdecode", values_in(True), verify_values, digest_values, baselines=(CAST,), kinds=(VALUES,)),
)
# Too slow to run before every repetition of another line: compared by median rates of the same run.
SLOW_BASELINES = (PLAIN_PYTHON, PYPGOUTPUT, NODE)
