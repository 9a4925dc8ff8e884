"""What the catalog of a server tells of relations: from a catalog to the columns of tables."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.protocol.messages import Column, Relation
from pgdecode.relations.column_history import ColumnHistory
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts, numbers_between
from pgdecode.relations.relation_version import RelationVersion, values_before
from support.generators.slot import Slot

TABLE = 16385
STORAGE = ((TABLE, 100),)


def slot_of(*versions: list[str]) -> Slot:
    """One transaction for each version: a Relation message, and a row whose values are the names of the columns."""
    slot = Slot()
    for xid, columns in enumerate(versions, 700):
        slot.begin(xid)
        slot.relation(TABLE, columns, name="t")
        slot.insert(TABLE, *columns)
        slot.commit()
    return slot


def facts_of(
    attnums: tuple[int, ...],
    missing: tuple[str | None, ...],
    key: tuple[int, ...],
    storage: tuple[tuple[int, int], ...],
) -> RelationFacts:
    return RelationFacts(attnums, missing, key, storage, n_attributes=max(attnums), has_same_list=True)


def stated(slot: Slot, *facts: RelationFacts) -> RelationCatalog:
    """Make a catalog with facts of the versions that a slot sends, without the versions."""
    kinds = pgdecode.decode_messages(slot.payloads)["kind"].to_pylist()
    places = [at for at, kind in enumerate(kinds) if kind == "relation"]
    messages = [pgdecode.decode(slot.payloads[at]) for at in places]
    found = [StatedFacts(*item) for item in zip(messages, places, facts, strict=True)]  # type: ignore[arg-type]
    return RelationCatalog.from_json(RelationCatalog((), found).to_json())


def numbers_of(table: Any) -> dict[str, str]:
    return {f.name: f.metadata[b"pg:attnum"].decode() for f in table.schema if b"pg:attnum" in (f.metadata or {})}


def test_typed_tables_have_the_numbers_and_the_primary_key_that_a_catalog_states() -> None:
    slot = slot_of(["id", "old"], ["id", "note"])
    old = facts_of((1, 2), (None, None), (1,), STORAGE)
    catalog = stated(slot, old, facts_of((1, 4), (None, "x"), (1,), STORAGE))
    assert catalog
    assert not len(catalog)
    decoder = ChangeDecoder(catalog=catalog)
    table = decoder.table(slot.payloads, "public.t")
    assert numbers_of(table) == {"id": "1", "old": "2", "note": "4"}
    assert [f.name for f in table.schema if b"pg:primary_key" in (f.metadata or {})] == ["id"]
    assert decoder.catalog["public.t"].primary_key == ("id",)
    # The state has them too, for messages that come later.
    for n in (0, 4):
        first = ChangeDecoder(catalog=catalog)
        first.decode(slot.payloads[:n])
        later = ChangeDecoder(state=first.state)
        later.decode(slot.payloads[n:])
        assert later.catalog == decoder.catalog
    assert RelationCatalog.from_json(decoder.catalog.to_json()) == decoder.catalog
    assert pickle.loads(pickle.dumps(decoder.catalog)) == decoder.catalog


def test_facts_do_not_apply_to_a_version_with_other_columns() -> None:
    slot = slot_of(["id", "note"], ["id", "remark"])
    catalog = stated(slot_of(["id", "note"]), facts_of((1, 2), (None, None), (1,), STORAGE))
    decoder = ChangeDecoder(catalog=catalog)
    decoder.decode(slot.payloads)
    # Without another look at the catalog, as of a table that was dropped, columns are followed by name and type.
    assert [numbers(version) for version in decoder.catalog.versions("public.t")] == [(1, 2), (1, 0)]
    assert RelationCatalog.from_json(decoder.catalog.to_json()) == decoder.catalog


def numbers(version: RelationVersion) -> tuple[int, ...]:
    assert version.facts is not None
    return version.facts.attnums


def test_a_column_that_was_dropped_and_added_again_is_another_column() -> None:
    slot = slot_of(["id", "note"], ["id", "note"], ["id", "note"])
    catalog = stated(
        slot,
        facts_of((1, 2), (None, None), (1,), STORAGE),
        facts_of((1, 3), (None, "new"), (1,), STORAGE),
        facts_of((1, 3), (None, "new"), (1,), ((TABLE, 101),)),  # after VACUUM FULL
    )
    decoder = ChangeDecoder(catalog=catalog)
    decoder.decode(slot.payloads, range(len(slot.payloads)))
    before, after = decoder.catalog.versions("public.t")
    # The first message may have been sent after the column was added again.
    assert values_before(before, after) == {}
    assert [*ColumnHistory({0: before, 1: after}).steps()] == [(1, {}), (0, {"id": "id"})]


Numbers = dict[int, str]
OLD: Numbers = {1: "id", 2: "a", 3: "b"}
SWAPPED: Numbers = {1: "id", 3: "b", 4: "a"}


@pytest.mark.parametrize(
    ("again", "look", "last_look", "expected"),
    [
        # A message after a look may be from before it: then a was 2 and b was 3. Otherwise a is 3, and b is 4.
        pytest.param(
            "id a b", {1: "id", 3: "b", 4: "a"}, {1: "id", 3: "b", 4: "a"}, (1, 0, 0), id="names were swapped"
        ),
        pytest.param("id a b", {1: "id", 3: "b", 4: "a"}, None, (1, 0, 0), id="and nothing is known later"),
        pytest.param("id b", {1: "id", 3: "b"}, {1: "id", 3: "c"}, (1, 3), id="dropped, then renamed"),
        pytest.param(
            "id a b c", {1: "id", 2: "a", 3: "b", 4: "c"}, {1: "id", 3: "b", 4: "c"}, (1, 2, 3, 4), id="added"
        ),
        pytest.param("id a c", {1: "id", 2: "a", 3: "c"}, {1: "id", 2: "a", 3: "d"}, (1, 2, 3), id="renamed twice"),
    ],
)
def test_a_message_after_a_look_that_is_not_certain_may_be_from_before_it(
    again: str, look: Numbers, last_look: Numbers | None, expected: tuple[int, ...]
) -> None:
    slot = slot_of(["id", "a", "b"], again.split())
    first, second = (at for at, payload in enumerate(slot.payloads) if payload[:1] == b"R")
    looks = [(first, OLD), (first + 2, look), (second + 2, last_look)]
    items = []
    for position, columns in looks:
        if columns is not None:
            relation = pgdecode.decode(slot_of([*columns.values()]).payloads[1])
            assert isinstance(relation, Relation)
            facts = facts_of((*columns,), (None,) * len(columns), (1,), STORAGE)
            items.append(StatedFacts(relation, position, replace(facts, n_attributes=max(4, *columns))))
    decoder = ChangeDecoder(catalog=RelationCatalog((), items))
    decoder.decode(slot.payloads, range(len(slot.payloads)))
    assert numbers(decoder.catalog.versions("public.t")[-1]) == expected


@pytest.mark.parametrize(
    ("names", "before", "after", "n_attributes", "expected"),
    [
        pytest.param("id v a", {1: "id", 2: "v"}, {1: "id", 2: "v", 3: "a", 4: "b"}, 4, (1, 2, 3), id="two added"),
        pytest.param("id v a", None, {1: "id", 2: "v", 3: "a", 4: "b"}, 4, (1, 2, 3), id="nothing known before"),
        pytest.param("id v a", None, {1: "id", 2: "v", 4: "a", 5: "b"}, 5, (1, 2, 0), id="it may be the dropped one"),
        pytest.param("id v", {1: "id", 3: "v"}, {1: "id", 3: "v", 4: "a"}, 4, (1, 3), id="dropped before"),
        pytest.param("id v a", {1: "id", 2: "v"}, {1: "id", 3: "a"}, 3, (1, 2, 3), id="added, then another dropped"),
        pytest.param("id b", {1: "id", 2: "a", 3: "b"}, {1: "id", 3: "b", 4: "c"}, 4, (1, 3), id="dropped, then added"),
        pytest.param("id w", {1: "id", 2: "v"}, {1: "id", 2: "w", 3: "a"}, 3, (1, 2), id="renamed, then added"),
        pytest.param("id x", {1: "id", 2: "v"}, {1: "id", 2: "w"}, 2, (1, 2), id="renamed twice"),
        pytest.param("id a b", {1: "id", 2: "b"}, {1: "id", 2: "a", 3: "b"}, 3, (1, 2, 3), id="a former name"),
        pytest.param("id v", {1: "id", 2: "v"}, {1: "id", 3: "v"}, 3, (1, 0), id="dropped and added again"),
        pytest.param("id v w", {1: "id", 2: "v", 3: "w"}, {1: "id", 3: "w", 4: "v"}, 4, (1, 2, 3), id="by the order"),
        pytest.param(
            "id v x",
            {1: "id", 2: "v"},
            {1: "id", 2: "v", 4: "a"},
            4,
            (1, 2, 0),
            id="added, then one was dropped or renamed",
        ),
        pytest.param("id v a", {1: "id", 2: "v"}, {1: "id", 2: "v", 4: "a"}, 4, (1, 2, 0), id="added, dropped, added"),
        pytest.param("id v", {1: "id", 2: "v"}, {1: "id", 3: "a"}, 3, (1, 2), id="before one is added and one dropped"),
        pytest.param("id c", {1: "id", 2: "b"}, {1: "id", 3: "c"}, 3, (1, 0), id="renamed, dropped and added again"),
        pytest.param("id b d", {1: "id", 2: "b"}, {1: "id", 3: "d", 4: "b"}, 4, (1, 0, 0), id="names were swapped"),
        pytest.param("id", {1: "id", 3: "v"}, {1: "id", 2: "a", 3: "v"}, 3, (0,), id="a dropped number comes back"),
    ],
)
def test_numbers_of_a_version_between_two_others_are_derived_where_there_is_one_choice(
    names: str, before: Numbers | None, after: Numbers, n_attributes: int, expected: tuple[int, ...]
) -> None:
    first = None if before is None else stated_state(before, max(before))
    last = stated_state(after, n_attributes)
    assert numbers_between(names.split(), first, last) == expected


def test_a_number_of_a_column_that_was_dropped_before_a_look_belongs_to_no_later_column() -> None:
    first, last = (stated_state(columns, 3) for columns in ({1: "id", 2: "a"}, {1: "id"}))
    assert numbers_between(["id", "a"], first, last) == (1, 2)


def stated_state(columns: Numbers, n_attributes: int) -> StatedFacts:
    relation = Relation(TABLE, "public", "t", "d", tuple(Column(0, name, 25, -1) for name in columns.values()))
    missing = (None,) * len(columns)
    return StatedFacts(
        relation, 0, RelationFacts((*columns,), missing, (1,), STORAGE, n_attributes, has_same_list=True)
    )


@pytest.mark.parametrize(
    ("storage", "missing", "expected"),
    [
        pytest.param(STORAGE, ("x", "y"), [{"a": "x"}, {"b": "y"}], id="with defaults"),
        pytest.param(STORAGE, (None, None), [{"a": None}, {"b": None}], id="without defaults"),
        pytest.param(((TABLE, 101),), ("x", None), [{"a": "x"}, {}], id="rewritten"),
    ],
)
def test_a_table_that_is_altered_twice_between_two_looks_at_the_catalog_has_known_values(
    storage: tuple[tuple[int, int], ...], missing: tuple[str | None, ...], expected: list[dict[str, str | None]]
) -> None:
    slot = slot_of(["id", "v"], ["id", "v", "a"], ["id", "v", "a", "b"])
    first = facts_of((1, 2), (None, None), (1,), STORAGE)
    last = facts_of((1, 2, 3, 4), (None, None, *missing), (1,), storage)
    catalog = stated(slot, first, facts_of((1, 2, 3), (None,) * 3, (1,), STORAGE), last)
    decoder = ChangeDecoder(catalog=RelationCatalog((), (catalog.facts[0], catalog.facts[2])))
    decoder.decode(slot.payloads, range(len(slot.payloads)))
    versions = decoder.catalog.versions("public.t")
    assert [values_before(*pair) for pair in pairwise(versions)] == expected
    # A list of columns in the publication may have left out others.
    for without in (0, 2):
        facts = [item._replace(facts=replace(item.facts, has_same_list=False)) for item in catalog.facts]
        chosen = [facts[at] if at == without else catalog.facts[at] for at in (0, 2)]
        decoder = ChangeDecoder(catalog=RelationCatalog((), chosen))
        decoder.decode(slot.payloads, range(len(slot.payloads)))
        versions = decoder.catalog.versions("public.t")
        assert numbers(versions[1]) == (1, 2, 0)
        assert values_before(*versions[1:]) == {}


def test_columns_are_renamed_by_their_numbers() -> None:
    slot = slot_of(["id", "a", "b"], ["id", "b", "a"])
    catalog = stated(
        slot,
        facts_of((1, 2, 3), (None,) * 3, (1,), STORAGE),
        facts_of((1, 2, 3), (None,) * 3, (1,), STORAGE),
    )
    rows = ChangeDecoder(catalog=catalog).table(slot.payloads, "public.t").select(["id", "a", "b"]).to_pylist()
    assert rows == [{"id": "id", "a": "b", "b": "a"}, {"id": "id", "a": "a", "b": "b"}]


@pytest.mark.parametrize(
    ("storage", "missing", "expected"),
    [
        pytest.param(STORAGE, None, {"note": None}, id="without a default"),
        pytest.param(STORAGE, "x", {"note": "x"}, id="with a default"),
        pytest.param(((TABLE, 101),), None, {}, id="rewritten"),
        pytest.param(((TABLE, 101),), "x", {"note": "x"}, id="rewritten before, with a default"),
        pytest.param(((7, 7),), None, {}, id="only other partitions"),
    ],
)
def test_old_rows_have_the_missing_value_unless_the_table_may_have_been_rewritten(
    storage: Any, missing: str | None, expected: dict[str, str | None]
) -> None:
    slot = slot_of(["id"], ["id", "note"])
    catalog = stated(slot, facts_of((1,), (None,), (1,), STORAGE), facts_of((1, 2), (None, missing), (1,), storage))
    decoder = ChangeDecoder(catalog=catalog)
    decoder.decode(slot.payloads)
    assert values_before(*decoder.catalog.versions("public.t")) == expected
    assert values_before(*RelationCatalog.from_json(decoder.catalog.to_json()).versions("public.t")) == expected


def test_facts_without_the_numbers_of_all_columns_tell_of_no_column_that_it_was_added() -> None:
    slot = slot_of(["id"], ["id", "note"])
    catalog = stated(slot, facts_of((1,), (None,), (1,), STORAGE), facts_of((1, 2), (None, "x"), (1,), STORAGE))
    plain = json.loads(catalog.to_json())
    for item in plain["facts"]:
        del item["facts"]["n_attributes"], item["facts"]["has_same_list"]
    decoder = ChangeDecoder(catalog=RelationCatalog.from_json(json.dumps(plain)))
    decoder.decode(slot.payloads)
    before, after = decoder.catalog.versions("public.t")
    assert after.facts is not None
    assert values_before(before, after) == {}


def test_facts_for_another_number_of_columns_are_refused() -> None:
    text = stated(slot_of(["id"]), facts_of((1,), (None,), (1,), STORAGE)).to_json()
    with pytest.raises(ValueError, match="facts of 2 columns, the relation has 1"):
        RelationCatalog.from_json(text.replace('"attnums": [1]', '"attnums": [1, 2]'))


def test_a_state_has_only_the_facts_that_later_messages_may_use() -> None:
    columns = ["id", "note"]
    slot, n_rounds = slot_of(*[columns] * 12), 12
    # Each captured file states them again, and a table that is truncated has another file.
    facts = [facts_of((1, 2), (None, None), (1,), ((TABLE, 100 + number // 3),)) for number in range(n_rounds)]
    whole = ChangeDecoder(catalog=stated(slot, *facts))
    whole.decode(slot.payloads, range(len(slot.payloads)))
    state: Any = None
    for number in range(n_rounds):
        # A call gets the footers of the files that it reads, the last of which it has read in part before.
        found = stated(slot, *facts).facts[max(number - 1, 0) : number + 1]
        decoder = ChangeDecoder(catalog=RelationCatalog((), found), state=state)
        rows = range(4 * number, 4 * number + 4)
        decoder.decode(slot.payloads[rows.start : rows.stop], rows)
        state = decoder.state
        [kept] = state["catalog"]["facts"]
        assert kept["facts"]["storage"] == ((TABLE, 100 + number // 3),)
    assert state == whole.state
