"""Facts of a table that messages describe alike before and after it was altered, as files state them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode import RelationCatalog, snapshot
from pgdecode.capture.catalog.file_catalog import CatalogContents, FileCatalog
from pgdecode.capture.frames import Messages
from pgdecode.capture.undecided import SessionState
from pgdecode.files.file_metadata import CATALOG_KEY
from pgdecode.lake import StaleTables, apply
from pgdecode.protocol.messages import Column, Relation
from pgdecode.relations.relation_facts import RelationFacts
from support.generators.slot import Slot

TABLE = 16385


class Table(NamedTuple):
    """The table in the server's catalog: its columns by their numbers, all numbers so far, and its file.

    It was altered before the last row of its chunk, or after it.
    """

    columns: dict[int, str]
    n_attributes: int
    file: int = TABLE
    is_after: bool = False

    def read(self, altered: int, relations: set[Relation]) -> CatalogContents:
        names = [*self.columns.values()]
        storage, none = ((TABLE, self.file),), (None,) * len(names)
        facts = RelationFacts((*self.columns,), none, (1,), storage, self.n_attributes, has_same_list=True)
        found = {item: facts for item in relations if [c.name for c in item.columns] == names}
        if not found:
            present = Relation(TABLE, "public", "t", "d", tuple(Column(0, name, 25, -1) for name in names))
            found = {present: facts}
        return CatalogContents((), found, {TABLE: altered})


ONE = Table({1: "id"}, 1)
OLD = Table({1: "id", 2: "a"}, 2)
ADDED = Table({1: "id", 2: "a", 3: "b"}, 3)
DROPPED = OLD._replace(n_attributes=3)
AGAIN = Table({1: "id", 3: "a"}, 3)
LAST = Table({1: "id", 4: "a"}, 4)
UNKNOWN = (None, ["a"])

# Each chunk: the columns of each of its rows, which a description precedes, and the table when they have arrived.
Chunk = tuple[tuple[str, ...], Table]


class Captured(NamedTuple):
    payloads: pa.Table
    catalog: RelationCatalog


def captured(*runs: list[list[Chunk]]) -> Captured:
    """Record the files of runs, and what their footers state. A chunk without rows is the end of its file."""
    slot, facts = Slot(), []
    looks: list[tuple[Table, int]] = []  # with the xid that altered it last

    def read(oids: set[int], relations: set[Relation]) -> CatalogContents:
        table, altered = looks[-1]
        return table.read(altered, relations)

    for files in runs:
        state, catalog = SessionState(), FileCatalog(read)
        for chunks in files:
            state.begin_file()
            catalog.begin_file()
            for rows, table in chunks:
                first = len(slot.payloads)
                for names in rows:
                    number = len(slot.payloads) // 4 + 1
                    slot.begin(700 + 10 * number)
                    slot.relation(TABLE, names.split(), name="t", keys=["id"])
                    slot.insert(TABLE, str(number), *(f"{name}{number}" for name in names.split()[1:]))
                    slot.commit()
                altered = 700 + 10 * (len(slot.payloads) // 4) + (5 if table.is_after or not rows else -5)
                is_same = bool(looks) and table[:3] == looks[-1][0][:3]
                looks.append((table, looks[-1][1] if is_same else altered))
                data = slot.payloads[first:]
                batch = pa.record_batch({"seq": pa.array(range(first, len(slot.payloads))), "data": pa.array(data)})
                if data:
                    state.add(Messages(batch, b"".join(item[:1] for item in data)), 0, len(data))
                    catalog.update(state)
            facts += RelationCatalog.from_json(catalog.keys(state)[CATALOG_KEY]).facts
    payloads = pa.table({"seq": pa.array(range(len(slot.payloads))), "data": pa.array(slot.payloads, pa.binary())})
    return Captured(payloads, RelationCatalog((), facts))


def apply_all(given: Captured, folder: Path) -> list[dict[str, str]]:
    pq.write_table(given.payloads, folder / "raw.parquet")
    apply(folder / "raw.parquet", f"parquet:{folder / 'lake'}", catalog=given.catalog)
    paths = sorted((folder / "lake" / "public.t").rglob("*.parquet"))
    rows: list[dict[str, str]] = pa.concat_tables([pq.read_table(path) for path in paths]).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        pytest.param(
            [[[(("id a",), OLD), (("id a b",), ADDED), (("id a",), LAST)]]],
            [(None, []), (None, []), ("a3", [])],
            id="after another version",
        ),
        pytest.param([[[(("id a",), OLD), (("id a",), AGAIN)]]], [UNKNOWN, ("a2", [])], id="in one file"),
        pytest.param(
            [[[(("id a",), OLD)], [(("id a",), OLD), (("id a",), AGAIN)]]],
            [UNKNOWN, UNKNOWN, ("a3", [])],
            id="in a later file",
        ),
        pytest.param(
            [[[(("id a",), OLD), ((), AGAIN)], [(("id a", "id a"), AGAIN)]]],
            [UNKNOWN, UNKNOWN, ("a3", [])],
            id="in the catalog before in the messages",
        ),
        pytest.param(
            [[[(("id a",), OLD)]], [[(("id a", "id a"), AGAIN)]]],
            [UNKNOWN, UNKNOWN, ("a3", [])],
            id="in a later run",
        ),
        pytest.param([[[(("id a", "id a"), AGAIN)]]], [UNKNOWN, ("a2", [])], id="before the first look"),
        pytest.param(
            [[[(("id a",), OLD), (("id a", "id a", "id a"), AGAIN)]]],
            [UNKNOWN, UNKNOWN, UNKNOWN, ("a4", [])],
            id="before a late look",
        ),
        pytest.param(
            [[[(("id",), ONE)], [(("id a",), AGAIN._replace(is_after=True))]], [[(("id a",), AGAIN)]]],
            [UNKNOWN, UNKNOWN, ("a3", [])],
            id="after the last row before the look",
        ),
        pytest.param(
            [[[(("id a",), AGAIN._replace(is_after=True))]], [[(("id a",), AGAIN)]]],
            [UNKNOWN, ("a2", [])],
            id="after the last row before the first look",
        ),
    ],
)
def test_rows_have_no_value_of_a_column_that_was_dropped_and_added_again(
    runs: list[list[list[Chunk]]], expected: list[tuple[str | None, list[str]]], tmp_path: Path
) -> None:
    given = captured(*runs)
    rows = snapshot(given.payloads["data"], "public.t", given.payloads["seq"], catalog=given.catalog).to_pylist()
    assert [(row["a"], row["_unknown"]) for row in rows] == expected
    if UNKNOWN in expected:
        with pytest.raises(StaleTables, match="'a' was added, and its values in older rows are not known"):
            apply_all(given, tmp_path)
    else:
        assert [row["a"] for row in apply_all(given, tmp_path)] == [value for value, _ in expected]


def test_a_look_within_the_transaction_that_alters_a_table_counts_for_its_last_message() -> None:
    slot, state = Slot(), SessionState()
    catalog = FileCatalog(lambda oids, relations: AGAIN.read(700, relations))
    for number in range(2):  # a look after each block: the column was dropped and added again after the first one
        first = len(slot.payloads)
        slot.start(700, first=number == 0)
        slot.relation(TABLE, ["id", "a"], name="t", keys=["id"], xid=700)
        slot.insert(TABLE, str(number), "a", xid=700)
        slot.stop()
        data = slot.payloads[first:]
        batch = pa.record_batch({"seq": pa.array(range(first, len(slot.payloads))), "data": pa.array(data)})
        state.add(Messages(batch, b"".join(item[:1] for item in data)), 0, len(data))
        catalog.update(state)
    facts = RelationCatalog.from_json(catalog.keys(state)[CATALOG_KEY]).facts
    assert [(item.position, item.facts.attnums) for item in facts] == [(5, (1, 3))]


def test_a_column_that_is_added_and_dropped_within_a_file_is_null_unless_the_table_was_rewritten(
    tmp_path: Path,
) -> None:
    for file, again in ((TABLE, DROPPED), (7, DROPPED._replace(file=7))):
        folder = tmp_path / str(file)
        folder.mkdir()
        given = captured([[(("id a",), OLD), (("id a b",), ADDED._replace(file=file)), (("id a",), again)]])
        if file == TABLE:
            assert [row["a"] for row in apply_all(given, folder)] == ["a1", "a2", "a3"]
        else:
            with pytest.raises(StaleTables, match="'b' was added, and its values in older rows are not known"):
                apply_all(given, folder)


def altered_again(rng: random.Random, now: dict[int, str], n: int) -> tuple[dict[int, str], int]:
    """Drop a column, and perhaps add one with its name, or add one."""
    name = rng.choice("ab")
    left = {number: other for number, other in now.items() if other != name}
    if len(left) == len(now) or rng.random() < 0.6:
        n += 1
        left[n] = name
    return left, n


@pytest.mark.parametrize("most_rows", [pytest.param(1, id="a look after each row"), pytest.param(3, id="late looks")])
@given(rng=st.randoms(use_true_random=False))
def test_no_row_has_a_value_of_another_column_after_random_changes_of_columns(
    most_rows: int, rng: random.Random
) -> None:
    now, n, n_rows = {1: "id", 2: "a"}, 2, 0
    described = now
    sent: list[dict[int, str]] = []  # for each row, values by the numbers of its columns
    runs: list[list[list[Chunk]]] = []
    for _ in range(rng.randint(1, 2)):
        files: list[list[Chunk]] = []
        for _ in range(rng.randint(1, 3)):
            chunks: list[Chunk] = []
            for _ in range(rng.randint(1, 3)):
                rows = []
                for _ in range(rng.randint(1, most_rows)):
                    for _ in range(rng.choice([0, 0, 1, 2]) if sent else 0):
                        now, n = altered_again(rng, now, n)
                    n_rows += 1
                    rows.append(" ".join(now.values()))
                    described = now
                    sent.append({number: f"{name}{n_rows}" for number, name in now.items()})
                is_after = rng.random() < 0.3
                for _ in range(is_after):
                    now, n = altered_again(rng, now, n)
                chunks.append((tuple(rows), Table(dict(now), n, is_after=is_after)))
            files.append(chunks)
        runs.append(files)
    raw = captured(*runs)
    rows_now = snapshot(raw.payloads["data"], "public.t", raw.payloads["seq"], catalog=raw.catalog).to_pylist()
    for row, values in zip(sorted(rows_now, key=lambda row: int(row["id"])), sent, strict=True):
        for number, name in described.items():
            if name != "id" and name not in row["_unknown"]:
                assert row[name] == values.get(number)
