"""All benchmark cases. To add a case, add it to `CASES`."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from benchmarks.cases.baselines import CellWalk, MemoryRead, NoCompiler, WideRows, library
from benchmarks.cases.case import (
    BINARY,
    C_ROWS,
    C_WALK,
    CAST,
    COPIES,
    FILTER_AND_ROWS,
    LAST_CHANGES,
    MEMORY_READ,
    NODE,
    ONE_WORKER,
    PGWIRE,
    PLAIN_PYTHON,
    PYPGOUTPUT,
    TEXT,
    TUPLES_LINE,
    TWO_THREADS,
    TWO_WORKERS,
    Case,
    Work,
    require,
)
from benchmarks.cases.changes import (
    all_changes,
    digest_changes,
    digest_snapshot,
    filter_and_rows,
    last_changes,
    net_changes,
    snapshot,
    table_changes,
    verify_changes,
    verify_filter,
    verify_net_changes,
    verify_snapshot,
    without_snapshot,
    without_transactions,
)
from benchmarks.cases.decoders import (
    load_reference,
    one_by_one,
    peer_case,
    without_reference,
)
from benchmarks.cases.files import copy_messages, copy_table, decode_messages, decode_table, digest_file, verify_files
from benchmarks.cases.ideal_threads import (
    IdealThreads,
    digest_ideal,
    ideal_messages,
    ideal_rows,
    verify_ideal,
    without_start,
)
from benchmarks.cases.workers import COMMANDS, Command, WholeRun, digest_output, verify_one_worker, verify_two_workers
from benchmarks.datasets import FILES, MESSAGES, ROWS, VALUES, DataSet, key_of
from benchmarks.peers.programs import PEERS
from benchmarks.values import ValueSet

IDEAL_THREADS = ", ideal two threads"
# Messages that other decoders decode in a full run, by their language.
SAMPLES = {"Rust": 200_000, "Go": 200_000, "Node": 50_000, "Python": 10_000}
TUPLES = ("kind", "relation_id", "old", "old_formats", "new", "new_formats")

# Baselines


def without_compiler(data: DataSet) -> str | None:
    """Return the reason why there is no baseline in C."""
    try:
        library()
    except NoCompiler as problem:
        return str(problem)
    return None


def verify_read(data: DataSet, read: MemoryRead) -> None:
    """Compare the sum of 64-bit words with a sum made in Python, if the data set is small."""
    if data.n_bytes <= 1 << 20:
        whole = data.payloads.buffers()[2].to_pybytes()[: data.n_bytes]
        words = (int.from_bytes(whole[at : at + 8], "little") for at in range(0, len(whole), 8))
        require(data, "sum of words", read(), sum(words) % 2**64)


def verify_walk(data: DataSet, walk: CellWalk) -> None:
    """Compare the index of the walk with the cells that pgdecode finds."""
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
    """Decode batch after batch and drop each when the next is done, like a file reader or a Spark task."""

    payloads: list[pa.BinaryArray]
    fields: Sequence[str] | None
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode lazily."""
        return map(pgdecode.MessageDecoder(fields=self.fields, threads=self.threads).decode, self.payloads)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode all batches and keep the last."""
        return deque(self.decoded(), maxlen=1)


@dataclass(frozen=True)
class OneCall:
    """Decode all payloads in one call, into one batch."""

    payloads: pa.BinaryArray
    fields: Sequence[str] | None
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode lazily."""
        yield from self()

    def __call__(self) -> tuple[pa.RecordBatch]:
        """Decode."""
        return (pgdecode.decode_messages(self.payloads, fields=self.fields, threads=self.threads),)


def digest_batch(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Count rows and sum relation ids of the batch that was kept."""
    (batch,) = result
    return batch.num_rows, pc.sum(batch["relation_id"]).as_py() or 0


def verify_batches(data: DataSet, work: Batches | OneCall) -> None:
    """Compare rows and relation ids of all batches with plain Python."""
    digests = [digest_batch([batch]) for batch in work.decoded()]
    require(data, "number of rows", sum(n_rows for n_rows, _ in digests), data.n_rows)
    require(data, "sum of relation ids", sum(ids for _, ids in digests), data.relation_id_sum)


def in_batches(name: str, fields: Sequence[str] | None, threads: int = 1) -> Case:
    """Make a case of `Batches`."""

    def prepare(data: DataSet) -> Work:
        return Batches(data.batches(), fields, threads)

    return Case(name, "pgdecode", prepare, verify_batches, digest_batch, baselines=baselines_of(name, threads))


def baselines_of(name: str, threads: int, usual: tuple[str, ...] = (MEMORY_READ, C_WALK)) -> tuple[str, ...]:
    """List the baselines of a case; with several threads they include the case with one thread."""
    if name == "envelope":
        return (*usual, TUPLES_LINE)
    return usual if threads == 1 else (*usual, name.removesuffix(TWO_THREADS))


def in_one_call(name: str, fields: Sequence[str] | None, threads: int = 1) -> Case:
    """Make a case of `OneCall`."""

    def prepare(data: DataSet) -> Work:
        return OneCall(data.payloads, fields, threads)

    return Case(name, "pgdecode", prepare, verify_batches, digest_batch, baselines=baselines_of(name, threads))


def in_ideal_threads(name: str, prepare: Callable[[DataSet], IdealThreads], kind: str) -> Case:
    """Make a case of `IdealThreads`, whose baseline is the case with one thread."""
    baselines = (name.removesuffix(IDEAL_THREADS),)
    return Case(name, "baseline", prepare, verify_ideal, digest_ideal, without_start, None, baselines, (kind,))


def in_changes(name: str, prepare: Callable[[DataSet], Work], *others: str) -> Case:
    """Make a case of `Changes`, with other baselines beside the usual ones."""
    baselines = (MEMORY_READ, C_WALK, TUPLES_LINE, *others)
    return Case(name, "pgdecode", prepare, verify_changes, digest_changes, without_transactions, baselines=baselines)


def with_workers(command: Command) -> tuple[Case, Case]:
    """Make the cases of `WholeRun` with one worker, the baseline, and with two."""
    one, two = (f"command line, {command.name}{number}" for number in (ONE_WORKER, TWO_WORKERS))
    prepare = partial(WholeRun, command=command)
    with_one, with_two = partial(prepare, workers=1), partial(prepare, workers=2)
    others = (digest_output, command.missing, None)
    return (
        Case(one, "baseline", with_one, verify_one_worker, *others, baselines=(), kinds=(FILES,)),
        Case(two, "pgdecode", with_two, verify_two_workers, *others, baselines=(one,), kinds=(FILES,)),
    )


# Forms of payloads

FORMS: dict[str, Callable[[bytes], str | bytes]] = {
    "hexadecimal": lambda payload: "\\x" + payload.hex(),
    "base64": lambda payload: base64.b64encode(payload).decode(),
    "XLogData": lambda payload: b"w" + bytes(24) + payload,
}


@dataclass(frozen=True)
class Unwrap:
    """Extract the payloads from a column in one of the forms, batch after batch."""

    columns: list[pa.Array]

    def extracted(self) -> Iterator[pa.Array]:
        """Extract lazily."""
        return (pgdecode.unwrap(column).payloads for column in self.columns)

    def __call__(self) -> deque[pa.Array]:
        """Extract all payloads and keep those of the last batch."""
        return deque(self.extracted(), maxlen=1)


def in_form(name: str) -> Case:
    """Make a case of `Unwrap`."""

    def prepare(data: DataSet) -> Work:
        write = FORMS[name]
        return Unwrap([pa.array([write(payload) for payload in batch.to_pylist()]) for batch in data.batches()])

    def missing(data: DataSet) -> str | None:
        return None if data.name == "pgbench.text" else "it is measured with pgbench.text"

    return Case(f"unwrap, {name}", "pgdecode", prepare, verify_unwrap, digest_unwrap, missing)


def verify_unwrap(data: DataSet, work: Unwrap) -> None:
    """Compare the payloads with those of the data set."""
    for found, batch in zip(work.extracted(), data.batches(), strict=True):
        equal = pc.sum(pc.equal(found.cast(pa.binary()), batch)).as_py() or 0
        require(data, "number of equal payloads", equal, len(batch))


def digest_unwrap(result: Iterable[pa.Array]) -> tuple[int, int]:
    """Count the payloads and the bytes of the batch that was kept."""
    (found,) = result
    return len(found), pc.sum(pc.binary_length(found)).as_py() or 0


# Rows of one table


@dataclass(frozen=True)
class TypedRows:
    """Decode batch after batch of one table's rows, like a file reader or a Spark task."""

    payloads: list[pa.BinaryArray]
    relation: pgdecode.Relation
    threads: int = 1

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode lazily."""
        return (pgdecode.decode_rows(payloads, self.relation, threads=self.threads) for payloads in self.payloads)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode all batches and keep the last."""
        return deque(self.decoded(), maxlen=1)


def typed_rows(data: DataSet, threads: int = 1, in_one_call: bool = False) -> TypedRows:
    """Split a table's rows into batches."""
    assert data.relation is not None
    return TypedRows([data.payloads] if in_one_call else data.batches(), data.relation, threads)


def in_rows(name: str, threads: int, in_one_call: bool = False) -> Case:
    """Make a case of `TypedRows`."""
    prepare = partial(typed_rows, threads=threads, in_one_call=in_one_call)
    baselines = baselines_of(name, threads, (MEMORY_READ, C_WALK, C_ROWS))
    return Case(name, "pgdecode", prepare, verify_rows, digest_rows, baselines=baselines, kinds=(ROWS,))


def verify_rows(data: DataSet, work: TypedRows) -> None:
    """Compare the number of rows of each operation, and the sum of the keys, with plain Python."""
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
    """Return the reason why there is no loop in C for a table."""
    if data.relation is None or data.relation.name != "wide":
        return "it is written for the wide table"
    return without_compiler(data)


def verify_wide_rows(data: DataSet, work: WideRows) -> None:
    """Compare the columns of the loop in C with those of pgdecode."""
    require(data, "number of rows", work(), data.n_rows)
    decoded = pgdecode.decode_rows(data.payloads, typed_rows(data).relation)
    n_values = 0
    for name, column in work.columns().items():
        same = pc.sum(pc.equal(column, decoded[name])).as_py() or 0
        require(data, f"number of equal values of {name}", same, data.n_rows - decoded[name].null_count)
        n_values += same
    require(data, "number of values", work.n_values(), n_values)


def digest_rows(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Count rows and sum the lengths of all strings of the batch that was kept."""
    (batch,) = result
    return batch.num_rows, sum(pc.sum(pc.binary_length(c)).as_py() or 0 for c in batch if pa.types.is_string(c.type))


# Values of one type


@dataclass(frozen=True)
class Values:
    """Decode rows of one type in one format."""

    data: ValueSet
    binary: bool

    def __call__(self) -> pa.ChunkedArray:
        """Decode all values, column after column."""
        assert self.data.relation is not None
        batch = pgdecode.decode_rows(self.data.binaries if self.binary else self.data.payloads, self.data.relation)
        return pa.chunked_array([batch[column.name] for column in self.data.relation.columns])


@dataclass(frozen=True)
class Cast:
    """Cast the same values with pyarrow, from an array of strings."""

    data: ValueSet

    def __call__(self) -> pa.Array:
        """Cast all values."""
        return pc.cast(self.data.to_cast, self.data.expected.type)


def without_cast(data: DataSet) -> str | None:
    """Return the reason why there is no cast to compare with."""
    return None if isinstance(data, ValueSet) and data.to_cast is not None else "pyarrow has no cast from its text"


def values_in(binary: bool) -> Callable[[DataSet], Work]:
    """Make the `prepare` of a case for a format."""

    def prepare(data: DataSet) -> Work:
        assert isinstance(data, ValueSet)
        return Values(data, binary)

    return prepare


def prepare_cast(data: DataSet) -> Work:
    """Prepare the cast."""
    assert isinstance(data, ValueSet)
    return Cast(data)


def verify_values(data: DataSet, work: Values | Cast) -> None:
    """Compare all values with the expected values."""
    found, expected = work(), work.data.expected
    require(data, "number of values", len(found), len(expected))
    require(data, "number of right values", pc.sum(pc.equal(found, expected)).as_py() or 0, len(expected))


def digest_values(found: pa.Array | pa.ChunkedArray) -> tuple[int, int]:
    """Count values and nulls."""
    return len(found), found.null_count


CASES = (
    Case(MEMORY_READ, "baseline", MemoryRead, verify_read, int, without_compiler, kinds=(MESSAGES, ROWS)),
    Case(C_WALK, "baseline", CellWalk, verify_walk, int, without_compiler, kinds=(MESSAGES, ROWS)),
    in_batches("envelope", None),
    in_batches(TUPLES_LINE, TUPLES),
    in_batches("envelope, kind and relation", ("kind", "relation_id")),
    in_batches("envelope, two threads", None, 2),
    in_batches("envelope, tuples, two threads", TUPLES, 2),
    in_one_call("envelope, one call", None),
    in_one_call("envelope, tuples, one call", TUPLES),
    in_one_call("envelope, one call, two threads", None, 2),
    in_one_call("envelope, tuples, one call, two threads", TUPLES, 2),
    in_ideal_threads("envelope, one call, ideal two threads", partial(ideal_messages, fields=None), MESSAGES),
    in_ideal_threads("envelope, tuples, one call, ideal two threads", partial(ideal_messages, fields=TUPLES), MESSAGES),
    *map(in_form, FORMS),
    in_changes("changes", all_changes),
    Case(FILTER_AND_ROWS, "baseline", filter_and_rows, verify_filter, digest_changes, without_transactions),
    in_changes("changes of one table, typed", table_changes, FILTER_AND_ROWS),
    Case(LAST_CHANGES, "baseline", last_changes, verify_net_changes, digest_snapshot, without_snapshot),
    Case(
        "net changes",
        "pgdecode",
        net_changes,
        verify_net_changes,
        digest_snapshot,
        without_snapshot,
        baselines=(MEMORY_READ, LAST_CHANGES),
    ),
    Case("snapshot", "pgdecode", snapshot, verify_snapshot, digest_snapshot, without_snapshot),
    one_by_one("decode, one message", "pgdecode", lambda: pgdecode.decode, 200_000),
    one_by_one(PLAIN_PYTHON, "other decoders", load_reference, 10_000, without_reference),
    *(peer_case(other.name, SAMPLES[other.language]) for other in PEERS),
    Case(C_ROWS, "baseline", WideRows, verify_wide_rows, int, without_wide_rows, kinds=(ROWS,)),
    in_rows("typed rows", 1),
    in_rows("typed rows, two threads", 2),
    in_rows("typed rows, one call", 1, True),
    in_rows("typed rows, one call, two threads", 2, True),
    in_ideal_threads("typed rows, one call, ideal two threads", ideal_rows, ROWS),
    Case(COPIES[0], "baseline", copy_messages, verify_files, digest_file, baselines=(), kinds=(FILES,)),
    Case("command line", "pgdecode", decode_messages, verify_files, digest_file, baselines=COPIES[:1], kinds=(FILES,)),
    Case(COPIES[1], "baseline", copy_table, verify_files, digest_file, without_transactions, None, (), (FILES,)),
    Case(
        "command line, one table",
        "pgdecode",
        decode_table,
        verify_files,
        digest_file,
        without_transactions,
        baselines=COPIES[1:],
        kinds=(FILES,),
    ),
    *(case for command in COMMANDS for case in with_workers(command)),
    Case(CAST, "baseline", prepare_cast, verify_values, digest_values, without_cast, None, (), (VALUES,)),
    Case(TEXT, "pgdecode", values_in(False), verify_values, digest_values, baselines=(CAST,), kinds=(VALUES,)),
    Case(BINARY, "pgdecode", values_in(True), verify_values, digest_values, baselines=(CAST,), kinds=(VALUES,)),
)
# These are too slow to run before every repetition of another case. Median rates of the same run are compared.
SLOW_BASELINES = (PLAIN_PYTHON, PYPGOUTPUT, NODE, PGWIRE)
