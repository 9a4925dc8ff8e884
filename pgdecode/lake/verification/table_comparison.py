"""Compares two tables as sets of rows with multiplicity, in constant memory."""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.changes.row_hashes import HashSums, row_hashes
from pgdecode.arrow.json_text import flat, json_text
from pgdecode.net.keys import buffers_of

# Rows are put into buckets by the hash of their key. Those of different buckets are compared one by one.
_N_BUCKETS = 2**16
_MOST_ROWS = 2**17

# Reads the rows of a table. It may be called again.
Reader = Callable[[], Iterable[pa.RecordBatch]]
Kind = Literal["missing", "extra", "value"]


@dataclass(frozen=True)
class Difference:
    """A difference between a row of the server and the compared table.

    Attributes
    ----------
    kind : {"missing", "extra", "value"}
        The row is only on the server; only in the compared table; or a value of it is another.
    key : dict of str to str
        The row's key, as text. Without a key, the hash of the row by the name "row".
    column : str or None
        The column with another value.
    server, compared : str or None
        The values, as text: hashed with BLAKE2b, unless values were requested. None for null, and for a missing row.
    count : int
        The number of equal rows without a key, or of rows with the same key.
    """

    kind: Kind
    key: Mapping[str, str | None]
    column: str | None = None
    server: str | None = None
    compared: str | None = None
    count: int = 1


@dataclass
class Comparison:
    """The result of a comparison.

    Attributes
    ----------
    server_rows, compared_rows : int
        Number of rows on each side. Of a sample, those in it.
    differences : list of Difference
        The first ones.
    n_different : int
        Number of rows that are different, as far as they were counted.
    is_counted : bool
        Whether all of them were counted. If very many rows are different, only a part of them is looked at.
    """

    server_rows: int
    compared_rows: int
    differences: list[Difference] = field(default_factory=list)
    n_different: int = 0
    is_counted: bool = True


def compare_tables(
    server: Reader,
    compared: Reader,
    names: Sequence[str],
    key: Sequence[str],
    *,
    limit: int = 20,
    show_values: bool = False,
    is_sample: bool = False,
) -> Comparison:
    """Compare two tables that have the same columns.

    Parameters
    ----------
    server, compared : callable
        Return the rows as batches. They are read again if there are differences.
    names : sequence of str
        The columns of both.
    key : sequence of str
        The columns that tell rows apart; without any, rows are compared as a whole, with their number.
    limit : int
        How many differences to return.
    show_values : bool
        Whether differences have values, in place of their hashes.
    is_sample : bool
        Whether `server` returns some of the rows: then only rows with their keys are compared.
    """
    seed = int.from_bytes(os.urandom(8), "little")
    drawn: list[pa.Array] | None = [] if is_sample and key else None
    sums = _sums(server(), names, key, seed, drawn)
    if drawn is not None:
        keys = pa.chunked_array(drawn, pa.uint64()).unique()
        compared = functools.partial(_with_keys, compared, key, seed, keys)
    others = _sums(compared(), names, key, seed)
    found = Comparison(sums.n_rows(), others.n_rows())
    different = sums.different(others)
    if not different:
        return found
    buckets: list[int] = []
    n_rows = 0
    for bucket, count in different:
        if buckets and n_rows + count > _MOST_ROWS:
            found.is_counted = False
            break
        buckets.append(bucket)
        n_rows += count
    chosen = pa.array(buckets, pa.uint64())
    rows, other_rows = (_rows_by_key(_selected(read(), key, seed, chosen), names, key) for read in (server, compared))
    for n_different, differences in _differences(rows, other_rows, names, key, show_values=show_values):
        found.n_different += n_different
        found.differences += differences[: max(limit - len(found.differences), 0)]
    return found


def _hashes(batch: pa.RecordBatch, names: Sequence[str], seed: int) -> tuple[Any, Any]:
    return row_hashes([buffers_of(hashable(batch[name])) for name in names], len(batch), seed)


def _sums(
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    key: Sequence[str],
    seed: int,
    keys: list[pa.Array] | None = None,
) -> HashSums:
    """Sum up the hashes of rows, and collect those of their keys in `keys`."""
    found = HashSums(_N_BUCKETS)
    for batch in batches:
        first, second = _hashes(batch, names, seed)
        of_keys = _hashes(batch, key, seed)[0] if key else first
        found.add(of_keys, first, second)
        if keys is not None:
            keys.append(pa.Array.from_buffers(pa.uint64(), len(batch), [None, of_keys]))
    return found


def _with_keys(read: Reader, key: Sequence[str], seed: int, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    """Select the rows with some keys."""
    for batch in read():
        yield batch.filter(pc.is_in(key_hashes(batch, key, seed), keys))


def hashes_of(batch: pa.RecordBatch, names: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Hash rows by some columns to two columns of uint64. The hashes of equal values of all tables are equal."""
    first, second = (pa.Array.from_buffers(pa.uint64(), len(batch), [None, half]) for half in _hashes(batch, names, 0))
    return first, second


def key_hashes(batch: pa.RecordBatch, key: Sequence[str], seed: int) -> pa.Array:
    """Hash the keys of rows, or whole rows if there is no key, as uint64."""
    first, _ = _hashes(batch, key or batch.schema.names, seed)
    return pa.Array.from_buffers(pa.uint64(), len(batch), [None, first])


def _selected(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], seed: int, buckets: pa.Array
) -> Iterator[pa.RecordBatch]:
    """Select the rows of some buckets."""
    for batch in batches:
        numbers = pc.bit_wise_and(key_hashes(batch, key, seed), pa.scalar(_N_BUCKETS - 1, pa.uint64()))
        chosen = batch.filter(pc.is_in(numbers, buckets))
        if len(chosen):
            yield chosen


_Row = tuple[str | None, ...]
_Rows = dict[_Row, Counter[_Row]]


def _rows_by_key(batches: Iterable[pa.RecordBatch], names: Sequence[str], key: Sequence[str]) -> _Rows:
    """Convert rows to text, and collect them by their keys."""
    found: _Rows = defaultdict(Counter)
    numbers = [names.index(name) for name in key or names]
    for batch in batches:
        for row in zip(*(text_of(batch[name]) for name in names), strict=True):
            found[tuple(row[number] for number in numbers)][row] += 1
    return found


def _differences(
    server: _Rows, compared: _Rows, names: Sequence[str], key: Sequence[str], *, show_values: bool
) -> Iterator[tuple[int, list[Difference]]]:
    """Yield the differences of each key, with the number of rows."""

    def shown(value: str | None) -> str | None:
        return value if show_values or value is None else hashed(value)

    def named(value: _Row) -> dict[str, str | None]:
        if key:
            return dict(zip(key, value, strict=True))
        return dict(zip(names, value, strict=True)) if show_values else {"row": hashed("\0".join(map(repr, value)))}

    for value in {**server, **compared}:
        missing = server.get(value, Counter()) - compared.get(value, Counter())
        extra = compared.get(value, Counter()) - server.get(value, Counter())
        if len(missing) == len(extra) == 1 and missing.total() == extra.total() == 1:
            pairs = zip(names, *missing, *extra, strict=True)
            yield (
                1,
                [
                    Difference("value", named(value), name, shown(one), shown(other))
                    for name, one, other in pairs
                    if one != other
                ],
            )
        elif missing or extra:
            kinds: list[tuple[Kind, int]] = [("missing", missing.total()), ("extra", extra.total())]
            yield (
                max(missing.total(), extra.total()),
                [Difference(kind, named(value), count=count) for kind, count in kinds if count],
            )


def hashed(text: str) -> str:
    """Hash a value for a report."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def text_of(array: pa.Array) -> list[str | None]:
    """Convert values to text. Different values have different texts."""
    array = pc.if_else(array, "t", "f") if pa.types.is_boolean(array.type) else flat(hashable(array))
    return [None if value is None else value if isinstance(value, str) else str(value) for value in array.to_pylist()]


def hashable(array: pa.Array) -> pa.Array:
    """Convert an array so that equal values have equal bytes: NaN has one form, and nested values are JSON."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return hashable(array.storage)
    if pa.types.is_dictionary(kind):
        return hashable(array.dictionary_decode())
    if pa.types.is_nested(kind):
        return json_text(array)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), kind), array)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return array.cast(pa.uint8())
    if kind in (pa.string_view(), pa.binary_view()):
        return array.cast(pa.large_binary())
    return array
