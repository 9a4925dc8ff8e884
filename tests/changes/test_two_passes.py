"""Two passes over the same payloads, and several tables in one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from support import captures
from support.generators.slot import Slot

T, U = 16385, 16386  # OIDs of tables
INT2, INT4, TEXT = 21, 23, 25


def table_that_grows() -> list[list[bytes]]:
    """Two batches: a column is widened and one is added in the second, which ends in an open transaction."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["n"], types=[INT2])
    slot.relation(U, ["u"])
    slot.insert(T, "1")
    slot.insert(U, "first")
    slot.commit()
    n_first = len(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["n", "v"], types=[INT4, TEXT])
    slot.insert(T, "70000", "a")
    slot.commit()
    slot.begin(9)
    slot.insert(T, "3", "open")
    return [slot.payloads[:n_first], slot.payloads[n_first:]]


def followed(batches: list[list[bytes]], **options: object) -> ChangeDecoder:
    decoder = ChangeDecoder(**options)  # type: ignore[arg-type]
    for batch in batches:
        decoder.follow(batch)
    return decoder


def test_the_second_pass_has_the_final_columns_from_the_first_batch_on() -> None:
    batches = table_that_grows()
    first = followed(batches)
    second = first.restart()
    found = [second.table(batch, "public.t16385") for batch in batches]
    for batch in found:
        assert batch.schema == first.table_schema("public.t16385")
        assert batch.schema.field("n").type == pa.int32()
    assert pa.concat_batches(found).select(["n", "v"]).to_pylist() == [{"n": 1, "v": None}, {"n": 70000, "v": "a"}]
    assert second.catalog == first.catalog


def test_a_second_pass_can_be_repeated_and_gives_the_same() -> None:
    batches = table_that_grows()
    second = followed(batches).restart()
    found = [second.decode(batch) for batch in batches]
    third = second.restart()
    assert [third.decode(batch) for batch in batches] == found
    assert [row["position"] for batch in found for row in batch.to_pylist()] == [3, 4, 8]


@pytest.mark.parametrize("name", ["18.txns.v2", "16.streams.v4", "18.twophase.v3", "14.shop.v1"])
@pytest.mark.parametrize("n_rows", [1, 50, 10**6])
def test_a_second_pass_over_a_capture_gives_the_changes_of_one_pass(name: str, n_rows: int) -> None:
    column = captures.capture(name).column
    batches = [column.slice(start, n_rows) for start in range(0, len(column), n_rows)]
    first = ChangeDecoder()
    for batch in batches:
        first.follow(batch)
    second = first.restart()
    found = pa.concat_batches([second.decode(batch) for batch in batches])
    assert found == ChangeDecoder().decode(column)


def test_a_given_catalog_is_known_in_both_passes() -> None:
    batches = table_that_grows()
    known = followed(batches).catalog
    slot = Slot()
    slot.begin(7)
    slot.insert(T, "5", "b")
    slot.commit()
    first = followed([slot.payloads], catalog=known)
    for decoder in (first.restart(), first.restart()):
        assert decoder.table(slot.payloads, "public.t16385")["v"].to_pylist() == ["b"]


def test_several_tables_are_decoded_in_one_pass() -> None:
    batches = table_that_grows()
    decoder = followed(batches).restart()
    names = ["public.t16386", "public.t16385"]
    found = [item for batch in batches for item in decoder.tables_batches(batch, names)]
    for name in names:
        alone = followed(batches).restart()
        expected = pa.concat_batches([alone.table(batch, name) for batch in batches])
        assert pa.concat_batches([batch for table, batch in found if table == name]) == expected
    assert {table for table, _ in found} == set(names)


def test_an_unknown_table_is_refused_and_leaves_the_decoder_unchanged() -> None:
    first, second = table_that_grows()
    decoder = ChangeDecoder()
    decoder.follow(first)
    with pytest.raises(KeyError, match=r"no message has described 'public\.nope'; there are public\.t16385"):
        list(decoder.tables_batches(second, ["public.t16385", "public.nope"]))
    assert [row["position"] for row in decoder.decode(second).to_pylist()] == [8]


def test_undecided_returns_changes_or_rows_of_a_table() -> None:
    decoder = followed(table_that_grows())
    assert decoder.n_undecided == 1
    (change,) = decoder.undecided().to_pylist()
    assert (dict(change["new"]), change["committed"], change["position"]) == ({"n": "3", "v": "open"}, None, 11)
    (row,) = decoder.undecided("public.t16385").to_pylist()
    assert (row["n"], row["v"], row["_commit_position"], row["_position"]) == (3, "open", None, 11)
    assert decoder.undecided("public.t16386").num_rows == 0
    assert ChangeDecoder().n_undecided == 0


def test_payloads_on_disk_can_be_decoded_in_two_passes(tmp_path: Path) -> None:
    batches = table_that_grows()
    first = followed(batches, spill=tmp_path, max_held_bytes=0)
    second = first.restart()
    for batch in batches:
        second.decode(batch)
    assert second.undecided()["position"].to_pylist() == [11]
    assert second.catalog == first.catalog
