"""Payloads of zero bytes, which servers send for a replication origin without a name."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Column, Insert, MessageDecoder, Relation
from support import captures
from support.compare import NULL_ROW, rows_of
from support.generators.encoder import encode
from support.generators.samples import SAMPLES
from support.generators.slot import Slot
from support.generators.streams import BEGIN, EITHER, PLAIN_INSERT, START, STOP, STREAMED_INSERT

RELATION = Relation(0x4001, "s", "t", "d", (Column(1, "a", 25, -1),))
LAYOUTS: list[Any] = [
    pytest.param(lambda payloads: payloads, id="list"),
    pytest.param(lambda payloads: pa.array(payloads, pa.binary()), id="offsets32"),
    pytest.param(lambda payloads: pa.array(payloads, pa.large_binary()), id="offsets64"),
    pytest.param(lambda payloads: pa.array(payloads, pa.binary_view()), id="views"),
    pytest.param(lambda payloads: pa.array([b"?", *payloads], pa.binary())[1:], id="sliced"),
]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("column", LAYOUTS)
def test_an_empty_payload_is_a_null_row_and_counted(column: Callable[[Any], Any], mode: str) -> None:
    payloads = [b"", BEGIN, b"", None, PLAIN_INSERT, b"", b""]
    decoder = MessageDecoder(mode=mode)
    rows = rows_of(decoder.decode(column(payloads)))
    assert [row == NULL_ROW for row in rows] == [True, False, True, True, False, True, True]
    assert decoder.empty_payloads == 4
    decoder.decode([b"", BEGIN])
    assert decoder.empty_payloads == 5


def test_a_batch_of_only_empty_payloads_has_rows() -> None:
    for payloads in ([b""], [b""] * 200, pa.array([b""] * 200)):
        assert rows_of(pgdecode.decode_messages(payloads)) == [NULL_ROW] * len(payloads)


@pytest.mark.parametrize("column", LAYOUTS)
def test_an_empty_payload_is_a_fault_on_request(column: Callable[[Any], Any]) -> None:
    payloads = column([BEGIN, b""])
    with pytest.raises(pgdecode.EmptyPayload) as caught:
        pgdecode.decode_messages(payloads, empty="error")
    assert (caught.value.row, caught.value.offset, caught.value.tag) == (1, 0, None)
    decoder = MessageDecoder(mode="PERMISSIVE", empty="error")
    assert decoder.decode(payloads)["error"].to_pylist() == [
        None,
        "EMPTY at offset 0: empty payload, expected a message tag",
    ]
    assert decoder.empty_payloads == 0


def test_other_values_of_empty_are_refused() -> None:
    for decode in (
        lambda: pgdecode.decode_messages([], empty="skip"),  # type: ignore[arg-type]
        lambda: pgdecode.decode_rows([], RELATION, empty="skip"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match='empty is "null" or "error", not \'skip\''):
            decode()


def test_decode_always_refuses_an_empty_payload() -> None:
    with pytest.raises(pgdecode.EmptyPayload):
        pgdecode.decode(b"")


@pytest.mark.parametrize("in_stream", [None, "auto", True, False])
@pytest.mark.parametrize("name", ["14.streams.v2", "16.twophase.v4bin", "10.txns.v1"])
def test_empty_payloads_change_nothing_for_the_others(name: str, in_stream: Any, rng: random.Random) -> None:
    payloads = captures.capture(name).payloads[:2000]
    if isinstance(in_stream, bool):
        payloads = [p for p, state in zip(payloads, captures.capture(name).states, strict=False) if state == in_stream]
    mixed: list[bytes] = []
    for payload in payloads:
        mixed += [b""] * rng.choice((0, 0, 0, 1, 2)) + [payload]
    whole = pgdecode.decode_messages(payloads, in_stream=in_stream, fields=[*NULL_ROW, "xid_basis"])
    for threads in (1, 2):
        decoder = MessageDecoder(in_stream=in_stream, fields=[*NULL_ROW, "xid_basis"], threads=threads)
        found = decoder.decode(pa.array(mixed, pa.binary()))
        kept = pa.array([payload != b"" for payload in mixed], pa.bool_())
        assert found.filter(kept).equals(whole)
        assert decoder.empty_payloads == mixed.count(b"") == found["kind"].null_count


def test_empty_payloads_are_counted_by_several_threads() -> None:
    payloads = pa.array([BEGIN * 1, b"", PLAIN_INSERT] * 400_000)
    decoder = MessageDecoder(threads=2)
    assert decoder.decode(payloads)["kind"].null_count == decoder.empty_payloads == 400_000


def test_the_state_of_a_window_without_delimiters_is_decided_despite_empty_payloads() -> None:
    for before, after, streamed in (([START], [], True), ([], [STOP], True), ([BEGIN], [], False)):
        rows = rows_of(pgdecode.decode_messages([*before, b"", EITHER, b"", *after]))
        assert (rows[len(before) + 1]["xid"] is not None) is streamed
    rows = rows_of(pgdecode.decode_messages([b"", EITHER, b"", STREAMED_INSERT]))
    assert rows[1]["xid"] is not None


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("column", LAYOUTS)
def test_rows_of_a_relation_are_null_for_empty_payloads(column: Callable[[Any], Any], threads: int, mode: str) -> None:
    row = encode(Insert(relation_id=0x4001, new=(b"x",), new_formats="t"))
    batch = pgdecode.decode_rows(column([b"", row, None, b""] * 50), RELATION, threads=threads, mode=mode)
    assert batch["_op"].to_pylist() == [None, "insert", None, None] * 50
    assert batch["a"].to_pylist() == [None, "x", None, None] * 50
    assert batch["_error"].null_count == 200


@pytest.mark.parametrize("column", LAYOUTS)
def test_decode_rows_refuses_empty_payloads_on_request(column: Callable[[Any], Any]) -> None:
    row = encode(Insert(relation_id=0x4001, new=(b"x",), new_formats="t"))
    with pytest.raises(pgdecode.EmptyPayload) as caught:
        pgdecode.decode_rows(column([row, b""]), RELATION, empty="error")
    assert caught.value.row == 1
    batch = pgdecode.decode_rows(column([row, b""]), RELATION, empty="error", mode="PERMISSIVE")
    assert batch["_error"].to_pylist() == [None, "EMPTY at offset 0: empty payload, expected a message tag"]


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_changes_ignore_empty_payloads(mode: str) -> None:
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(b"")
    slot.payloads.append(encode(RELATION))
    slot.payloads.append(encode(Insert(relation_id=0x4001, new=(b"x",), new_formats="t")))
    slot.commit()
    slot.payloads.append(b"")
    (change,) = pgdecode.ChangeDecoder(mode=mode).decode(slot.payloads).to_pylist()
    assert (change["position"], change["new"], change["error"]) == (3, [("a", "x")], None)


def test_a_catalog_ignores_empty_payloads() -> None:
    assert len(pgdecode.RelationCatalog.from_messages([b"", SAMPLES["begin"].payload, b"", encode(RELATION)])) == 1
