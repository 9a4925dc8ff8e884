"""Which Relation message applies to a row: the last visible one, and never one that was rolled back."""

from __future__ import annotations

import pytest

import pgdecode
from pgdecode import ChangeDecoder
from pgdecode.protocol import messages as m
from support.generators.encoder import encode
from support.generators.slots import (
    STOP,
    abort,
    begin,
    begin_prepare,
    commit,
    insert,
    prepare,
    relation,
    rollback_prepared,
    start,
    stream_commit,
    stream_prepare,
)

# A stream whose sub-transaction changed the description of the table, before the old description was sent again.
OLDER_AND_NEWER = (
    begin(7), relation("a b"), commit(40),
    start(9, first=True), relation("a c", xid=10), STOP,
    abort(9, 10),
    begin(11), relation("a b"), commit(50),
    stream_commit(9, 60),
    begin(12), insert("7", "8"), commit(70),
)  # fmt: skip


def test_its_table_has_only_the_columns_of_the_committed_relation() -> None:
    batch = ChangeDecoder().table(OLDER_AND_NEWER, "public.t")
    assert batch.select(["a", "b"]).to_pylist() == [{"a": "7", "b": "8"}]
    assert "c" not in batch.schema.names
    [row] = pgdecode.snapshot(OLDER_AND_NEWER, "public.t").to_pylist()
    assert (row["a"], row["b"], row["_unknown"]) == ("7", "8", [])


def test_a_type_of_an_aborted_sub_transaction_is_dropped_with_it() -> None:
    def type_named(name: str, xid: int | None = None) -> bytes:
        return encode(m.Type(xid=xid, type_id=16999, namespace="public", name=name))

    def described(xid: int | None = None) -> bytes:
        return relation("a", xid=xid, types=[16999])

    payloads = [
        begin(7), type_named("old"), commit(40),
        start(9, first=True), type_named("new", 10), described(10), STOP, abort(9, 10), stream_commit(9, 60),
        begin(12), described(), insert("x"), commit(70),
    ]  # fmt: skip
    decoder = ChangeDecoder()
    assert decoder.decode(payloads).num_rows == 1
    assert [[item.name for item in version.types] for version in decoder.catalog if version.visible_from] == [["old"]]


def test_a_table_has_the_rows_of_every_shape_that_one_stream_sent() -> None:
    payloads = [
        start(8, first=True),
        relation("id* a", xid=8), insert("1", "x", xid=8),
        relation("id* b", xid=8), insert("2", "y", xid=8),
        STOP, stream_commit(8, 60),
    ]  # fmt: skip
    batch = ChangeDecoder().table(payloads, "public.t")
    assert batch.select(["id", "a", "b"]).to_pylist() == [
        {"id": "1", "a": "x", "b": None},
        {"id": "2", "a": None, "b": "y"},
    ]
    assert pgdecode.snapshot(payloads, "public.t")["id"].to_pylist() == ["1", "2"]


# -- the shape of a table -------------------------------------------------------------------------------------------


def plain(lsn: int, columns: str, *values: str, name: str = "t") -> tuple[bytes, ...]:
    return (begin(lsn, lsn), relation(columns, name=name), insert(*values), commit(lsn))


T1, T2 = plain(40, "id* v", "1", "x"), plain(50, "id* v w", "2", "y", "z")


@pytest.mark.parametrize("again", [T1, (*T1, *T2)], ids=["T1 T2 T1", "T1 T2 T1 T2"])
def test_transactions_that_are_dropped_as_duplicates_do_not_change_the_columns(again: tuple[bytes, ...]) -> None:
    payloads = [*T1, *T2, *again]
    found = pgdecode.snapshot(payloads, "public.t", drop_duplicates=True)
    assert found.select(["id", "v", "w", "_unknown"]).to_pylist() == [
        {"id": "1", "v": "x", "w": None, "_unknown": ["w"]},
        {"id": "2", "v": "y", "w": "z", "_unknown": []},
    ]
    batch = ChangeDecoder(drop_duplicates=True).table(payloads, "public.t")
    assert batch.schema.names[-3:] == ["id", "v", "w"]
    assert batch["v"].to_pylist() == ["x", "y"]


@pytest.mark.parametrize("n_again", [1, 2])
def test_a_renamed_table_keeps_its_name_if_duplicates_are_dropped(n_again: int) -> None:
    first, second = plain(40, "id*", "1", name="before"), plain(50, "id*", "2", name="after")
    payloads = [*first, *second, *first, *(second if n_again > 1 else ())]
    assert pgdecode.snapshot(payloads, "public.after", drop_duplicates=True)["id"].to_pylist() == ["1", "2"]
    with pytest.raises(KeyError):
        pgdecode.snapshot(payloads, "public.before", drop_duplicates=True)


PREPARED = (begin_prepare(9, "g"), relation("id* x"), insert("3", "q"), prepare(9, "g"))


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(PREPARED, id="pending"),
        pytest.param((*PREPARED, rollback_prepared(9, "g")), id="rolled back"),
        pytest.param((begin(60), relation("id* x"), insert("3", "q")), id="open at the end"),
        pytest.param((start(9, first=True), relation("id* x", xid=9), STOP), id="streamed and open"),
        pytest.param((start(9, first=True), relation("id* x", xid=9), STOP, abort(9, 9)), id="streamed and aborted"),
        pytest.param((start(9, first=True), relation("id* x", xid=9), STOP, stream_prepare(9, "g")),
                     id="streamed and pending"),
    ],
)  # fmt: skip
def test_a_transaction_that_did_not_commit_does_not_change_the_columns(ending: tuple[bytes, ...]) -> None:
    payloads = [*T1, *ending]
    found = pgdecode.snapshot(payloads, "public.t")
    assert found.select(["id", "v", "_unknown"]).to_pylist() == [{"id": "1", "v": "x", "_unknown": []}]
    assert "x" not in found.column_names
    batch = ChangeDecoder().table(payloads, "public.t")
    assert batch.schema.names[-2:] == ["id", "v"]


def test_committed_rows_use_a_relation_that_only_a_rolled_back_transaction_sent() -> None:
    # A server describes a table once per session, in the first transaction that uses it.
    payloads = [*PREPARED, rollback_prepared(9, "g"), begin(60), insert("4", "r"), commit(160)]
    assert pgdecode.snapshot(payloads, "public.t").select(["id", "x"]).to_pylist() == [{"id": "4", "x": "r"}]
