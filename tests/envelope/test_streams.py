"""Whether a message carries the xid of a streamed transaction, from the order: in one batch and over several."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgdecode
from pgdecode._native.arrow.payload_array import Source
from pgdecode.envelope.scanning import scan_payloads
from pgdecode.protocol.limits import LIMITS
from support import captures
from support.compare import NULL_ROW, assert_same_rows, rows_of
from support.generators.samples import SAMPLES
from support.generators.streams import (
    AFTER_WHICH_PLAIN,
    BEFORE_WHICH_PLAIN,
    BEGIN,
    EITHER,
    EITHER_PLAIN,
    EITHER_STREAMED,
    PLAIN_INSERT,
    START,
    STOP,
    STREAMED_CAPTURES,
    STREAMED_INSERT,
    assert_flagged_or_right,
    interpretations,
    is_desync,
    permissive,
    with_basis,
)
from support.oracles.reference import decode_payload
from support.tiers import full

# -- by order --------------------------------------------------------------------------------------------------------


def test_the_ambiguous_payload_is_well_formed_in_both_readings() -> None:
    assert EITHER_PLAIN["relation_id"] == 0x4000
    assert (EITHER_STREAMED["xid"], EITHER_STREAMED["relation_id"]) == (0x4000, 0x7075626C)
    assert (EITHER_STREAMED["namespace"], EITHER_STREAMED["name"]) == ("ic", "t0")


@pytest.mark.parametrize("before", [pytest.param(payload, id=name) for name, payload in AFTER_WHICH_PLAIN.items()])
def test_after_any_delimiter_but_stream_start_messages_are_plain(before: bytes) -> None:
    assert permissive([before, EITHER, EITHER])[1:] == [with_basis(EITHER_PLAIN, "order")] * 2


def test_after_stream_start_messages_are_streamed() -> None:
    rows = permissive([START, EITHER, STREAMED_INSERT, STOP, EITHER])
    assert rows[1] == with_basis(EITHER_STREAMED, "order")
    assert rows[2]["xid"] == 0x304
    assert rows[4] == with_basis(EITHER_PLAIN, "order")


@pytest.mark.parametrize("after", [pytest.param(payload, id=name) for name, payload in BEFORE_WHICH_PLAIN.items()])
def test_without_an_earlier_delimiter_the_next_one_means_plain(after: bytes) -> None:
    assert permissive([EITHER, EITHER, after])[:2] == [with_basis(EITHER_PLAIN, "order")] * 2


def test_without_an_earlier_delimiter_stream_stop_means_streamed() -> None:
    assert permissive([EITHER, EITHER, STOP])[:2] == [with_basis(EITHER_STREAMED, "order")] * 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(PLAIN_INSERT, EITHER_PLAIN, id="plain insert"),
        pytest.param(STREAMED_INSERT, EITHER_STREAMED, id="streamed insert"),
        pytest.param(SAMPLES["delete by key"].payload, EITHER_PLAIN, id="plain delete"),
        pytest.param(SAMPLES["delete by old row in a stream"].payload, EITHER_STREAMED, id="streamed delete"),
        pytest.param(SAMPLES["update with a key"].payload, EITHER_PLAIN, id="plain update"),
        pytest.param(SAMPLES["update with the old row in a stream"].payload, EITHER_STREAMED, id="streamed update"),
    ],
)
def test_in_a_window_without_delimiters_a_row_change_decides_for_all(row: bytes, expected: dict[str, Any]) -> None:
    for payloads in ([EITHER, row], [row, EITHER], [EITHER, None, row, EITHER]):
        rows = permissive(payloads)
        assert [found for found, payload in zip(rows, payloads, strict=True) if payload is EITHER] == [
            with_basis(expected, "structure")
        ] * payloads.count(EITHER)


def test_a_window_without_evidence_is_marked_as_a_guess() -> None:
    assert permissive([EITHER]) == [with_basis(EITHER_PLAIN, "guess")]


def test_an_origin_in_a_stream_has_no_xid() -> None:
    origin = SAMPLES["origin in a stream has LSN 0"].payload
    rows = permissive([START, origin, STREAMED_INSERT, STOP])
    assert rows[1] == with_basis(decode_payload(origin, True), None)
    assert rows[1]["xid"] is None


@pytest.mark.parametrize(
    "payloads",
    [
        pytest.param([START, EITHER, BEGIN], id="stream start, then no stream stop"),
        pytest.param([START, EITHER, START], id="stream start in a stream"),
        pytest.param([BEGIN, EITHER, STOP], id="stream stop without its start"),
        pytest.param([STOP, EITHER, STOP], id="two stream stops"),
        pytest.param([BEGIN, STREAMED_INSERT, EITHER, BEGIN], id="streamed insert after begin"),
        pytest.param([START, PLAIN_INSERT, EITHER, STOP], id="plain insert after stream start"),
        pytest.param([EITHER, PLAIN_INSERT, STREAMED_INSERT], id="plain and streamed inserts and no delimiter"),
    ],
)
def test_if_the_order_contradicts_itself_ambiguous_payloads_are_errors(payloads: list[bytes]) -> None:
    for payload, row in zip(payloads, permissive(payloads), strict=True):
        if payload is EITHER:
            assert is_desync(row)
        elif row["error"] is None:
            assert {**row, "xid_basis": None} in interpretations(payload)
    with pytest.raises(pgdecode.StreamDesync):
        pgdecode.decode_messages(payloads)


def test_a_row_change_that_contradicts_the_order_is_an_error_and_consistent_neighbours_are_not() -> None:
    rows = permissive([START, STREAMED_INSERT, PLAIN_INSERT, STREAMED_INSERT, STOP])
    assert [row["error"] is None for row in rows] == [True, True, False, True, True]
    assert is_desync(rows[2])
    with pytest.raises(pgdecode.StreamDesync) as caught:
        pgdecode.decode_messages([START, STREAMED_INSERT, PLAIN_INSERT, STREAMED_INSERT, STOP])
    assert caught.value.row == 2


def test_a_malformed_delimiter_does_not_affect_its_neighbours() -> None:
    for broken in (START[:-1], START + b"\0", STOP + STOP, BEGIN[:-1], b"S"):
        rows = permissive([START, EITHER, broken, EITHER, STOP, broken, EITHER, BEGIN])
        assert [rows[1], rows[3]] == [with_basis(EITHER_STREAMED, "order")] * 2
        assert rows[6] == with_basis(EITHER_PLAIN, "order")


# -- windows of captures ---------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", ["14.types.v2", "16.types.v2bin", "18.txns.v2bin"])
def test_every_window_of_a_capture_decodes_as_in_the_whole(name: str) -> None:
    capture = captures.capture(name)
    whole = pgdecode.decode_messages(capture.column)
    assert_same_rows(whole, capture.rows)
    for start in range(len(capture.payloads)):
        for end in range(start + 1, len(capture.payloads) + 1):
            window = pgdecode.decode_messages(capture.column[start:end])
            assert window.equals(whole[start:end]), (start, end)


@pytest.mark.parametrize(("length", "step"), [(1, 1), (5, 3), (100, 29), (1000, 211)])
@pytest.mark.parametrize("name", ["14.streams.v2", full("18.streams.v4"), "16.twophase.v3"])
def test_windows_of_a_long_capture_decode_as_in_the_whole(name: str, length: int, step: int) -> None:
    capture = captures.capture(name)
    whole = pgdecode.decode_messages(capture.column)
    for start in range(0, len(capture.payloads), step):
        window = pgdecode.decode_messages(capture.column[start : start + length])
        assert window.equals(whole[start : start + length]), start


@pytest.mark.parametrize("name", STREAMED_CAPTURES)
def test_a_capture_without_a_start_or_stop_has_errors_or_is_correct(name: str) -> None:
    capture = captures.capture(name)
    whole = pgdecode.decode_messages(capture.column)
    flagged = []
    for at, payload in enumerate(capture.payloads):
        if payload[:1] in (b"S", b"E"):
            kept = pa.array([i for i in range(len(capture.payloads)) if i != at], pa.int64())
            decoded = pgdecode.decode_messages(capture.column.take(kept), mode="PERMISSIVE")
            flagged.append(assert_flagged_or_right(decoded, whole.take(kept)))
    assert max(flagged) > 0 or not any(capture.states)


@pytest.mark.parametrize("name", ["14.streams.v2bin", "16.streams.v4", "16.twophase.v4bin", "18.types.v2"])
def test_repeated_or_moved_rows_never_change_an_insert_or_delete(name: str, rng: random.Random) -> None:
    capture = captures.capture(name)
    whole = pgdecode.decode_messages(capture.column)
    total = len(capture.payloads)
    for _ in range(60):
        order = list(range(total))
        start, length = rng.randrange(total), rng.randrange(1, 40)
        block = order[start : start + length]
        if rng.random() < 0.5:
            del order[start : start + length]
        to = rng.randrange(len(order) + 1)
        order[to:to] = block
        moved = pa.array(order, pa.int64())
        decoded = pgdecode.decode_messages(capture.column.take(moved), mode="PERMISSIVE")
        # A relation moved into another state may be well-formed there; an insert or delete cannot be.
        truth = whole.take(moved)
        rows = pc.is_in(truth["kind"], pa.array(["insert", "delete"]))
        assert_flagged_or_right(decoded.filter(rows), truth.filter(rows))


# -- batch after batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", ["14.txns.v2", "16.streams.v4bin", "16.twophase.v3", "18.types.v2"])
def test_a_decoder_over_batches_equals_one_call(name: str, size: int) -> None:
    capture = captures.capture(name)
    payloads = capture.column[:3000]
    names = [*NULL_ROW, "xid_basis"]
    decoder = pgdecode.MessageDecoder(fields=names)
    batches = [decoder.decode(payloads[start : start + size]) for start in range(0, len(payloads), size)]
    assert pa.Table.from_batches(batches).combine_chunks().to_batches() == [
        pgdecode.decode_messages(payloads, fields=names)
    ]
    assert_same_rows(pa.Table.from_batches(batches).combine_chunks().to_batches()[0], capture.rows[:3000])


def test_a_decoder_carries_the_state_over_empty_null_and_bad_batches() -> None:
    decoder = pgdecode.MessageDecoder(mode="PERMISSIVE")
    decoder.decode([START])
    for nothing in ([], [None], [b""], [b"?"], [START[:-1]], [BEGIN[:-1]], pa.chunked_array([], pa.binary())):
        decoder.decode(nothing)
        assert rows_of(decoder.decode([EITHER])) == [EITHER_STREAMED]
    decoder.decode([STOP])
    assert rows_of(decoder.decode([EITHER])) == [EITHER_PLAIN]


def test_a_decoder_that_begins_in_a_stream_detects_it_at_the_first_row_change() -> None:
    decoder = pgdecode.MessageDecoder()
    decoder.decode([STREAMED_INSERT])
    assert rows_of(decoder.decode([EITHER])) == [EITHER_STREAMED]


def test_decoders_do_not_share_state() -> None:
    first, second = pgdecode.MessageDecoder(), pgdecode.MessageDecoder()
    first.decode([START])
    second.decode([BEGIN])
    assert rows_of(first.decode([EITHER])) == [EITHER_STREAMED]
    assert rows_of(second.decode([EITHER])) == [EITHER_PLAIN]
    assert rows_of(pgdecode.decode_messages([BEGIN, EITHER]))[1] == EITHER_PLAIN


@pytest.mark.parametrize("in_stream", ["auto", True, False])
def test_a_decoder_with_a_given_state_carries_none(in_stream: Any) -> None:
    decoder = pgdecode.MessageDecoder(in_stream=in_stream)
    once = pgdecode.decode_messages([EITHER], in_stream=in_stream)
    for before in (START, STOP, BEGIN):
        decoder.decode([before])
        assert decoder.decode([EITHER]).equals(once)


def test_a_failed_batch_leaves_a_decoder_unchanged() -> None:
    decoder = pgdecode.MessageDecoder()
    decoder.decode([START])
    with pytest.raises(pgdecode.UnknownTag):
        decoder.decode([STOP, b"?"])
    assert rows_of(decoder.decode([EITHER])) == [EITHER_STREAMED]


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_decoder_over_a_damaged_capture_reports_errors_or_is_correct(size: int, rng: random.Random) -> None:
    capture = captures.capture("14.streams.v2")
    whole = pgdecode.decode_messages(capture.column)
    delimiters = [i for i, payload in enumerate(capture.payloads) if payload[:1] in (b"S", b"E")]
    for at in rng.sample(delimiters, 4):
        kept = pa.array([i for i in range(len(capture.payloads)) if i != at], pa.int64())
        payloads = capture.column.take(kept)
        decoder = pgdecode.MessageDecoder(mode="PERMISSIVE")
        batches = [decoder.decode(payloads[start : start + size]) for start in range(0, len(payloads), size)]
        decoded = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        assert_flagged_or_right(decoded, whole.take(kept))


def test_two_consecutive_captures_decode_like_each_alone() -> None:
    for names in itertools.permutations(("14.types.v2", "16.txns.v2bin", "10.txns.v1"), 2):
        first, second = (captures.capture(name) for name in names)
        assert_same_rows(pgdecode.decode_messages([*first.payloads, *second.payloads]), [*first.rows, *second.rows])


# -- by the state alone ----------------------------------------------------------------------------------------------


def scanned(payloads: list[bytes], state: bool | None) -> tuple[list[int], list[str | None], bool | None]:
    """Kind, error and stream flag of each payload without look-ahead, and the state after the last payload."""
    scan, found, state = scan_payloads(
        Source([pa.array(payloads, pa.binary())]),
        ("kind", "error"),
        LIMITS,
        strict_flags=True,
        permissive=True,
        kind_codes=True,
        empty_is_null=True,
        streamed=state,
        lookahead=False,
    )
    assert state == scan.stream_state
    kinds = bytes(memoryview(found["kind"][1]))[: len(payloads)]
    flags = scan.stream_flags or bytes(len(payloads))
    parts = found.get("error")
    errors = [None] * len(payloads)
    if parts is not None:
        errors = pa.Array.from_buffers(pa.string(), len(payloads), list(parts)).to_pylist()
    # The stream flag of a malformed payload is not used.
    rows = [
        2 * kind + (flag & 1) if error is None else -1 for kind, flag, error in zip(kinds, flags, errors, strict=True)
    ]
    return rows, errors, scan.stream_state


def test_without_look_ahead_only_the_contradicting_row_is_a_fault() -> None:
    rows, errors, state = scanned([BEGIN, EITHER, STREAMED_INSERT, EITHER, START, EITHER, BEGIN], None)
    assert [error is None for error in errors] == [True, True, False, True, True, True, True]
    assert rows[1] == rows[3] == rows[5] - 1
    assert state is False


@pytest.mark.parametrize("name", ["14.streams.v2", "16.twophase.v4bin", "18.types.v2"])
def test_without_look_ahead_results_do_not_depend_on_cuts(name: str, rng: random.Random) -> None:
    payloads = captures.capture(name).payloads
    # Messages that are well-formed both ways, and unannounced changes of the state.
    either = [EITHER, EITHER, START, STOP, BEGIN]
    for _ in range(150):
        start = rng.randrange(len(payloads))
        damaged = list(payloads[start : start + rng.randrange(2, 60)])
        for _ in range(rng.randrange(1, 6)):
            one, other = rng.randrange(len(damaged)), rng.randrange(len(damaged))
            damaged[one], damaged[other] = damaged[other], damaged[one]
            damaged.insert(other, rng.choice(either))
        state = rng.random() < 0.5
        whole = scanned(damaged, state)
        rows: list[int] = []
        errors: list[str | None] = []
        at = 0
        while at < len(damaged):
            size = rng.randrange(1, 6)
            piece_rows, piece_errors, after = scanned(damaged[at : at + size], state)
            assert after is not None
            rows, errors, state, at = rows + piece_rows, errors + piece_errors, after, at + size
        assert (rows, errors, state) == whole


def test_a_name_in_another_encoding_is_not_a_contradiction_if_the_order_is_certain() -> None:
    begin = bytes.fromhex("420000000000000008000000000000000000000007")  # B, LSN, time, xid
    latin1 = bytes.fromhex("59000040016e61ef7665007400")  # Y, oid, namespace 'na\xefve', name 't'
    rows = pgdecode.decode_messages([begin, latin1], mode="PERMISSIVE", fields=["kind", "error"]).to_pylist()
    assert rows[1]["error"].startswith("ENCODING at offset 7: type namespace is not UTF-8")
