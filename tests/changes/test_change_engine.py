"""The engine below ChangeDecoder: slices, their errors, tables with more or fewer versions, several tables at once."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.changes import outcomes
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.change_rows import TextOutput
from pgdecode.changes.checkpoint import state_to_json
from pgdecode.changes.table_rows import TableOutput
from pgdecode.rows.options import Options
from support import captures
from support.change_rows import changes_of, in_order
from support.generators.slot import Slot
from support.oracles import expected_changes
from support.tiers import full

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


def engine(**options: Any) -> ChangeEngine:
    return ChangeEngine(Options(**options))


def arrays(payloads: list[bytes], first: int = 0) -> tuple[pa.Array, pa.Array]:
    return pa.array(payloads, pa.binary()), pa.array(range(first, first + len(payloads)), pa.int64())


@pytest.mark.parametrize("name", ["18.txns.v2", "16.streams.v4", "18.twophase.v3", "14.shop.v1"])
@pytest.mark.parametrize("n_rows", [1, 50, 10**6])
def test_an_engine_without_output_reaches_the_state_of_a_decoder(name: str, n_rows: int) -> None:
    column = captures.capture(name).column
    alone = engine()
    for start in range(0, len(column), n_rows):
        alone.advance(column.slice(start, n_rows))
    decoder = ChangeDecoder()
    decoder.decode(column)
    assert state_to_json(alone.saved_state)["catalog"] == decoder.state["catalog"]
    assert alone.state.position == len(column)


@pytest.mark.parametrize("name", ["18.txns.v2", "16.streams.v4", "18.twophase.v3", "14.shop.v1"])
def test_slices_built_in_any_order_are_the_changes_of_a_decoder(name: str, rng: random.Random) -> None:
    column = captures.capture(name).column
    whole, output = engine(), TextOutput()
    functions = []
    for start in range(0, len(column), 700):
        functions += whole.slices(*arrays(column.slice(start, 700).to_pylist(), start), output, 100)[0]
    numbers = list(range(len(functions)))
    rng.shuffle(numbers)
    built = {number: functions[number]() for number in numbers}
    batches = [batch for _, item in sorted(built.items()) for _, batch, _ in item]
    assert pa.concat_batches(batches) == ChangeDecoder().decode(column)


@pytest.mark.parametrize("name", [full("18.txns.v2"), "16.streams.v4", "18.twophase.v3"])
@pytest.mark.parametrize("is_spilled", [False, True])
def test_large_transactions_that_are_read_part_by_part_have_the_changes_of_the_reference(
    name: str, is_spilled: bool, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "_LARGE", 1)
    column = captures.capture(name).column
    options = Options(include_uncommitted=True)
    reader = ChangeEngine(options, spill=tmp_path if is_spilled else None, max_held_bytes=0)
    output = TextOutput()
    functions = []
    for start in range(0, len(column), 40):
        functions += reader.slices(*arrays(column.slice(start, 40).to_pylist(), start), output, 100)[0]
    reader.advance([])
    # The functions of ended transactions read their files, which are deleted by now.
    assert len([*tmp_path.iterdir()]) < len(functions) // 2
    numbers = list(range(len(functions)))
    rng.shuffle(numbers)
    built = {number: functions[number]() for number in numbers}
    batches = [batch for _, item in sorted(built.items()) for _, batch, _ in item]
    ((_, builder),) = output.builders(reader)
    changes = [change for batch in (*batches, reader.undecided(builder)) for change in changes_of(batch)]
    assert in_order(changes) == expected_changes.as_text(name, True)
    # Versions that only aborted sub-transactions use do not count for the columns of tables.
    decoder = ChangeDecoder(include_uncommitted=True)
    decoder.decode(column)
    assert state_to_json(reader.saved_state)["catalog"] == decoder.state["catalog"]


def test_known_versions_give_the_final_columns_from_the_first_batch_on() -> None:
    first, second = table_that_grows()
    reader = engine()
    reader.advance(first)
    reader.advance(second)
    output = TableOutput(["public.t16385"], known={"public.t16385": reader.versions_of("public.t16385")})
    other = engine()
    rows = []
    for payloads, start in ((first, 0), (second, len(first))):
        rows += [batch for build in other.slices(*arrays(payloads, start), output)[0] for _, batch, _ in build()]
    assert all(batch.schema == rows[-1].schema for batch in rows)
    assert rows[0].schema.field("n").type == pa.int32()
    assert pa.concat_batches(rows).select(["n", "v"]).to_pylist() == [{"n": 1, "v": None}, {"n": 70000, "v": "a"}]


def test_rows_have_the_columns_of_the_versions_so_far() -> None:
    reader, output = engine(), TableOutput(["public.t16385"])
    schemas = []
    start = 0
    for payloads in table_that_grows():
        for build in reader.slices(*arrays(payloads, start), output)[0]:
            schemas += [batch.schema for _, batch, _ in build()]
        start += len(payloads)
    assert [(schema.field("n").type, "v" in schema.names) for schema in schemas] == [
        (pa.int16(), False),
        (pa.int32(), True),
    ]


def with_bad_values(*rows: int) -> list[bytes]:
    """Two tables, whose inserts take turns. Those in some rows have a bad value."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["n"], types=[INT2])
    slot.relation(U, ["n"], types=[INT2])
    for _ in range(20):
        for oid in (T, U):
            slot.insert(oid, "x" if len(slot.payloads) in rows else "1")
    slot.commit()
    return slot.payloads


@pytest.mark.parametrize("rows", [[4, 31], [31, 4], [9, 10], [10, 11]], ids=str)
@pytest.mark.parametrize("names", [["public.t16385", "public.t16386"], ["public.t16386", "public.t16385"]], ids=str)
def test_the_first_function_that_fails_has_the_first_error_in_slot_order(rows: list[int], names: list[str]) -> None:
    payloads = with_bad_values(*rows)
    functions, _ = engine().slices(*arrays(payloads), TableOutput(names))
    with pytest.raises(pgdecode.BadValue, match=f"row {min(rows)}, "):
        functions[0]()


@pytest.mark.parametrize("bad_value", [5, None])
def test_an_error_of_a_payload_comes_after_those_of_the_changes_before_it(bad_value: int | None) -> None:
    payloads = with_bad_values(*[] if bad_value is None else [bad_value])
    n = len(payloads)
    payloads += [*with_bad_values()[:10], b"?"]
    reader = engine()
    functions, error = reader.slices(*arrays(payloads), TableOutput(["public.t16385"]))
    assert reader.state.position == n + 10
    assert error is not None
    assert error.row == n + 10
    with nullcontext() if bad_value is None else pytest.raises(pgdecode.BadValue, match=f"row {bad_value}, "):
        assert [len(batch) for build in functions for _, batch, _ in build()] == [20]


def test_the_first_bad_value_of_a_table_is_reported_whichever_version_it_has() -> None:
    slot = Slot()
    for version, xid in enumerate((7, 8, 9)):
        slot.begin(xid)
        slot.relation(T, ["n", "v"][: 1 + version % 2], types=[INT2, INT2][: 1 + version % 2])
        slot.insert(T, *["1" if xid == 7 else "x"] * (1 + version % 2))
        slot.commit()
    with pytest.raises(pgdecode.BadValue, match="row 6, "):
        ChangeDecoder().table(slot.payloads, "public.t16385")


def test_several_tables_are_decoded_in_one_call() -> None:
    payloads = [payload for batch in table_that_grows() for payload in batch]
    names = ["public.t16386", "public.t16385"]
    batches = list(ChangeDecoder().tables_batches(payloads, names))
    for name in names:
        rows = pa.concat_batches([batch for table, batch in batches if table == name])
        assert rows == ChangeDecoder().table(payloads, name)
    assert {table for table, _ in batches} == set(names)


def test_an_unknown_table_is_refused_and_leaves_the_decoder_unchanged() -> None:
    first, second = table_that_grows()
    decoder = ChangeDecoder()
    decoder.decode(first)
    with pytest.raises(KeyError, match=r"no message has described 'public\.nope'; there are public\.t16385"):
        list(decoder.tables_batches(second, ["public.t16385", "public.nope"]))
    assert [row["position"] for row in decoder.decode(second).to_pylist()] == [8]


def test_undecided_returns_changes_or_rows_of_a_table() -> None:
    decoder = ChangeDecoder()
    for batch in table_that_grows():
        decoder.decode(batch)
    assert decoder.n_undecided == 1
    (change,) = decoder.undecided().to_pylist()
    assert (dict(change["new"]), change["committed"], change["position"]) == ({"n": "3", "v": "open"}, None, 11)
    (row,) = decoder.undecided("public.t16385").to_pylist()
    assert (row["n"], row["v"], row["_commit_position"], row["_position"]) == (3, "open", None, 11)
    assert decoder.undecided("public.t16386").num_rows == 0
    assert ChangeDecoder().n_undecided == 0
