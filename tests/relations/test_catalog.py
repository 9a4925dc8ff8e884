"""A RelationCatalog contains the columns that a table had when a row was sent."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import RelationCatalog
from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.generators.slot import RandomSlot, Slot
from support.oracles import reference_changes

T = 16385


def described(*columns: str, **options: Any) -> Slot:
    slot = Slot()
    slot.relation(T, columns, **options)
    return slot


def names(version: Any) -> list[str] | None:
    return None if version is None else [column.name for column in version.columns]


def streamed() -> Slot:
    """Version a outside at 0, b in the stream of 800 at 2, c in that of 900 at 5; 800 commits at 7, 900 aborts at 8."""
    slot = described("a")
    slot.start(800, first=True)
    slot.relation(T, ["b"], xid=800)
    slot.stop()
    slot.start(900, first=True)
    slot.relation(T, ["c"], xid=901)
    slot.stop()
    slot.stream_commit(800)
    slot.stream_abort(900)
    return slot


# -- versions --------------------------------------------------------------------------------------------------------


def test_a_version_has_the_content_and_position_of_its_message() -> None:
    slot = described("id", "v", keys=["id"], name="t")
    [version] = RelationCatalog.from_messages(slot.payloads, [17])
    assert (version.relation_id, version.namespace, version.name, version.qualified_name) == (
        T,
        "public",
        "t",
        "public.t",
    )
    assert version.replica_identity == "d"
    assert version.columns == (pgdecode.Column(1, "id", 25, -1), pgdecode.Column(0, "v", 25, -1))
    assert (version.position, version.xid, version.visible_from, version.types) == (17, None, 17, ())


def test_a_version_from_a_stream_is_visible_to_others_after_its_commit() -> None:
    catalog = RelationCatalog.from_messages(streamed().payloads)
    assert [(names(v), v.position, v.xid, v.visible_from) for v in catalog] == [
        (["a"], 0, None, 0),
        (["b"], 2, 800, 7),
        (["c"], 5, 900, None),
    ]


def test_a_version_from_a_prepared_stream_is_visible_to_others_after_its_prepare() -> None:
    slot = described("a")
    slot.start(800, first=True)
    slot.relation(T, ["b"], xid=800)
    slot.stop()
    slot.stream_prepare(800, "g")
    slot.rollback_prepared(800, "g")
    assert [version.visible_from for version in RelationCatalog.from_messages(slot.payloads)] == [0, 4]


def test_a_stream_sent_again_from_its_start_discards_the_first_attempt() -> None:
    slot = Slot()
    slot.start(800, first=True)
    slot.relation(T, ["lost"], xid=800)
    slot.stop()
    slot.start(800, first=True)
    slot.stop()
    slot.stream_commit(800)
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert [version.visible_from for version in catalog] == [None]
    with pytest.raises(KeyError, match=f"relation {T} was sent only in streams that did not commit"):
        catalog[T]


def test_a_version_has_the_types_that_are_visible_in_its_scope() -> None:
    slot = Slot()
    slot.send(pgdecode.Type(type_id=20000, namespace="public", name="mood"))
    slot.start(800, first=True)
    slot.send(pgdecode.Type(xid=800, type_id=20001, namespace="public", name="colour"))
    slot.relation(T, ["a", "b", "c"], xid=800, types=[20001, 25, 20000])
    slot.stop()
    slot.relation(T, ["a", "b", "c"], types=[20001, 25, 20000])
    slot.stream_commit(800)
    slot.relation(T + 1, ["a"], types=[20001])
    found = [[item.name for item in version.types] for version in RelationCatalog.from_messages(slot.payloads)]
    assert found == [["colour", "mood"], ["mood"], ["colour"]]


def test_a_relation_that_is_repeated_unchanged_adds_no_version() -> None:
    slot = described("a")
    size = len(RelationCatalog.from_messages(slot.payloads).to_json())
    for xid in range(800, 900):
        slot.start(xid, first=True)
        slot.relation(T, ["a"], xid=xid)
        slot.stop()
        slot.stream_commit(xid)
        slot.relation(T, ["a"])
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert len(catalog) == 1
    assert len(catalog.to_json()) == size
    decoder = ChangeDecoder()
    decoder.decode(slot.payloads)
    assert decoder.catalog == catalog


def test_a_table_that_returns_to_an_earlier_shape_gets_another_version() -> None:
    slot = described("a")
    slot.relation(T, ["b"])
    slot.relation(T, ["a"])
    assert [names(version) for version in RelationCatalog.from_messages(slot.payloads)] == [["a"], ["b"], ["a"]]


# -- look-up ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "xid", "expected"),
    [
        pytest.param(0, None, ["a"], id="where it was sent"),
        pytest.param(3, None, ["a"], id="outside an open stream"),
        pytest.param(3, 800, ["b"], id="inside the stream"),
        pytest.param(1, 800, ["a"], id="inside the stream, before it was sent there"),
        pytest.param(3, 900, ["a"], id="inside another stream"),
        pytest.param(6, 900, ["c"], id="inside a stream that will abort"),
        pytest.param(6, None, ["a"], id="before the commit"),
        pytest.param(7, None, ["b"], id="at the commit"),
        pytest.param(9, None, ["b"], id="after the abort"),
        pytest.param(None, None, ["b"], id="after everything"),
        pytest.param(None, 900, ["c"], id="after everything, inside a stream"),
        pytest.param(-1, None, None, id="before everything"),
    ],
)
def test_at_finds_the_version_that_a_row_uses(position: int | None, xid: int | None, expected: list[str]) -> None:
    catalog = RelationCatalog.from_messages(streamed().payloads)
    assert names(catalog.at(T, position, xid)) == expected
    assert names(catalog.at(f"public.t{T}", position, xid)) == expected


def test_the_last_version_sent_applies_even_if_an_earlier_one_commits_later() -> None:
    slot = Slot()
    slot.start(800, first=True)
    slot.relation(T, ["early"], xid=800)
    slot.stop()
    slot.relation(T, ["late"])
    slot.stream_commit(800)
    assert names(RelationCatalog.from_messages(slot.payloads)[T]) == ["late"]


def test_at_agrees_with_the_reference_for_rows_of_random_transactions(rng: random.Random) -> None:
    for _ in range(5):
        payloads = RandomSlot(rng, 40).payloads
        catalog = RelationCatalog.from_messages(payloads)
        fold = reference_changes.Fold(enumerate(payloads))
        for row in fold.rows:
            stream = row.transaction.xid if row.transaction.streamed else None
            for relation_id in reference_changes.relation_ids(row.message):
                expected = fold.relation_of(row, relation_id)
                assert expected is not None
                assert names(catalog.at(relation_id, row.position, stream)) == [c["name"] for c in expected["columns"]]


def test_a_name_of_several_tables_has_the_versions_of_all() -> None:
    slot = described("a", name="t")
    slot.relation(T + 1, ["b"], name="t")
    slot.relation(T, ["a"], name="t_old")
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert [version.relation_id for version in catalog.versions("public.t")] == [T, T + 1]
    assert [version.name for version in catalog.versions(T)] == ["t", "t_old"]
    assert catalog.names == ("public.t", "public.t_old")
    assert catalog["public.t"].relation_id == T + 1


@pytest.mark.parametrize("unknown", [5, "public.nobody", "t16385"])
def test_an_unknown_table_is_an_error_that_lists_the_known_tables(unknown: int | str) -> None:
    catalog = RelationCatalog.from_messages(streamed().payloads)
    assert catalog.at(unknown) is None
    for look_up in (catalog.versions, catalog.__getitem__):
        with pytest.raises(KeyError, match=f"no relation {unknown!r} in the catalog, which has public.t{T}"):
            look_up(unknown)


def test_membership_follows_the_look_up_by_oid_by_name_and_by_version() -> None:
    catalog = RelationCatalog.from_messages(described("a").payloads)
    assert all(item in catalog for item in (T, f"public.t{T}", catalog[T]))
    assert not any(item in catalog for item in (T + 1, f"t{T}", None))
    assert catalog[T] not in RelationCatalog()


def test_an_empty_catalog_says_so() -> None:
    catalog = RelationCatalog()
    assert (len(catalog), list(catalog), catalog.names) == (0, [], ())
    with pytest.raises(KeyError, match="which has none"):
        catalog["public.t"]


# -- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["10.txns.v1", "14.streams.v2", "16.twophase.v4bin", "18.txns.v2", "18.types.v2bin"])
def test_catalogs_from_payloads_and_from_messages_equal_that_of_a_decoder(name: str) -> None:
    capture = captures.capture(name)
    decoder = ChangeDecoder(mode="PERMISSIVE")
    decoder.decode(capture.column)
    messages = [
        pgdecode.decode(payload, in_stream=state)
        for payload, state in zip(capture.payloads, capture.states, strict=True)
    ]
    chunks = pa.chunked_array([capture.column[:7], capture.column[7:]])
    for given_as in (capture.column, capture.payloads, chunks, messages, iter(messages)):
        assert RelationCatalog.from_messages(given_as) == decoder.catalog


def test_positions_may_be_given_for_payloads_and_for_messages() -> None:
    payloads = streamed().payloads
    positions = [10 * (at + 1) for at in range(len(payloads))]
    catalog = RelationCatalog.from_messages(payloads, positions)
    assert [version.position for version in catalog] == [10, 30, 60]
    states = [False, False, True, False, False, True, False, False, False]
    messages = [pgdecode.decode(payload, in_stream=state) for payload, state in zip(payloads, states, strict=True)]
    assert RelationCatalog.from_messages(messages, positions) == catalog


def test_payloads_may_begin_inside_a_block_and_lack_its_end() -> None:
    slot = Slot()
    slot.relation(T, ["first"], xid=800)
    slot.stop()
    slot.start(900, first=True)
    slot.relation(T, ["second"], xid=900)
    slot.begin(1000)
    slot.relation(T, ["third"])
    slot.commit()
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert [(names(version), version.xid, version.visible_from) for version in catalog] == [
        (["first"], 800, None),
        (["second"], 900, None),
        (["third"], None, 5),
    ]
    decoder = ChangeDecoder(mode="PERMISSIVE")
    decoder.decode(slot.payloads)
    assert decoder.catalog == catalog


def test_a_bad_payload_is_an_error() -> None:
    with pytest.raises(pgdecode.DecodeError, match="row 1, offset 25: relation column 0 type_id needs 4 bytes, 0 left"):
        RelationCatalog.from_messages([*described("a").payloads, described("b").payloads[0][:-8]])


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", captures.NAMES)
def test_a_catalog_survives_json(name: str) -> None:
    catalog = RelationCatalog.from_messages(captures.capture(name).column)
    assert len(catalog) > 0
    text = catalog.to_json()
    twin = RelationCatalog.from_json(text)
    assert twin == catalog
    assert twin.to_json() == text
    assert RelationCatalog.from_json(text.encode()) == catalog


def test_catalogs_are_equal_if_their_versions_are_and_have_no_hash() -> None:
    catalog = RelationCatalog.from_messages(streamed().payloads)
    assert catalog != RelationCatalog(list(catalog)[:2])
    assert catalog != list(catalog)
    with pytest.raises(TypeError, match="unhashable"):
        hash(catalog)
    assert repr(catalog) == "RelationCatalog(1 relations, 3 versions)"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[]", id="list"),
        pytest.param("{}", id="empty object"),
        pytest.param('{"format": "pgdecode.ChangeDecoder"}', id="another format"),
        pytest.param('{"format": "pgdecode.RelationCatalog", "version": 2, "relations": []}', id="later version"),
        pytest.param('{"format": "pgdecode.RelationCatalog", "version": 1, "relations": [], "length": 1}', id="cut"),
        pytest.param('{"format": "pgdecode.RelationCatalog", "version": 1}', id="without relations"),
    ],
)
def test_json_that_is_not_a_catalog_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"pgdecode\.RelationCatalog"):
        RelationCatalog.from_json(text)


def test_truncated_json_is_refused() -> None:
    text = RelationCatalog.from_messages(streamed().payloads).to_json()
    for length in range(len(text)):
        with pytest.raises(json.JSONDecodeError):
            RelationCatalog.from_json(text[:length])


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths of keys and indices in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places_in(item, (*path, key))]]


def test_json_with_a_value_of_another_type_is_refused_or_is_a_catalog() -> None:
    slot = streamed()
    slot.send(pgdecode.Type(type_id=20000, namespace="public", name="mood"))
    slot.relation(T + 1, ["a"], types=[20000])
    plain = json.loads(RelationCatalog.from_messages(slot.payloads).to_json())
    refused = 0
    for place in places_in(plain):
        for value in (None, True, -1, 1, 2**64, 1.5, "", "d", "\ud800", [], {}, [1]):
            spoilt = copy.deepcopy(plain)
            holder = spoilt
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            try:
                catalog = RelationCatalog.from_json(json.dumps(spoilt))
            except ValueError:
                refused += 1
                continue
            assert RelationCatalog.from_json(catalog.to_json()) == catalog
            decoder = ChangeDecoder(catalog=catalog, mode="PERMISSIVE")
            decoder.decode(transaction()).validate(full=True)
    assert refused > 200


def transaction() -> list[bytes]:
    slot = Slot()
    slot.begin(700)
    slot.insert(T, "1")
    slot.insert(T + 1, "2")
    slot.commit()
    return slot.payloads
