"""How much a batch may become: text out of small binary values, and what Arrow's 32-bit offsets reach."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgdecode
from pgdecode import ChangeDecoder, Column, Insert, Limits, Relation
from pgdecode.changes.record_batches import one_batch
from pgdecode.protocol.limits import FREE_EXPANSION, MAX_DIMENSIONS
from pgdecode.types.pgtypes import as_text, named
from support.generators.encoder import encode
from support.generators.slot import Slot
from support.tiers import long
from support.values import decode_values

NUMERIC, NUMERIC_ARRAY, BYTEA = 1700, 1231, 17
# 1e131071, the largest power of ten that a numeric holds: recorded from servers in tests/data/values.jsonl.
LONGEST = bytes.fromhex("0001 7fff 0000 0000 03e8")
LONGEST_DIGITS = 131072
REFUSED = (
    "row 0, offset 0: the text of values and names in this batch would exceed Limits.max_expansion; "
    "decode fewer rows at once"
)


def relation(*type_ids: int) -> Relation:
    columns = tuple(Column(0, f"c{at}", type_id, -1) for at, type_id in enumerate(type_ids))
    return Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=columns)


def row(*values: bytes) -> bytes:
    return encode(Insert(relation_id=1, new=values, new_formats="b" * len(values)))


def numeric_of(n_digits: int) -> bytes:
    """A numeric that is 1 and n_digits - 1 zeros, as numeric_send writes it."""
    weight, rest = divmod(n_digits - 1, 4)
    return (1).to_bytes(2, "big") + weight.to_bytes(2, "big") + bytes(4) + (10**rest).to_bytes(2, "big")


def of_length(total: int, payload_bytes: int) -> tuple[list[bytes], int]:
    """Payloads of one numeric each whose digits are `total` past what payloads of as many bytes are worth."""
    payloads: list[bytes] = []
    left = total
    size = len(row(LONGEST))
    while left > 0:
        allowed = payload_bytes * size
        digits = min(LONGEST_DIGITS, left + allowed)
        payloads.append(row(numeric_of(digits)))
        left -= digits - allowed
    return payloads, size


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("times", [1, 16])
def test_a_batch_of_rows_makes_as_much_text_as_the_limit_and_no_more(times: int, beyond: int) -> None:
    payloads, _ = of_length(FREE_EXPANSION + beyond, times)
    limits = Limits(max_expansion=times)
    total = sum(map(len, payloads)) * times + FREE_EXPANSION + beyond
    if beyond <= 0:
        batch = pgdecode.decode_rows(payloads, relation(NUMERIC), limits=limits)
        assert sum(len(value) for value in batch["c0"].to_pylist()) == total
        return
    for mode in ("FAILFAST", "PERMISSIVE"):
        with pytest.raises(pgdecode.BatchExpands) as caught:
            pgdecode.decode_rows(payloads, relation(NUMERIC), limits=limits, mode=mode)
        assert str(caught.value) == REFUSED
    half = len(payloads) // 2
    for part in (payloads[:half], payloads[half:]):
        assert len(pgdecode.decode_rows(part, relation(NUMERIC), limits=limits)) == len(part)


def test_the_columns_of_a_batch_count_together() -> None:
    n = FREE_EXPANSION // LONGEST_DIGITS
    narrow = [row(LONGEST)] * (n // 2)
    assert len(pgdecode.decode_rows(narrow * 2, relation(NUMERIC))) == n // 2 * 2
    wide = [row(LONGEST, LONGEST, LONGEST)] * (n // 2)
    with pytest.raises(pgdecode.BatchExpands):
        pgdecode.decode_rows(wide, relation(NUMERIC, NUMERIC, NUMERIC))


def array_of(value: bytes, n: int, type_id: int = NUMERIC) -> bytes:
    head = [1, 0, type_id, n, 1]
    items = n * (len(value).to_bytes(4, "big") + value)
    return b"".join(number.to_bytes(4, "big") for number in head) + items


def test_one_row_past_the_limit_is_the_fault_of_its_value() -> None:
    # 200 of the longest numerics in 2.8 kB: 26 MB of text.
    payload = row(b"\0\0\0\0\0\0\0\0", array_of(LONGEST, 200))
    described = relation(NUMERIC, NUMERIC_ARRAY)
    with pytest.raises(pgdecode.BatchExpands) as caught:
        pgdecode.decode_rows([payload], described)
    assert (caught.value.row, caught.value.column, caught.value.relation) == (0, "c1", 1)
    batch = pgdecode.decode_rows([payload], described, mode="PERMISSIVE")
    (found,) = batch.to_pylist()
    assert (found["c0"], found["c1"]) == ("0", None)
    assert found["_error"].startswith("LIMIT_EXPANSION at offset ")
    batch.validate(full=True)
    assert pgdecode.decode_rows([payload], described, limits=Limits(max_expansion=9000))["c1"][0].is_valid


def test_text_is_no_expansion_however_much_there_is() -> None:
    text = encode(Insert(relation_id=1, new=(b"\\x" + b"ab" * 2**20,), new_formats="t"))
    limits = Limits(max_expansion=1)
    assert len(pgdecode.decode_rows([text] * 30, relation(25), limits=limits)) == 30
    assert len(pgdecode.decode_rows([text] * 30, relation(BYTEA), limits=limits)) == 30


def changed(payload: bytes, n: int) -> list[bytes]:
    """A transaction of as many inserts."""
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(encode(relation(NUMERIC, NUMERIC_ARRAY)))
    slot.payloads += [payload] * n
    slot.commit()
    return slot.payloads


def test_changes_past_the_limit_come_in_batches_that_are_not() -> None:
    payloads = changed(row(LONGEST, b"\0\0\0\0\0\0\0\0\0\0\6\xa4"), 300)
    most = FREE_EXPANSION + 16 * sum(map(len, payloads))
    for batches in (
        list(ChangeDecoder().decode_batches(payloads)),
        list(ChangeDecoder().table_batches(payloads, "s.t")),
    ):
        assert len(batches) > 1
        assert sum(map(len, batches)) == 300
        assert all(batch.nbytes < most + 2**20 for batch in batches)


def test_one_change_past_the_limit_is_an_error_and_the_others_are_not() -> None:
    payloads = changed(row(b"\0\0\0\0\0\0\0\0", array_of(LONGEST, 200)), 1)
    payloads[-1:-1] = [row(b"\0\0\0\0\0\0\0\0", array_of(b"\0\0\0\0\0\0\0\0", 1))]
    for rows, error, value in (
        (ChangeDecoder(mode="PERMISSIVE").decode(payloads).to_pylist(), "error", lambda r: dict(r["new"])["c1"]),
        (ChangeDecoder(mode="PERMISSIVE").table(payloads, "s.t").to_pylist(), "_error", lambda r: r["c1"]),
    ):
        assert [bool(r[error]) for r in rows] == [True, False]
        assert rows[0][error].startswith("LIMIT_EXPANSION at offset ")
        assert value(rows[0]) is None
        assert value(rows[1]) in ("{0}", ["0"])
    for decode in (lambda: ChangeDecoder().decode(payloads), lambda: ChangeDecoder().table(payloads, "s.t")):
        with pytest.raises(pgdecode.BatchExpands, match="row 2, "):
            decode()


# -- what Arrow's offsets reach --------------------------------------------------------------------------------------


def free_bytes() -> int:
    """Memory that a process can have, that of the system's file cache included."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)


MOST = 2**31 - 1
PIECE = 2**26
needs_memory = pytest.mark.skipif(free_bytes() < 8 * 2**30, reason="needs 8 GiB of free memory")


def views(*sizes: int) -> pa.Array:
    """Inserts of one text column."""
    return shared([(b"a", size) for size in sizes])


def shared(payloads: list[bytes | tuple[bytes, int]]) -> pa.Array:
    """Payloads, of which a pair is an insert of a text repeated; equal ones share memory: gigabytes out of a few."""
    whole = b""
    rows = b""
    starts: dict[bytes | tuple[bytes, int], tuple[int, int, bytes]] = {}
    for payload in payloads:
        if payload not in starts:
            if isinstance(payload, tuple):
                text, n = payload
                sent = encode(Insert(relation_id=1, new=(text * n,), new_formats="t"))
            else:
                sent = payload
            starts[payload] = len(whole), len(sent), sent[:4]
            whole += sent
        start, length, prefix = starts[payload]
        rows += length.to_bytes(4, "little") + prefix + bytes(4) + start.to_bytes(4, "little")
    return pa.Array.from_buffers(pa.binary_view(), len(payloads), [None, pa.py_buffer(rows), pa.py_buffer(whole)])


@pytest.mark.full
@needs_memory
@pytest.mark.parametrize("beyond", [long(-1), long(0), 1])
def test_a_column_holds_what_its_offsets_reach_and_one_byte_more_is_refused(beyond: int) -> None:
    payloads = views(*[PIECE] * 31, MOST - 31 * PIECE + beyond)
    if beyond > 0:
        with pytest.raises(pgdecode.BatchTooLarge):
            pgdecode.decode_rows(payloads, relation(25), mode="PERMISSIVE")
        return
    values = pgdecode.decode_rows(payloads, relation(25))["c0"]
    assert len(values) == 32
    assert pc.sum(pc.binary_length(values)).as_py() == MOST + beyond


@pytest.mark.full
@pytest.mark.long
@needs_memory
def test_tuples_are_refused_where_a_whole_payload_might_pass_what_offsets_reach() -> None:
    # Before the value stand tag, OID, N, count, kind and length, 13 bytes.
    last = MOST - 31 * PIECE - 13
    with pytest.raises(pgdecode.BatchTooLarge):
        pgdecode.decode_messages(views(*[PIECE] * 31, last + 14), fields=["new"], mode="PERMISSIVE")
    batch = pgdecode.decode_messages(views(*[PIECE] * 31, last), fields=["new"])
    assert pc.sum(pc.binary_length(batch["new"].values)).as_py() == 31 * PIECE + last


@pytest.mark.full
@needs_memory
def test_changes_past_what_offsets_reach_come_in_several_batches() -> None:
    piece = encode(Insert(relation_id=1, new=(b"a" * PIECE,), new_formats="t"))
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(encode(relation(25)))
    slot.payloads += [piece] * 33
    slot.commit()
    sizes = []
    for batch in ChangeDecoder().table_batches(slot.payloads, "s.t"):
        sizes.append((len(batch), pc.sum(pc.binary_length(batch["c0"])).as_py()))
    assert len(sizes) > 1
    assert sum(n_rows for n_rows, _ in sizes) == 33
    assert all(n_bytes == n_rows * PIECE <= MOST for n_rows, n_bytes in sizes)


@pytest.mark.full
@pytest.mark.long
@needs_memory
def test_maps_past_what_offsets_reach_are_refused_also_where_little_text_was_expected() -> None:
    # Payloads without text let the builder expect little: its memory grows past 2 GiB in steps of a half.
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(encode(relation(25)))
    n = len(slot.payloads)
    slot.commit()
    for xid in range(701, 901):
        slot.begin(xid)
        slot.commit()
    payloads = shared([*slot.payloads[:n], *[(b"a", PIECE - 2**22)] * 35, *slot.payloads[n:]])
    with pytest.raises(pgdecode.BatchTooLarge):
        ChangeDecoder().decode(payloads)


def test_batches_past_what_offsets_reach_are_not_made_one() -> None:
    # Of zeros that nobody has touched: no memory is behind them.
    data = pa.py_buffer(bytes(2**30))
    ends = pa.py_buffer((0).to_bytes(4, "little") + (2**30).to_bytes(4, "little"))
    half = pa.record_batch({"a": pa.Array.from_buffers(pa.string(), 1, [None, ends, data])})
    with pytest.raises(pgdecode.BatchTooLarge, match="a column of this batch would exceed 2147483647 bytes or items"):
        one_batch([half, half], half.schema)


# -- depth -----------------------------------------------------------------------------------------------------------


def nested(n_dimensions: int) -> bytes:
    """An array of one element in so many dimensions."""
    head = [n_dimensions, 0, 23, *(1, 1) * n_dimensions, 4, 7]
    return b"".join(number.to_bytes(4, "big") for number in head)


def test_an_array_has_at_most_six_dimensions() -> None:
    assert MAX_DIMENSIONS == 6
    text = as_text(named("int4[]", -1) or pytest.fail("int4[] is a type"))
    for n in (MAX_DIMENSIONS - 1, MAX_DIMENSIONS):
        # int4 arrays of several dimensions as array_out prints them.
        assert decode_values(text, [nested(n)], binary=True).to_pylist() == ["{" * n + "7" + "}" * n]
        for form, binary in ((nested(n), True), (b"{" * n + b"7" + b"}" * n, False), (b"[2:2]" * n + b"={", False)):
            with pytest.raises(pgdecode.Unrepresentable):
                decode_values("int4[]", [form], binary=binary)
    n = MAX_DIMENSIONS + 1
    for form, binary in ((nested(n), True), (b"{" * n + b"7" + b"}" * n, False), (b"[2:2]" * n + b"={", False)):
        with pytest.raises(pgdecode.BadValue):
            decode_values("int4[]", [form], binary=binary)
    with pytest.raises(pgdecode.BadValue):
        decode_values(text, [nested(n)], binary=True)


def test_the_limits_on_output_are_the_documented_ones() -> None:
    assert (Limits().max_expansion, FREE_EXPANSION) == (16, 16 * 2**20)
