"""Limits.max_relations: the number of relation versions and of types that a decoder and a catalog keep."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from partitions.test_partitions import apart

import pgdecode
from pgdecode import ChangeDecoder, Limits, RelationCatalog
from pgdecode.protocol.options import ChangeOptions
from support.change_rows import changes_of, permissive, seen, through_json, with_errors
from support.generators.slot import Slot
from support.generators.slots import STOP, abort, begin, commit, insert, relation, start, stream_commit

T = 16385


def relations(n: int) -> list[bytes]:
    slot = Slot()
    slot.begin(700)
    for at in range(n):
        slot.relation(T + at, ["a"])
        slot.insert(T + at, str(at))
    slot.relation(T, ["a"])  # a repetition
    slot.insert(T, "again")
    slot.commit()
    return slot.payloads


LIMIT = 5
TOO_MANY = "version of a relation is number 6, limit 5 (Limits.max_relations)"


@pytest.mark.parametrize("n", [LIMIT - 1, LIMIT])
def test_as_many_relations_as_the_limit_are_kept(n: int) -> None:
    limits = Limits(max_relations=LIMIT)
    rows = changes_of(ChangeDecoder(limits=limits).decode(relations(n)))
    assert [row["new"]["a"] for row in rows] == [*map(str, range(n)), "again"]
    catalog = RelationCatalog.from_messages(relations(n), limits=limits)
    assert len(catalog) == n
    assert RelationCatalog.from_json(catalog.to_json(), limits=limits) == catalog


def test_one_relation_above_the_limit_is_a_fault() -> None:
    limits = Limits(max_relations=LIMIT)
    payloads = relations(LIMIT + 1)
    with pytest.raises(pgdecode.TooManyRelations) as caught:
        ChangeDecoder(limits=limits).decode(payloads)
    assert str(caught.value) == f"row 11, offset 0: {TOO_MANY}"
    assert (caught.value.expected, caught.value.seen, caught.value.relation) == (LIMIT, LIMIT + 1, T + LIMIT)
    with pytest.raises(pgdecode.TooManyRelations):
        RelationCatalog.from_messages(payloads, limits=limits)
    catalog = RelationCatalog.from_messages(payloads)
    with pytest.raises(ValueError, match=r"6 versions, limit 5 \(max_relations\)"):
        RelationCatalog.from_json(catalog.to_json(), limits=limits)


def test_above_the_limit_only_the_relation_and_its_rows_are_errors() -> None:
    payloads = relations(LIMIT + 2)
    rows = permissive(payloads, limits=Limits(max_relations=LIMIT))
    assert [row["new"]["a"] for row in rows if row["error"] is None] == [*map(str, range(LIMIT)), "again"]
    assert [seen([row])[0] for row in rows if row["error"]] == [
        (11, "LIMIT_RELATIONS"),
        (13, "LIMIT_RELATIONS"),
        (12, "REL_IN_DOUBT"),
        (14, "REL_IN_DOUBT"),
    ]
    assert next(row["error"] for row in rows if row["error"]) == f"LIMIT_RELATIONS at offset 0: {TOO_MANY}"


def test_versions_of_one_relation_count_and_so_do_types() -> None:
    limits = Limits(max_relations=LIMIT)
    slot = Slot()
    slot.begin(700)
    for at in range(LIMIT + 1):
        slot.relation(T, [f"c{at}"])
        slot.insert(T, "1")
    slot.commit()
    assert [row[1] for row in seen(permissive(slot.payloads, limits=limits))] == [
        "LIMIT_RELATIONS",
        *({f"c{at}": "1"} for at in range(LIMIT)),
        "REL_IN_DOUBT",
    ]
    types = [pgdecode.Type(20000 + at, "public", f"t{at}") for at in range(LIMIT + 1)]
    RelationCatalog.from_messages(types[:LIMIT] * 2, limits=limits)
    with pytest.raises(pgdecode.TooManyRelations, match="type is number 6, limit 5"):
        RelationCatalog.from_messages(types, limits=limits)


@pytest.mark.parametrize("n", [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 3])
def test_partitions_keep_as_many_relations_as_the_whole(n: int) -> None:
    limits = Limits(max_relations=LIMIT)
    payloads = relations(n)
    decoder = ChangeDecoder(mode="PERMISSIVE", limits=limits)
    whole = with_errors(decoder.decode(payloads))
    for bounds in ([], [4], [8, 11, 12], list(range(1, len(payloads)))):
        found = apart(payloads, bounds, 100, ChangeOptions("PERMISSIVE", limits=limits))
        assert found == sorted(whole, key=lambda row: (row["position"], row["relation_id"] or 0))


def test_the_limit_on_relations_is_the_documented_one() -> None:
    assert Limits().max_relations == 100_000


def test_bad_relation_messages_of_many_relations_do_not_fill_the_memory(rng: random.Random) -> None:
    decoder = ChangeDecoder(mode="PERMISSIVE", limits=Limits(max_relations=LIMIT))
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["a"])
    decoder.decode(slot.payloads)
    for _ in range(20):
        decoder.decode(pa.array([b"R" + rng.randbytes(4) for _ in range(50)], pa.binary()))
    assert len(decoder.state["catalog"]["visible"]) == 2 * LIMIT


def test_bad_relation_messages_in_many_streams_do_not_fill_the_memory() -> None:
    decoder = ChangeDecoder(mode="PERMISSIVE", limits=Limits(max_relations=LIMIT))
    for xid in range(100, 120):
        bad = [relation("a", xid=xid, relation_id=100 * xid + at)[:-1] for at in range(3 * LIMIT)]
        decoder.decode([start(xid, first=True), *bad, STOP, stream_commit(xid, xid)])
    assert len(decoder.state["catalog"]["visible"]) == 2 * LIMIT


# -- a relation message above the limit, of a relation that has a version ---------------------------------------------

FEW = {"mode": "PERMISSIVE", "limits": Limits(max_relations=2)}


def assert_in_doubt(payloads: list[bytes], position: int) -> None:
    """Check that a row is not decoded with the older version, in one call and with another decoder from any payload."""
    for cut in range(len(payloads)):
        decoder = ChangeDecoder(**FEW)
        rows = with_errors(decoder.decode(payloads[:cut]))
        for later in (through_json(decoder, **FEW), decoder):
            found = dict(seen(rows + with_errors(later.decode(payloads[cut:]))))
            assert found[position] == "REL_IN_DOUBT"


def test_above_the_limit_a_relation_message_of_a_stream_replaces_the_common_version() -> None:
    others = [relation("a", xid=5, relation_id=at, name=f"r{at}") for at in (2, 3, 4)]
    payloads = [
        begin(1), relation("a b", relation_id=9), commit(101),
        start(5, first=True), relation("a", xid=6), STOP, abort(5, 6),
        start(5, first=False), *others, relation("a c", xid=5, relation_id=9), insert("1", "2", xid=5, relation_id=9),
        STOP, stream_commit(5, 300),
    ]  # fmt: skip
    assert_in_doubt(payloads, 12)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_above_the_limit_a_relation_message_of_an_unknown_transaction_replaces_all_versions(is_streamed: bool) -> None:
    xid = 8 if is_streamed else None
    opened = start(8, first=True) if is_streamed else begin(1)
    # The starts of their blocks are missing.
    others = [item for at in range(2, 7) for item in (relation("a", xid=5, relation_id=at), STOP)]
    payloads = [
        opened, relation("a b", xid=xid, relation_id=9), STOP if is_streamed else commit(101),
        *others, relation("a c", xid=5, relation_id=9), STOP,
        start(8, first=False) if is_streamed else begin(2), insert("1", "2", xid=xid, relation_id=9),
        *((STOP, stream_commit(8, 300)) if is_streamed else (commit(300),)),
    ]  # fmt: skip
    assert_in_doubt(payloads, 16)
