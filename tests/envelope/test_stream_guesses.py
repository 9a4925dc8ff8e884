"""Whether a message carries the xid of a streamed transaction, from the caller's flag and from its structure."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pgdecode
from pgdecode import Delete, Insert, LogicalMessage, Relation, Truncate, Type, Update
from pgdecode.protocol.messages import MESSAGES, XID_BASES
from support import captures
from support.compare import NULL_ROW, assert_same_rows, failfast_verdict, rows_of
from support.generators.encoder import encode, plain_messages, streamed_messages
from support.generators.samples import SAMPLES
from support.generators.streams import (
    BEGIN,
    DELIMITERS,
    EITHER,
    EITHER_PLAIN,
    EITHER_STREAMED,
    PLAIN_INSERT,
    PREFIXED,
    START,
    STOP,
    STREAMED_CAPTURES,
    STREAMED_INSERT,
    interpretations,
    is_desync,
    permissive,
    with_basis,
)
from support.oracles.reference import decode_payload, is_well_formed

# -- as given --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMED_CAPTURES)
def test_a_wrong_given_state_is_reported(name: str) -> None:
    capture = captures.capture(name)
    wrong = [not state for state in capture.states]
    rows = rows_of(pgdecode.decode_messages(capture.column, in_stream=wrong, mode="PERMISSIVE"))
    for payload, row, right, state in zip(capture.payloads, rows, capture.rows, capture.states, strict=True):
        if payload[:1] not in PREFIXED:
            assert row == right
        elif payload[:1] in b"ID" or not is_well_formed(payload, not state):
            assert is_desync(row)


@given(message=st.one_of(plain_messages(Insert), plain_messages(Delete)))
def test_a_plain_insert_or_delete_called_streamed_is_always_a_desync(message: Any) -> None:
    if message.relation_id:
        assert failfast_verdict(encode(message), True) == ("STATE_DESYNC", 1)


@given(message=st.one_of(streamed_messages(Insert), streamed_messages(Delete)))
# Read as plain, its OID begins with the letter of an old tuple, followed by a count above the limit.
@example(message=Delete(xid=1, relation_id=0x4F064100, old_type="K", old=(), old_formats=""))
def test_a_streamed_insert_or_delete_called_plain_is_a_desync_or_above_a_limit(message: Any) -> None:
    verdict = failfast_verdict(encode(message), False)
    if verdict != ("LIMIT_COLUMNS", 6):
        assert verdict == ("STATE_DESYNC", 1)
    else:
        # A count above the limit, at the offset of a plain message, is not a contradiction.
        assert int.from_bytes(encode(message)[6:8], "big") > 1600


def test_an_insert_with_two_tuples_of_one_null_is_a_streamed_insert() -> None:
    payload = bytes.fromhex("49 00004001 4e 0001 6e 4e 0001 6e")
    assert failfast_verdict(payload, False) == ("STATE_DESYNC", 1)
    assert failfast_verdict(payload, True) == {
        **NULL_ROW,
        **{"kind": "insert", "xid": 0x4001, "relation_id": 0x4E00016E, "new": [None], "new_formats": "n"},
    }


def test_decode_reports_a_wrong_state_too() -> None:
    for payload, state in ((PLAIN_INSERT, True), (STREAMED_INSERT, False)):
        with pytest.raises(pgdecode.StreamDesync) as caught:
            pgdecode.decode(payload, in_stream=state)
        assert (caught.value.row, caught.value.offset, caught.value.tag) == (None, 1, "I")


def test_the_given_state_decides_if_both_readings_are_well_formed() -> None:
    assert permissive([EITHER] * 2, in_stream=[False, True]) == [
        with_basis(EITHER_PLAIN, "explicit"),
        with_basis(EITHER_STREAMED, "explicit"),
    ]


def test_delimiters_do_not_change_the_given_state() -> None:
    rows = permissive([START, EITHER, STOP, EITHER], in_stream=False)
    assert [row["relation_id"] for row in rows] == [None, 0x4000, None, 0x4000]


# -- auto ------------------------------------------------------------------------------------------------------------


@given(message=st.one_of(*(make(cls) for cls in (Insert, Delete) for make in (plain_messages, streamed_messages))))
def test_auto_is_exact_for_inserts_and_deletes(message: Any) -> None:
    payload = encode(message)
    expected = decode_payload(payload, message.xid is not None)
    assert permissive([payload], in_stream="auto") == [with_basis(expected, "structure")]


@given(message=st.one_of(plain_messages(Update), streamed_messages(Update)))
def test_auto_is_exact_for_updates_except_one_form(message: Any) -> None:
    payload = encode(message)
    both = is_well_formed(payload, False) and is_well_formed(payload, True)
    (row,) = permissive([payload], in_stream="auto")
    if not both:
        assert row == with_basis(decode_payload(payload, message.xid is not None), "structure")
    else:
        assert row["xid_basis"] == "guess"


@given(
    messages=st.lists(
        st.one_of(
            *(plain_messages(cls) for cls in (Relation, Type, Truncate, LogicalMessage)),
            *(streamed_messages(cls) for cls in (Relation, Type, Truncate, LogicalMessage)),
        ),
        max_size=10,
    )
)
def test_auto_guesses_only_where_both_readings_are_well_formed(messages: list[Any]) -> None:
    payloads = [encode(message) for message in messages]
    for payload, message, row in zip(payloads, messages, permissive(payloads, in_stream="auto"), strict=True):
        assert {**row, "xid_basis": None} in interpretations(payload)
        assert row["xid_basis"] == ("structure" if len(interpretations(payload)) == 1 else "guess")
        if row["xid_basis"] == "structure":
            assert row == with_basis(decode_payload(payload, message.xid is not None), "structure")


def test_auto_does_not_depend_on_the_order_of_payloads(rng: random.Random) -> None:
    capture = captures.capture("16.txns.v2")
    expected = dict(zip(capture.payloads, capture.rows, strict=True))
    payloads = list(capture.payloads)
    for _ in range(20):
        rng.shuffle(payloads)
        assert_same_rows(
            pgdecode.decode_messages(payloads, in_stream="auto"), [expected[payload] for payload in payloads]
        )


# Payloads that are well-formed both ways, and that servers have sent.
ONE_NULL_COLUMN = bytes.fromhex("55 00005019 4f 0001 6e 4e 0001 74 00000001 31")  # U, oid, O, 1 null, N, '1'
TRUNCATE_65 = encode(Truncate(options=0, relation_ids=tuple(range(0x4000, 0x4000 + 65 * 8, 8))))
TRUNCATE_822 = encode(
    Truncate(xid=823, options=0, relation_ids=tuple(0x4000 + 3 * i for i in range(822))),
)
DUMP_OID_STREAMED = encode(Type(xid=0x304, type_id=0x64756D70, namespace="en", name="hi"))
SPELLED_LSN = encode(LogicalMessage(xid=0x304, flags=1, lsn=0x31393838, prefix="test", content=b"c"))


def insert_into(relation_id: int, xid: int | None) -> bytes:
    """Evidence: a payload whose relation is certain."""
    return encode(Insert(xid=xid, relation_id=relation_id, new=(), new_formats=""))


@pytest.mark.parametrize(
    ("payload", "in_stream"),
    [
        pytest.param(ONE_NULL_COLUMN, False, id="update of one null column"),
        pytest.param(TRUNCATE_65, False, id="truncate of 65 tables from OID 16384"),
        pytest.param(EITHER, False, id="relation public.t0"),
    ],
)
def test_an_ambiguous_payload_is_guessed_correctly_and_marked_as_a_guess(payload: bytes, in_stream: bool) -> None:
    assert is_well_formed(payload, not in_stream)
    assert permissive([payload], in_stream="auto") == [with_basis(decode_payload(payload, in_stream), "guess")]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(TRUNCATE_822, id="truncate of 822 tables in transaction 823"),
        pytest.param(DUMP_OID_STREAMED, id="type of an OID that spells a name"),
        pytest.param(SPELLED_LSN, id="message at an LSN that spells a prefix"),
    ],
)
def test_an_ambiguous_payload_without_evidence_is_marked_as_a_guess(payload: bytes) -> None:
    assert is_well_formed(payload, False)
    assert is_well_formed(payload, True)
    (row,) = permissive([payload], in_stream="auto")
    assert row["xid_basis"] == "guess"
    assert {**row, "xid_basis": None} in interpretations(payload)


@pytest.mark.parametrize(
    "payload",
    [ONE_NULL_COLUMN, TRUNCATE_65, TRUNCATE_822, EITHER, DUMP_OID_STREAMED, SPELLED_LSN],
    ids=["update", "truncate of 65", "truncate of 822", "relation", "type", "message"],
)
def test_an_ambiguous_payload_is_exact_by_order(payload: bytes) -> None:
    rows = permissive([START, payload, STOP, payload])
    assert rows[1] == with_basis(decode_payload(payload, True), "order")
    assert rows[3] == with_basis(decode_payload(payload, False), "order")


@pytest.mark.parametrize(
    ("payload", "relation_id", "in_stream"),
    [
        pytest.param(EITHER, 0x4000, False, id="relation, plain"),
        pytest.param(EITHER, 0x7075626C, True, id="relation, streamed"),
        pytest.param(ONE_NULL_COLUMN, 0x5019, False, id="update, plain"),
        pytest.param(ONE_NULL_COLUMN, 0x4F00016E, True, id="update, streamed"),
        pytest.param(TRUNCATE_65, 0x4000, False, id="truncate, plain"),
        pytest.param(TRUNCATE_822, 0x4000, True, id="truncate, streamed"),
    ],
)
@pytest.mark.parametrize("xid", [None, 0x305], ids=["known from a plain row", "known from a streamed row"])
def test_a_relation_named_elsewhere_in_the_batch_is_evidence(
    payload: bytes, relation_id: int, in_stream: bool, xid: int | None
) -> None:
    expected = with_basis(decode_payload(payload, in_stream), "evidence")
    known = insert_into(relation_id, xid)
    assert permissive([payload, known], in_stream="auto")[0] == expected
    assert permissive([known, payload], in_stream="auto")[1] == expected


def test_evidence_for_both_readings_does_not_count() -> None:
    payloads = [insert_into(0x4000, None), insert_into(0x7075626C, None), EITHER]
    assert permissive(payloads, in_stream="auto")[2] == with_basis(EITHER_PLAIN, "guess")


def test_the_values_of_xid_basis_are_the_documented_ones() -> None:
    assert XID_BASES == ("explicit", "order", "structure", "evidence", "guess")


@pytest.mark.parametrize("in_stream", [None, "auto", False], ids=["in slot order", "auto", "given"])
def test_only_messages_that_may_carry_an_xid_have_a_basis(in_stream: Any) -> None:
    plain = [sample for sample in SAMPLES.values() if not sample.in_stream and sample.payload[:1] not in b"SE"]
    rows = permissive([BEGIN, *(sample.payload for sample in plain), None, b"?"], in_stream=in_stream)
    expected = [False, *(sample.payload[:1] in PREFIXED for sample in plain), False, False]
    assert [row["xid_basis"] is not None for row in rows] == expected


def test_every_kind_is_covered_by_the_delimiters_and_the_prefixed() -> None:
    tags = {payload[:1] for payload in DELIMITERS.values()} | {bytes([tag]) for tag in PREFIXED} | {b"O"}
    assert tags == {message.tag.encode() for message in MESSAGES}


RELATION_T0 = bytes.fromhex("52000040007075626c696300743000640000")  # R, oid, 'public', 't0', d, 0 columns


@pytest.mark.parametrize("in_stream", ["auto", None])
def test_a_malformed_row_is_not_evidence(in_stream: str | None) -> None:
    cut = b"IpublN"  # an insert with the OID that the relation has if it is read as streamed
    fields = ["xid", "relation_id", "namespace"]
    alone = pgdecode.decode_messages([RELATION_T0], in_stream=in_stream, fields=fields).to_pylist()
    beside = pgdecode.decode_messages([RELATION_T0, cut], in_stream=in_stream, fields=fields, mode="PERMISSIVE")
    assert beside.to_pylist()[:1] == alone == [{"xid": None, "relation_id": 16384, "namespace": "public"}]


def test_a_row_above_a_limit_is_not_a_contradiction() -> None:
    begin = bytes.fromhex("420000000000000008000000000000000000000300")  # B, LSN, time, xid
    # I, oid 0x300, N, 65535 columns; read as streamed it is an empty tuple.
    too_wide = bytes.fromhex("49000003004effff014e0000")
    permissive = pgdecode.decode_messages([begin, RELATION_T0, too_wide], mode="PERMISSIVE")
    assert [None if text is None else text.split()[0] for text in permissive["error"].to_pylist()] == [
        None,
        None,
        "LIMIT_COLUMNS",
    ]
    with pytest.raises(pgdecode.TooManyColumns, match="row 2, offset 6"):
        pgdecode.decode_messages([begin, RELATION_T0, too_wide])


def test_a_column_of_many_chunks_is_resolved() -> None:
    ambiguous = bytes.fromhex("55000050194f00016e4e0001740000000131")
    chunks = pa.chunked_array([pa.array([ambiguous])] * 3000)
    assert pgdecode.decode_messages(chunks, fields=["xid"])["xid"].null_count == 3000
