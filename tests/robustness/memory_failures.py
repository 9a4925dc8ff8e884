"""Fail each allocation of a decoding in turn: a program for tests/robustness/test_memory_failures.py, under
failing_malloc.c.

For each case, and each n up to the number of its allocations: the n-th fails, then (in a second round) the n-th and
all after it. What comes is the result, where a slower way needed less, or MemoryError; nothing is left over, and the
decoder gives the result when there is memory again. Prints how many allocations each case has.

    python memory_failures.py SEED MOST CASE ...

Of a case that has more than MOST allocations, so many are chosen by the seed; 0 is all. With "objects" for MOST it is
the interpreter's own allocations that fail, all of them in turn, and only a crash is looked for.
"""

from __future__ import annotations

import ctypes
import gc
import math
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode import Insert
from pgdecode.payloads import thread_counts
from support import captures
from support.generators.encoder import encode
from support.generators.pieces import broken, tables
from support.generators.slot import Slot

FOREVER = 1 << 60
ALLOCATOR = ctypes.CDLL(None)
for name in ("allocations_seen", "blocks_held", "find_modules"):
    getattr(ALLOCATOR, name).restype = ctypes.c_long
ALLOCATOR.fail_allocations.argtypes = [ctypes.c_long, ctypes.c_long]

# Makes a decoder, and gives what is to be called of it until it succeeds.
Case = Callable[[], Callable[[], Any]]


def held() -> tuple[int, int]:
    """Bytes that Arrow's pool has given out, and blocks of the native modules."""
    gc.collect()
    return pa.total_allocated_bytes(), ALLOCATOR.blocks_held()


def attempt(decoding: Callable[[], Any], expected: Any, first: int, last: int) -> int:
    """Decode while allocations fail; how many there were."""
    ALLOCATOR.fail_allocations(first, last)
    try:
        found = decoding()
    except MemoryError:
        found = None
    finally:
        n_seen: int = ALLOCATOR.allocations_seen()
        ALLOCATOR.fail_allocations(0, 0)
    if found is None:
        assert n_seen >= first > 0, "MemoryError although no allocation has failed"
        found = decoding()
    assert same(found, expected), "the result after a failure is another"
    return n_seen


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if not isinstance(expected, pa.RecordBatch):
        return bool(found == expected)
    # By their bytes where not by their values: Arrow has no NaN in a list equal to itself.
    return found.equals(expected) or found.serialize().equals(expected.serialize())


def check(case: Case, seed: int, most: int) -> int:
    """Run a case with its allocations failing; how many there are."""
    expected = case()()  # also fills what is kept for good
    gc.freeze()
    n_points = attempt(case(), expected, 0, 0)
    for last in (None, FOREVER):
        points = list(range(1, n_points + 1))
        if most and n_points > most:
            points = random.Random(seed).sample(points, most)
        for n in points:
            decoding = case()
            before = held()
            attempt(decoding, expected, n, n if last is None else last)
            del decoding
            after = held()
            # What the decoder itself held before, and let go of since, is no leak.
            assert after[0] <= before[0], (n, last, before, after)
            assert after[1] <= before[1], (n, last, before, after)
    return n_points


def check_objects(case: Case) -> int:
    """Run a case with allocations of the interpreter failing; how many were tried."""
    import _testcapi

    expected = case()()
    for last in (None, FOREVER):
        n = n_without = 0
        # Some failures are survived, so that one success is not the end.
        while n_without < 20:
            decoding = case()
            _testcapi.set_nomemory(n, 0 if last else n + 1)
            try:
                decoding()
                n_without += 1
            except MemoryError:
                n_without = 0
            finally:
                _testcapi.remove_mem_hooks()
            assert same(decoding(), expected), "the result after a failure is another"
            n += 1
    return n


# -- cases -----------------------------------------------------------------------------------------------------------


def envelope(payloads: Any, **options: Any) -> Case:
    return lambda: lambda: pgdecode.decode_messages(payloads, **options)


def divided(make: Callable[..., Case], of: Any, **options: Any) -> Case:
    """The work of two threads, or of one where the second one found no memory."""
    thread_counts.LEAST_ROWS = 5
    thread_counts.LEAST_RESOLVED = 5
    thread_counts.MOST_ROW_BYTES = math.inf
    return make(of, threads=2, **options)


def typed(name: str, **options: Any) -> Case:
    found = [(version, payloads) for version, payloads in tables(name) if payloads]
    return lambda: (
        lambda: [
            pgdecode.decode_rows(broken(payloads) if len(payloads) > 5 else payloads, version, **options)
            for version, payloads in found
        ]
    )


def lists_of_text(lengths: list[int], **options: Any) -> Case:
    """Rows of a text, a list of two, and a null, by the lengths of the texts."""
    columns = tuple(pgdecode.Column(0, name, oid, -1) for name, oid in (("a", 25), ("b", 1009), ("c", 1009)))
    relation = pgdecode.Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=columns)
    texts = [b"x" * length for length in lengths]
    payloads = [
        encode(Insert(relation_id=1, new=(text, b"{%s,%s}" % (text, text), None), new_formats="ttn")) for text in texts
    ]
    return lambda: lambda: pgdecode.decode_rows(payloads, relation, **options)


def growing() -> list[int]:
    """Lengths of which each 64 take more than a thread's own memory has, and more than those before."""
    return [length for i in range(10) for length in [2] * 63 + [100_000 * (6 + i)]]


def changes(name: str, table: str | None = None, n_pieces: int = 1, **options: Any) -> Case:
    payloads = captures.capture(name).column
    step = -(-len(payloads) // n_pieces)
    pieces = [payloads.slice(first, step) for first in range(0, len(payloads), step)]

    def made() -> Callable[[], Any]:
        decoder = pgdecode.ChangeDecoder(**options)
        todo = list(pieces)
        found = []

        def decoding() -> Any:
            # A piece that failed is given again to the same decoder.
            while todo:
                piece = todo[0]
                batch = decoder.decode(piece) if table is None else decoder.table(piece, table)
                found.append(batch)
                del todo[0]
            return list(found)

        return decoding

    return made


def catalog(name: str) -> Case:
    payloads = captures.capture(name).column
    return lambda: lambda: pgdecode.RelationCatalog.from_messages(payloads)


def many_relations() -> Case:
    """A batch in which native tables grow more than once."""
    slot = Slot()
    for xid in range(400):
        slot.begin(xid + 3)
        slot.relation(20_000 + xid, ["v"])
        slot.insert(20_000 + xid, "x")
        slot.commit()
    return lambda: lambda: pgdecode.ChangeDecoder().decode(slot.payloads)


CASES: dict[str, Callable[[], Case]] = {
    "envelope": lambda: envelope(captures.capture("18.twophase.v4bin").column),
    "envelope of a list": lambda: envelope(captures.capture("18.types.v2bin").payloads),
    "envelope in no order": lambda: envelope(captures.capture("18.streams.v2").column, in_stream="auto"),
    "envelope with bad payloads": lambda: envelope(
        broken(captures.capture("18.streams.v4").payloads), mode="PERMISSIVE", in_stream="auto"
    ),
    "envelope by two threads": lambda: divided(envelope, captures.capture("18.shop.v1").column),
    "streams by two threads": lambda: divided(envelope, captures.capture("18.streams.v2").column),
    "few payloads": lambda: envelope([b"E", b"", None, b"z", b"E"], mode="PERMISSIVE"),
    "rows in text": lambda: typed("18.types.v1", mode="PERMISSIVE"),
    "rows in binary": lambda: typed("18.types.v1bin", mode="PERMISSIVE"),
    "rows as text": lambda: typed("18.types.v1bin", mode="PERMISSIVE", unrepresentable="text"),
    "rows by two threads": lambda: divided(typed, "18.shop.v1", mode="PERMISSIVE"),
    "rows that grow by two threads": lambda: divided(lists_of_text, growing()),
    "rows of a stream": lambda: typed("18.streams.v2", mode="PERMISSIVE", unrepresentable="clamp"),
    "changes": lambda: changes("18.streams.v2"),
    "changes in binary, by pieces": lambda: changes("18.streams.v2bin", n_pieces=4, include_uncommitted=True),
    "changes of two phases": lambda: changes("18.twophase.v4bin", n_pieces=3, include_uncommitted=True),
    "changes of many relations": many_relations,
    "a catalog": lambda: catalog("18.twophase.v4bin"),
    "a table": lambda: changes("18.shop.v1", "public.orders"),
}


def main() -> None:
    assert ALLOCATOR.find_modules(), "pgdecode's native modules are not where they were looked for"
    seed, most, *names = sys.argv[1:]
    for name in names or CASES:
        case = CASES[name]()
        count = check_objects(case) if most == "objects" else check(case, int(seed), int(most))
        print(f"{name}: {count} allocations", flush=True)


if __name__ == "__main__":
    main()
