"""Hostile shapes of payloads by size: what a decoder might spend more than its bytes' worth on."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode import Column, Insert, Limits, Relation, Type
from pgdecode.files.text_files import convert_to_parquet
from pgdecode.protocol.options import Unwrap
from support.generators.encoder import encode
from support.generators.slot import Slot

T = 16385  # OID of the table
WIDE = Limits(max_columns=65535, max_name_bytes=2**30 - 1)

# What is done with it, and how many bytes it is done with.
Work = tuple[Callable[[], Any], int]


def total(payloads: Iterable[bytes | None]) -> int:
    return sum(len(payload) for payload in payloads if payload is not None)


def relation(type_id: int, n_columns: int = 1) -> Relation:
    columns = tuple(Column(0, f"c{i}", type_id, -1) for i in range(n_columns))
    return Relation(relation_id=T, namespace="public", name="t", replica_identity="f", columns=columns)


def one_value(type_id: int, value: bytes, *, binary: bool = False, types: Sequence[Type] = (), **options: Any) -> Work:
    payload = encode(Insert(relation_id=T, new=(value,), new_formats="b" if binary else "t"))
    described = relation(type_id)
    options = {"mode": "PERMISSIVE", "type_messages": types, **options}
    return lambda: pgdecode.decode_rows([payload], described, **options), len(payload)


def messages(payloads: Sequence[bytes | None], **options: Any) -> Work:
    return lambda: pgdecode.decode_messages(payloads, **options), total(payloads)


def rows(payloads: Sequence[bytes | None], described: Relation, **options: Any) -> Work:
    return lambda: pgdecode.decode_rows(payloads, described, **options), total(payloads)


def changes(payloads: Any, n_bytes: int | None = None, **options: Any) -> Work:
    return lambda: pgdecode.ChangeDecoder(**options).decode(payloads), n_bytes or total(payloads)


def table(payloads: Any, **options: Any) -> Work:
    return lambda: pgdecode.ChangeDecoder(**options).table(payloads, f"public.t{T}"), total(payloads)


def unwrapped(values: Sequence[bytes], how: Unwrap) -> Work:
    return lambda: pgdecode.unwrap(pa.array(values), how), total(values)


def file(payloads: Sequence[bytes]) -> Work:
    """A file of pg_recvlogical."""
    folder = tempfile.mkdtemp()
    source = Path(folder, "file")
    n_bytes = source.write_bytes(b"".join(payload + b"\n" for payload in payloads))

    def run() -> None:
        convert_to_parquet(source, Path(os.devnull))

    weakref.finalize(run, shutil.rmtree, folder)
    return run, n_bytes


def in_calls(payloads: Sequence[bytes], size: int) -> Work:
    """One decoder over many small batches."""

    def run() -> None:
        decoder = pgdecode.ChangeDecoder()
        for first in range(0, len(payloads), size):
            decoder.decode(payloads[first : first + size])

    return run, total(payloads)


# -- shapes of slots ---------------------------------------------------------------------------------------------------


def insert(value: str = "1", n_columns: int = 1) -> bytes:
    return encode(Insert(relation_id=T, new=(value.encode(),) * n_columns, new_formats="t" * n_columns))


def plain(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    for i in range(n):
        slot.insert(T, str(i))
    slot.commit()
    return slot.payloads


def many_relations(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    for i in range(n):
        slot.relation(20_000 + i, ["c"])
        slot.insert(20_000 + i, "1")
    slot.commit()
    return slot.payloads


def many_versions(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    for i in range(n):
        slot.relation(T, ["c", f"d{i % 2}"])
        slot.insert(T, "1", "2")
    slot.commit()
    return slot.payloads


def many_types(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    for i in range(n):
        slot.send(Type(type_id=20_000 + i, namespace="public", name=f"mood{i}"))
    slot.commit()
    return slot.payloads


def open_streams(n: int) -> list[bytes]:
    return slot_of_streams(n).payloads


def slot_of_streams(n: int, *, describe: bool = False) -> Slot:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.commit()
    for xid in range(100, 100 + n):
        slot.start(xid, first=True)
        if describe:
            slot.relation(T, ["c"], xid=xid)
        slot.insert(T, "1", xid=xid)
        slot.stop()
    return slot


def committed_streams(n: int) -> list[bytes]:
    slot = slot_of_streams(n, describe=True)
    for xid in range(100, 100 + n):
        slot.stream_commit(xid)
    return slot.payloads


def interleaved_blocks(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.commit()
    for i in range(n):
        xid = 100 + i % 2
        slot.start(xid, first=i < 2)
        slot.insert(T, "1", xid=xid)
        slot.stop()
    slot.stream_commit(100)
    slot.stream_commit(101)
    return slot.payloads


def sub_aborts(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.commit()
    for i in range(n):
        slot.start(100, first=i == 0)
        slot.insert(T, "1", xid=1000 + i)
        slot.insert(T, "2", xid=100)
        slot.stop()
        slot.stream_abort(100, 1000 + i)
    slot.stream_commit(100)
    return slot.payloads


def by_turns(n: int) -> list[bytes]:
    """Inserts, which are decoded in a loop of their own, and deletes, which are not."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    for _ in range(n):
        slot.insert(T, "1")
        slot.delete(T, "1")
    slot.commit()
    return slot.payloads


def truncates(n: int, *, streamed: bool = False) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.commit()
    for i in range(n):
        if streamed:
            slot.start(100 + i, first=True)
            slot.truncate(T, xid=100 + i)
            slot.stop()
        else:
            slot.begin(100 + i)
            slot.truncate(T)
            slot.commit()
    return slot.payloads


def wide_truncate(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.truncate(*[T] * n)
    slot.commit()
    return slot.payloads


def prepared(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["c"])
    slot.commit()
    for i in range(n):
        slot.begin_prepare(100 + i, f"gid{i}")
        slot.insert(T, "1")
        slot.prepare(f"gid{i}")
    for i in range(n):
        slot.commit_prepared(100 + i, f"gid{i}")
    return slot.payloads


def streams_in_doubt(n: int) -> list[bytes]:
    """Streams of inserts that claim to be plain too: each run of them is looked through for what contradicts that."""
    start = bytes.fromhex("530000030401")
    both = b"I" + bytes.fromhex("000003044e00000001") + b"N\0\0"
    return [start, both, b"E", both] * n


def blocks_after_relations(n: int) -> list[bytes]:
    """A stream that describes many relations, and then comes in many blocks."""
    slot = Slot()
    slot.start(100, first=True)
    for i in range(n):
        slot.relation(T + i, ["c"], xid=100)
    for _ in range(n):
        slot.stop()
        slot.start(100)
    slot.stop()
    slot.stream_commit(100)
    return slot.payloads


def contradicted_streams(n: int) -> list[bytes]:
    """Open streams that have described a relation, and Relation messages that may be of any of them."""
    slot = Slot()
    for i in range(n):
        slot.start(100 + i, first=True)
        slot.relation(T, ["c"], xid=100 + i)
        slot.stop()
    for i in range(n):
        slot.relation(T, [f"c{i % 7}"], xid=77)
    return slot.payloads


def aborted_relations(n: int) -> list[bytes]:
    """Sub-transactions that each describe one relation anew and are then rolled back, the last one first."""
    slot = Slot()
    slot.start(100, first=True)
    for i in range(n):
        slot.relation(T, [f"c{i % 7}"], xid=101 + i)
    slot.stop()
    for i in reversed(range(n)):
        slot.stream_abort(100, 101 + i)
    return slot.payloads


def reconnects(n: int) -> list[bytes]:
    """Many streams that are open, and each of them begun again."""
    slot = Slot()
    for _ in range(2):
        for i in range(n):
            slot.start(100 + i, first=True)
            slot.stop()
    return slot.payloads


def calls_beside_many_relations(n: int) -> Work:
    """Small calls to a decoder that knows many relations."""
    payloads = many_relations(n // 90)
    slot = Slot()
    slot.lsn = 1 << 30  # past all that came before
    calls = []
    for i in range(n // 90):
        slot.payloads = []
        slot.begin(8 + i)
        slot.insert(20_000, "1")
        slot.commit()
        calls.append(slot.payloads)

    def run() -> None:
        decoder = pgdecode.ChangeDecoder()
        decoder.decode(payloads)
        for call in calls:
            decoder.decode(call)

    return run, total(payloads) + sum(map(total, calls))


def lost_streams(n: int) -> list[bytes]:
    """Delimiters that contradict each other all along, with rows between them that read well both ways."""
    slot = Slot()
    for i in range(n):
        slot.start(100 + i)
        slot.insert(T, "1", xid=100 + i)
        slot.insert(T, "1")
    return slot.payloads


def shuffled(payloads: Sequence[bytes], seed: int = 1) -> list[bytes]:
    found = list(payloads)
    random.Random(seed).shuffle(found)
    return found


def halves(payloads: Sequence[bytes]) -> list[bytes]:
    return [payload[: len(payload) // 2] for payload in payloads]


def one_by_one(payloads: Sequence[bytes]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([payload], pa.binary()) for payload in payloads])


HSTORE = Type(type_id=20_001, namespace="public", name="hstore")


def hstore_binary(n: int) -> bytes:
    pairs = b"".join(b"\0\0\0\6%06x\0\0\0\1v" % i for i in range(n))
    return n.to_bytes(4, "big") + pairs


def digits_binary(n: int) -> bytes:
    """A numeric of n base-10000 digits, all before the point."""
    head = b"".join(number.to_bytes(2, "big") for number in (n, n - 1, 0, 0))
    return head + b"\x04\xd2" * n


# By name: a maker of work of about n bytes.
SHAPES: dict[str, Callable[[int], Work]] = {
    "columns of an insert": lambda n: messages([insert("1", min(n // 6, 65535))], limits=WIDE, in_stream=False),
    "columns of a relation": lambda n: messages(
        [encode(relation(23, min(n // 14, 65535)))], limits=WIDE, in_stream=False
    ),
    "columns of typed rows": lambda n: rows([insert("1", min(1600, n // 60))] * 10, relation(23, min(1600, n // 60))),
    "a long name": lambda n: messages(
        [encode(Relation(relation_id=T, namespace="n" * n, name="t", replica_identity="f", columns=()))],
        limits=WIDE,
        in_stream=False,
    ),
    "a long value": lambda n: one_value(25, b"x" * n),
    "an array": lambda n: one_value(1007, b"{" + b",".join([b"1"] * (n // 2)) + b"}"),
    "an array of arrays": lambda n: one_value(1007, b"{" + b",".join([b"{1}"] * (n // 4)) + b"}"),
    "opening braces": lambda n: one_value(1009, b"{" * n),
    "quotes in an array": lambda n: one_value(1009, b'{"' + b'\\"' * (n // 2) + b'"}'),
    "empty quotes in an array": lambda n: one_value(1009, b"{" + b",".join([b'""'] * (n // 3)) + b"}"),
    "backslashes in an array": lambda n: one_value(1009, b'{"' + b"\\\\" * (n // 2) + b'"}'),
    "an array without an end": lambda n: one_value(1009, b'{"' + b"x" * n),
    "quotes in a record": lambda n: one_value(2249, b'("' + b'""' * (n // 2) + b'")', columns={"c0": "(a text)"}),
    "backslashes in bytea": lambda n: one_value(17, b"\\\\" * (n // 2)),
    "octal digits in bytea": lambda n: one_value(17, b"\\377" * (n // 4)),
    "bits": lambda n: one_value(1562, b"01" * (n // 2)),
    "digits of a numeric": lambda n: one_value(1700, b"1" * min(n, 131_000)),
    "digits of a numeric as float8": lambda n: one_value(
        1700, b"1" * min(n, 131_000), types=(), columns={"c0": "float8"}
    ),
    "digits of a float8": lambda n: one_value(701, b"1" * n),
    "digits of an int4": lambda n: one_value(23, b"0" * n),
    "digits of a binary numeric": lambda n: one_value(1700, digits_binary(min(n // 2, 32_000)), binary=True),
    "digits of a money": lambda n: one_value(790, b"$" + b"1" * n),
    "hstore": lambda n: one_value(20_001, b", ".join(b'"%06x"=>"v"' % i for i in range(n // 16)), types=[HSTORE]),
    "binary hstore": lambda n: one_value(20_001, hstore_binary(n // 15), binary=True, types=[HSTORE]),
    "jsonpath-like brackets": lambda n: one_value(3802, b"[" * n),
    "points of a polygon": lambda n: one_value(604, b"(" + b",".join([b"(1,2)"] * (n // 6)) + b")"),
    "lexemes": lambda n: one_value(3614, b" ".join(b"'a%d':1" % i for i in range(n // 10))),
    "ranges of a multirange": lambda n: one_value(4451, b"{" + b",".join([b"[1,3)"] * (n // 6)) + b"}"),
    "hexadecimal digits": lambda n: unwrapped([b"45" * (n // 2)], "hex"),
    "short values in base64": lambda n: unwrapped([b"RQ=="] * (n // 4), "base64"),
    "line breaks in base64": lambda n: unwrapped([b"R\n" * (n // 8 * 4)], "base64"),
    "a file": lambda n: file([insert()] * (n // 16)),
    "a file of empty payloads": lambda n: file([b""] * n),
    "a file of bad messages": lambda n: file([b"B\xff" + bytes(19)] * (n // 22)),
    "inserts": lambda n: messages([insert()] * (n // 15)),
    "chunks of messages": lambda n: (lambda column: (lambda: pgdecode.decode_messages(column), n))(
        one_by_one([insert()] * (n // 15))
    ),
    "chunks of streams with an invalid relation": lambda n: (
        lambda column: (lambda: pgdecode.decode_messages(column, mode="PERMISSIVE"), n)
    )(one_by_one(streams_in_doubt(n // 31))),
    "chunks of rows": lambda n: (lambda column: (lambda: pgdecode.decode_rows(column, relation(25)), n))(
        one_by_one([insert()] * (n // 15))
    ),
    "chunks of changes": lambda n: changes(one_by_one(plain(n // 15)), n),
    "bad messages": lambda n: messages([b"I\0"] * (n // 2), mode="PERMISSIVE"),
    "bad rows": lambda n: rows([b"I\0"] * (n // 2), relation(25), mode="PERMISSIVE"),
    "bad values": lambda n: rows([insert("x")] * (n // 15), relation(23), mode="PERMISSIVE"),
    "bad changes": lambda n: changes(halves(plain(n // 15)), mode="PERMISSIVE"),
    "in no order": lambda n: messages(shuffled(committed_streams(n // 80)), in_stream="auto", mode="PERMISSIVE"),
    "in the wrong order": lambda n: messages(shuffled(committed_streams(n // 80)), mode="PERMISSIVE"),
    "streams that never stop": lambda n: messages(lost_streams(n // 40), mode="PERMISSIVE"),
    "changes": lambda n: changes(plain(n // 15)),
    "inserts and deletes by turns": lambda n: changes(by_turns(n // 30)),
    "rows of a table": lambda n: table(plain(n // 15)),
    "relations": lambda n: changes(many_relations(n // 45)),
    "relations in calls": lambda n: in_calls(many_relations(n // 45), 20),
    "versions of a table": lambda n: changes(many_versions(n // 60)),
    "versions of a typed table": lambda n: table(many_versions(n // 60)),
    "types": lambda n: changes(many_types(n // 20)),
    "a catalog": lambda n: (
        lambda payloads: (lambda: pgdecode.RelationCatalog.from_messages(payloads), total(payloads))
    )(many_relations(n // 45)),
    "open streams": lambda n: changes(open_streams(n // 30)),
    "open streams in calls": lambda n: in_calls(open_streams(n // 30), 20),
    "rows of an open stream in calls": lambda n: in_calls(
        [*open_streams(1)[:-1], *[b"I\0\0\0d" + insert()[1:]] * (n // 19)], 20
    ),
    "streams with relations": lambda n: changes(committed_streams(n // 80)),
    "interleaved blocks": lambda n: changes(interleaved_blocks(n // 30)),
    "sub-aborts": lambda n: changes(sub_aborts(n // 60)),
    "sub-aborts, all reported": lambda n: changes(sub_aborts(n // 60), include_uncommitted=True),
    "truncates": lambda n: changes(truncates(n // 60)),
    "truncates in streams": lambda n: changes(truncates(n // 25, streamed=True)),
    "truncates of a table": lambda n: table(truncates(n // 60)),
    "a truncate of many": lambda n: changes(wide_truncate(n // 4)),
    "blocks after relations": lambda n: changes(blocks_after_relations(n // 60)),
    "streams of a contradicted relation": lambda n: changes(contradicted_streams(n // 90), mode="PERMISSIVE"),
    "relations of aborted sub-transactions": lambda n: changes(aborted_relations(n // 60)),
    "streams begun again": lambda n: changes(reconnects(n // 14)),
    "calls beside many relations": calls_beside_many_relations,
    "prepared transactions": lambda n: changes(prepared(n // 150)),
}
