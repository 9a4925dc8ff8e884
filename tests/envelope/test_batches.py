"""The fast path over batches gives the same results as the walker, which decodes each payload separately."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgdecode
from pgdecode.protocol.messages import ENVELOPE
from support import captures
from support.each import each
from support.generators.streams import STREAMED_CAPTURES
from support.tiers import full

EVERY_FIELD = [column.name for column in ENVELOPE]
SOME_FIELDS = (
    EVERY_FIELD,
    ["kind", "relation_id", "old", "old_formats", "new", "new_formats"],
    ["new_formats", "timestamp"],
    ["old", "lsn", "xid"],
    ["kind"],
)
PLAIN = [name for name in captures.NAMES if "stream" not in name]
# I with an xid, oid 16385, N, 2 columns: 5 and n.
STREAMED_INSERT = bytes.fromhex("4900000304000040014e00027400000001356e")


def decoded(payloads: object, fields: list[str], **options: object) -> pa.RecordBatch:
    batch = pgdecode.decode_messages(payloads, fields=fields, mode="PERMISSIVE", **options)  # type: ignore[arg-type]
    batch.validate(full=True)
    return batch


def layouts(payloads: list[bytes | None]) -> list[pa.Array]:
    """The same payloads in all layouts that have a fast path, whole and as a slice of a longer array."""
    stuffing = [b"stuffing" * 16] * 3
    whole = pa.array([*stuffing, *payloads, *stuffing], pa.binary())
    return [
        pa.array(payloads, pa.binary()),
        pa.array(payloads, pa.large_binary()),
        whole.slice(3, len(payloads)),
        whole.cast(pa.large_binary()).slice(3, len(payloads)),
    ]


def damaged(payloads: list[bytes], chance: random.Random) -> list[bytes | None]:
    """Most payloads unchanged; some truncated, with trailing bytes, with a byte changed, or null."""
    found: list[bytes | None] = []
    for payload in payloads:
        kind = chance.randrange(24)
        at = chance.randrange(max(len(payload), 1))
        if kind == 0:
            found.append(None)
        elif kind == 1:
            found.append(payload[:at])
        elif kind == 2:
            found.append(payload + chance.randbytes(chance.randrange(1, 40)))
        elif kind == 3:
            found.append(payload[:at] + chance.randbytes(1) + payload[at + 1 :])
        else:
            found.append(payload)
    return found


@pytest.mark.parametrize("name", captures.NAMES)
def test_a_capture_decodes_to_the_same_in_every_layout(name: str) -> None:
    payloads = captures.capture(name).payloads
    for fields in SOME_FIELDS:
        one_by_one = decoded(payloads, fields)
        for column in layouts(list(payloads)):
            assert decoded(column, fields).equals(one_by_one)


@pytest.mark.parametrize("seed", [0, 1, 2, *map(full, range(3, 12))])
@pytest.mark.parametrize("names", [PLAIN, STREAMED_CAPTURES], ids=["plain", "streamed"])
def test_damaged_payloads_among_good_ones_give_the_same_rows_and_errors_in_every_layout(
    names: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    payloads = damaged(captures.capture(chance.choice(names)).payloads, chance)
    share = 0.1 if names is PLAIN else 0.9
    for fields in SOME_FIELDS:
        for in_stream in (None, names is not PLAIN, [chance.random() < share for _ in payloads]):
            one_by_one = decoded(payloads, fields, in_stream=in_stream)
            for column in layouts(payloads):
                assert decoded(column, fields, in_stream=in_stream).equals(one_by_one)


@pytest.mark.parametrize("tag", ["I", "UO", *map(full, ("U", "UK", "DK", "DO"))])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"N\0\1n" * 8, id="row"),
        full(b"\0N\6\x40" + b"n" * 1596, id="wide row"),
        full(None, id="itself"),
    ],
)
def test_a_truncated_row_is_not_read_past_its_end(tag: str, streamed: bool, behind: bytes | None) -> None:
    cells = bytes.fromhex("00027400000001356e")  # 2 columns: 5 and n
    tuples = [tag[1:].encode() + cells] if tag[1:] else []
    if tag[0] != "D":
        tuples.append(b"N" + cells)
    xid = [bytes.fromhex("00000304")] if streamed else []
    message = b"".join([tag[0].encode(), *xid, bytes.fromhex("00004001"), *tuples])
    for n_bytes in range(len(message) + 1):
        payloads: list[bytes | None] = [message, message[:n_bytes], behind or message] * 23
        for fields in SOME_FIELDS:
            one_by_one = decoded(payloads, fields, in_stream=streamed)
            for column in layouts(payloads):
                assert decoded(column, fields, in_stream=streamed).equals(one_by_one)


@pytest.mark.parametrize("basis", ["explicit", "order"])
def test_streamed_rows_have_an_xid_and_otherwise_equal_plain_rows(basis: str) -> None:
    plain = STREAMED_INSERT[:1] + STREAMED_INSERT[5:]
    streamed = [i % 3 != 0 for i in range(300)]
    payloads = [STREAMED_INSERT if item else plain for item in streamed]
    fields = ["kind", "xid", "relation_id", "new", "new_formats", "xid_basis"]
    in_stream: list[bool] | None = streamed
    if basis == "order":
        start, stop = bytes.fromhex("530000030401"), b"E"
        payloads = [start, *[STREAMED_INSERT] * 300, stop, *[plain] * 300]
        streamed, in_stream = [True] * 300 + [False] * 300, None
    column = pa.array(payloads, pa.binary())
    batch = pgdecode.decode_messages(column, fields=fields, in_stream=in_stream)
    rows = batch.filter(pc.equal(batch["kind"], "insert")).to_pylist()
    assert rows == [
        {
            "kind": "insert",
            "xid": 0x304 if item else None,
            "relation_id": 16385,
            "new": [b"5", None],
            "new_formats": "tn",
            "xid_basis": basis,
        }
        for item in streamed
    ]


def test_a_streamed_row_with_xid_0_is_bad_at_every_place() -> None:
    bad = STREAMED_INSERT[:1] + bytes(4) + STREAMED_INSERT[5:]
    for n in (0, 1, 63, 64, 99):
        payloads = [STREAMED_INSERT] * n + [bad] + [STREAMED_INSERT] * 5
        with pytest.raises(pgdecode.DecodeError, match="xid") as raised:
            pgdecode.decode_messages(pa.array(payloads, pa.binary()), in_stream=True)
        assert (raised.value.row, raised.value.offset) == (n, 1)


@pytest.mark.parametrize("limit", ["max_columns", "max_value_bytes", "max_payload_bytes"])
@pytest.mark.parametrize("name", ["18.shop.v1", full("18.streams.v4")])
def test_limits_are_the_same_in_every_layout(name: str, limit: str) -> None:
    payloads = list(captures.capture(name).payloads)
    for most in (1, 3, 7, 8, 11, 12, 20, 60):
        limits = pgdecode.Limits(**{limit: most})
        one_by_one = decoded(payloads, EVERY_FIELD, limits=limits)
        for column in layouts(list(payloads)):
            assert decoded(column, EVERY_FIELD, limits=limits).equals(one_by_one)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 47, 48, 49, 255, 256, 272, 273, 5000])
@each("n_rows", [1, 63, 64, 65, 200])
def test_a_value_of_any_length_is_copied_completely(length: int, n_rows: int) -> None:
    value = bytes(1 + i % 255 for i in range(length))
    cell = b"t" + length.to_bytes(4, "big") + value
    insert = bytes.fromhex("49000040014e00036e") + cell + cell  # I, oid 16385, N, 3 columns, n
    column = pa.array([insert] * n_rows, pa.binary())
    batch = pgdecode.decode_messages(column, fields=["new", "new_formats"])
    assert batch["new"].to_pylist() == [[None, value, value]] * n_rows
    assert batch["new_formats"].to_pylist() == ["ntt"] * n_rows


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("row", [1, 63, 64, 70])
@pytest.mark.parametrize("offset", [-1, -1000, 2**31 - 1, 3])
def test_an_offset_outside_the_data_is_refused_at_every_place(width: int, row: int, offset: int) -> None:
    insert = bytes.fromhex("49000040014e0001740000000135")
    kind, number = (pa.binary(), pa.int32()) if width == 32 else (pa.large_binary(), pa.int64())
    ends = [len(insert) * i for i in range(101)]
    ends[row] = offset if offset != 3 else ends[row] + 2 * len(insert) + 1
    if width == 64 and offset == -1000:
        ends[row] = -(2**63)
    data = pa.py_buffer(insert * 100)
    column = pa.Array.from_buffers(kind, 100, [None, pa.array(ends, number).buffers()[1], data])
    with pytest.raises((ValueError, pgdecode.DecodeError)):
        pgdecode.decode_messages(column)


@pytest.mark.parametrize("field", ["old", "new", "relation_id", "xid", "timestamp"])
def test_a_column_that_no_row_fills_uses_no_memory(field: str) -> None:
    column = pa.array([bytes.fromhex("45")] * 10_000, pa.binary())  # E
    before = pa.total_allocated_bytes()
    batch = pgdecode.decode_messages(column, fields=[field], in_stream=False)
    assert batch[field].null_count == 10_000
    assert pa.total_allocated_bytes() - before < 1000


def test_values_of_null_rows_are_zeros() -> None:
    relation_oid = 16385
    insert = bytes.fromhex("49000040014e0001740000000135")
    payloads = [insert if i % 3 == 0 else None for i in range(200)]
    ids = pgdecode.decode_messages(pa.array(payloads, pa.binary()), fields=["relation_id"])["relation_id"]
    under = pa.Array.from_buffers(pa.int64(), 200, [None, ids.buffers()[1]])
    assert under.to_pylist() == [relation_oid if i % 3 == 0 else 0 for i in range(200)]
