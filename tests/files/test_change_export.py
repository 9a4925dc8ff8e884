"""Tables from files whose columns change: read once, or twice where all rows are in one file."""

from __future__ import annotations

import gc
import random
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import State
from pgdecode.datasets.target import target_at
from pgdecode.files import change_export
from pgdecode.files.change_export import ChangeTotals, convert_changes
from pgdecode.files.change_reader import FileChangeOptions, FileChanges, TableError
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault
from pgdecode.net.snapshot import snapshot
from pgdecode.payloads.workers import Workers
from pgdecode.protocol import messages as m
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.rows.options import Options
from support import captures
from support.change_files import library_table
from support.generators.slot import RandomSlot, Slot
from support.shell import written
from support.tiers import full, long

T, U = 16385, 16386  # OIDs of tables
INT2, INT4, TEXT, DATE = 21, 23, 25, 1082
MOOD = 16400  # OID of a user-defined type


def converted(
    path: Path,
    *tables: str,
    batch_rows: int,
    mode: str = "FAILFAST",
    is_snapshot: bool = False,
    reported: list[int] | None = None,
    catalog: RelationCatalog | None = None,
) -> ChangeTotals:
    """Decode tables to out.parquet, or to the folder out."""
    files = ordered_files(path, "data", "seq")
    target = Path("out.parquet" if len(tables) == 1 else "out")
    with target_at(target, as_file=len(tables) == 1).begin(tables, {}) as run:
        totals, _ = convert_changes(
            files,
            run,
            relations=tables,
            is_snapshot=is_snapshot,
            format="parquet",
            options=FileChangeOptions(Options(mode=mode), catalog=catalog),
            batch_rows=batch_rows,
            on_rows=([] if reported is None else reported).append,
        )
        run.commit(Manifest("local", tables, files=totals.files), State())
    return totals


def saved(slot: Slot) -> Path:
    return written("in.parquet", slot.payloads, seq=range(len(slot.payloads)))


def described_late(relation_id: int) -> Slot:
    """Three transactions of T. The last one describes a relation again."""
    slot = Slot()
    for xid in (7, 8, 9):
        slot.begin(xid)
        if xid == 7:
            slot.relation(T, ["n"], types=[INT2])
        if xid == 9:
            slot.relation(relation_id, ["n", "v"], types=[INT4, TEXT])
            slot.insert(relation_id, "70000", "a")
        else:
            slot.insert(T, str(xid))
        slot.commit()
    return slot


@pytest.mark.usefixtures("run")
def test_a_table_without_late_versions_is_decoded_in_one_pass() -> None:
    path = saved(described_late(U))
    reported: list[int] = []
    totals = converted(path, "public.t16385", batch_rows=4, reported=reported)
    assert min(reported) > 0
    assert sum(reported) == 11
    assert (totals.changes, totals.bad_rows) == (2, {})
    assert pq.read_table("out.parquet")["n"].to_pylist() == [7, 8]


@pytest.mark.usefixtures("run")
def test_a_file_of_a_table_with_a_late_version_has_the_last_columns() -> None:
    path = saved(described_late(T))
    reported: list[int] = []
    totals = converted(path, "public.t16385", batch_rows=4, reported=reported)
    assert [n for n in reported if n < 0] == [-11]
    assert sum(reported) == 11
    assert totals.changes == 3
    found = pq.read_table("out.parquet")
    assert found.schema.field("n").type == pa.int32()
    assert found.select(["n", "v"]).to_pylist() == [{"n": 7, "v": None}, {"n": 8, "v": None}, {"n": 70000, "v": "a"}]


def date_then_text(n_before: int = 0) -> Slot:
    """A date that Arrow cannot represent, after some that it can, in a column that becomes text."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["d"], types=[DATE])
    for _ in range(n_before):
        slot.insert(T, "2001-02-03")
    if not n_before:
        slot.insert(T, "infinity")
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["d"], types=[TEXT])
    slot.insert(T, "never")
    slot.commit()
    return slot


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_snapshot", [False, True], ids=["table", "snapshot"])
@pytest.mark.parametrize("is_bad", [False, True], ids=["late version", "bad value"])
def test_an_attempt_that_failed_does_not_stay_in_memory(
    is_bad: bool, is_snapshot: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = date_then_text(n_before=0 if is_bad else 1)
    path = written("in.parquet", slot.payloads)
    alive: weakref.WeakSet[FileChanges] = weakref.WeakSet()
    n_alive = []

    def counted(*args: Any, **options: Any) -> FileChanges:
        # A worker that has just raised an error may still hold it.
        deadline = time.monotonic() + 5
        while len(alive) and time.monotonic() < deadline:
            time.sleep(0.01)
        n_alive.append(len(alive))
        reader = FileChanges(*args, **options)
        alive.add(reader)
        return reader

    monkeypatch.setattr(change_export, "FileChanges", counted)
    gc.disable()
    try:
        target = target_at(Path("out.parquet"), as_file=True)
        with Workers(workers) as threads, suppress(FileFault), target.begin(["public.t16385"], {}) as run:
            convert_changes(
                ordered_files(path, "data", None),
                run,
                relations=["public.t16385"],
                is_snapshot=is_snapshot,
                format="parquet",
                options=FileChangeOptions(),
                batch_rows=4,
                workers=threads,
            )
    finally:
        gc.enable()
    assert n_alive == [0, 0]
    assert pq.read_table("out.parquet")["d"].to_pylist()[-1] == "never"


@pytest.mark.usefixtures("run")
def test_a_value_that_fits_a_later_type_is_no_fault() -> None:
    assert converted(saved(date_then_text()), "public.t16385", batch_rows=4).changes == 2
    assert pq.read_table("out.parquet")["d"].to_pylist() == ["infinity", "never"]


@pytest.mark.usefixtures("run")
def test_a_fault_is_reported_as_without_speculation() -> None:
    slot = described_late(U)
    slot.payloads[5] = slot.payloads[5][:-1]
    with pytest.raises(FileFault, match=r"in\.parquet: row 5: "):
        converted(saved(slot), "public.t16385", batch_rows=4)


@pytest.mark.usefixtures("run")
def test_a_late_version_that_a_given_catalog_has_counts_as_the_newest() -> None:
    slot = described_late(T)
    catalog = RelationCatalog.from_messages(slot.payloads)
    assert [version.position for version in catalog] == [1, 8]
    converted(saved(slot), "public.t16385", batch_rows=4, catalog=catalog)
    assert pq.read_table("out.parquet").schema.field("n").metadata[b"pg:type"] == b"int4"


@pytest.mark.usefixtures("run")
def test_a_given_version_of_the_same_position_that_knew_fewer_types_is_another() -> None:
    slot = Slot()
    slot.send(m.Type(xid=None, type_id=MOOD, namespace="public", name="mood"))
    for xid in (7, 8):
        slot.begin(xid)
        slot.relation(T, ["v"], types=[MOOD])
        slot.insert(T, "glad")
        slot.commit()
    # This version was made without the Type message.
    catalog = RelationCatalog.from_messages([None, *slot.payloads[1:]])
    path = saved(slot)
    expected = library_table(path, "public.t16385", catalog=catalog)
    converted(path, "public.t16385", batch_rows=100, catalog=catalog)
    assert pq.read_table("out.parquet").to_pylist() == expected.to_pylist()


def judged_by_rows() -> Slot:
    """A version whose transaction only a row shows."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["n"])
    # A row of a stream without a start. It shows that the Relation message before it is of that stream.
    slot.insert(T, "1", xid=9)
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["n"])
    slot.insert(T, "2")
    slot.commit()
    return slot


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("batch_rows", [4, 100])
def test_relation_messages_are_judged_by_the_rows_around_them_too(batch_rows: int) -> None:
    assert_as_in_one_call(saved(judged_by_rows()), "public.t16385", batch_rows=batch_rows, mode="PERMISSIVE")


def assert_as_in_one_call(path: Path, *tables: str, batch_rows: int, mode: str = "FAILFAST") -> None:
    """Compare one file with the table of one call, and files of a folder with the tables of a call for each batch."""
    totals = converted(path, *tables, batch_rows=batch_rows, mode=mode)
    n_rows = 0
    for table in tables:
        if len(tables) == 1:
            files, expected = [Path("out.parquet")], [library_table(path, table, mode=mode)]
        else:
            files = [Path(f"out/{table}.parquet"), *sorted(Path("out").glob(f"{table}-*"), key=number_of)]
            expected = tables_by_schema(path, table, batch_rows, mode)
        assert len(files) == len(expected)
        for file, rows in zip(files, expected, strict=True):
            found = pq.read_table(file)
            # Parquet does not support structs without fields: `_old` of a table without columns.
            assert set(rows.schema.names) - set(found.schema.names) <= {"_old"}
            assert all(found.schema.field(name).equals(rows.schema.field(name)) for name in found.schema.names)
            # Compared as text, because NaN equals itself there.
            assert repr(found.to_pylist()) == repr(rows.select(found.schema.names).to_pylist())
            n_rows += len(rows)
    assert totals.changes == n_rows


def number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def tables_by_schema(path: Path, table: str, batch_rows: int, mode: str) -> list[pa.Table]:
    """Decode a table in one call for each batch, and join what has the same schema."""
    decoder = ChangeDecoder(mode=mode)  # type: ignore[arg-type]
    source = pq.read_table(path)
    found: list[list[pa.RecordBatch]] = []
    for start in range(0, len(source), batch_rows):
        batch = source.slice(start, batch_rows)
        try:
            rows = decoder.table(batch["data"], table, batch["seq"])
        except KeyError:
            decoder.decode(batch["data"], batch["seq"])
            continue
        if not len(rows):
            continue
        if not found or not rows.schema.equals(found[-1][-1].schema, check_metadata=True):
            found.append([])
        found[-1].append(rows)
    if not found:
        found = [[pa.RecordBatch.from_pylist([], decoder.table_schema(table))]]
    return [pa.Table.from_batches(batches) for batches in found]


@pytest.mark.full
@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("name", ["14.shop.v1", "16.txns.v2", "18.streams.v4", "18.twophase.v3", "18.shop.v1"])
@pytest.mark.parametrize("batch_rows", [long(1), 7, long(40), 10**6])
def test_tables_of_a_capture_are_those_of_one_call(name: str, batch_rows: int) -> None:
    column = captures.capture(name).column
    path = written("in.parquet", column.to_pylist(), seq=range(len(column)))
    tables = RelationCatalog.from_messages(column).names
    # Arrow's timestamps cannot represent some values, such as infinity.
    assert_as_in_one_call(path, *tables, batch_rows=batch_rows, mode="PERMISSIVE")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("seed", [*range(5), *map(full, range(5, 20))])
def test_tables_with_any_history_are_those_of_one_call(seed: int) -> None:
    rng = random.Random(seed)
    path = saved(RandomSlot(rng, rng.choice([3, 20, 60])))
    for tables in (["public.t20001"], ["public.t20003", "public.t20002"]):
        assert_as_in_one_call(path, *tables, batch_rows=rng.choice([1, 5, 30, 1000]))


# -- rows at the end -------------------------------------------------------------------------------------------------


def assert_snapshot_as_in_one_call(path: Path, table: str, *, batch_rows: int, mode: str) -> None:
    found = pq.read_table(path)
    Path("out.parquet").unlink(missing_ok=True)
    try:
        expected = snapshot(found["data"], table, found["seq"], mode=mode)
    except (KeyError, ValueError):
        with pytest.raises((TableError, FileFault)):
            converted(path, table, batch_rows=batch_rows, mode=mode, is_snapshot=True)
        return
    assert converted(path, table, batch_rows=batch_rows, mode=mode, is_snapshot=True).changes == len(expected)
    rows = pq.read_table("out.parquet")
    assert repr(rows.to_pylist()) == repr(expected.to_pylist())
    assert rows.schema.equals(expected.schema)
    assert rows.schema.metadata == expected.schema.metadata


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("seed", [*range(5), *map(full, range(5, 20))])
def test_a_snapshot_with_any_history_is_that_of_one_call(seed: int) -> None:
    rng = random.Random(seed)
    path = saved(RandomSlot(rng, rng.choice([3, 20, 60])))
    for table in ("public.t20001", "public.t20002"):
        mode = rng.choice(["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
        assert_snapshot_as_in_one_call(path, table, batch_rows=rng.choice([1, 5, 30, 1000]), mode=mode)


@pytest.mark.usefixtures("run")
def test_a_snapshot_without_late_versions_is_made_in_one_pass() -> None:
    path = saved(described_late(U))
    reported: list[int] = []
    totals = converted(path, "public.t16385", batch_rows=4, is_snapshot=True, reported=reported)
    assert min(reported) > 0
    assert sum(reported) == 11
    assert totals.changes == 2
    assert pq.read_table("out.parquet")["n"].to_pylist() == [7, 8]


def named_late(relation_id: int, name: str) -> Slot:
    """Two transactions: T is inserted into; then a relation of this OID and name is described and inserted into."""
    slot = Slot()
    for xid, oid, called in ((7, T, "t"), (8, relation_id, name)):
        slot.begin(xid)
        slot.relation(oid, ["n"], name=called)
        slot.insert(oid, str(xid))
        slot.commit()
    return slot


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("relation_id", "name", "expected"),
    [
        pytest.param(T, "renamed", None, id="the table is renamed"),
        pytest.param(U, "t", ["8"], id="another table takes the name"),
        pytest.param(U, "other", ["7"], id="another table with another name"),
    ],
)
def test_a_snapshot_is_of_the_table_that_has_the_name_at_the_end(
    relation_id: int, name: str, expected: list[str] | None
) -> None:
    path = saved(named_late(relation_id, name))
    if expected is None:
        with pytest.raises(TableError, match=r"was renamed to 'public\.renamed'"):
            converted(path, "public.t", batch_rows=4, is_snapshot=True)
        converted(path, "public.renamed", batch_rows=4, is_snapshot=True)
        assert pq.read_table("out.parquet")["n"].to_pylist() == ["7", "8"]
    else:
        converted(path, "public.t", batch_rows=4, is_snapshot=True)
        assert pq.read_table("out.parquet")["n"].to_pylist() == expected


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("batch_rows", [4, 100])
def test_versions_of_a_snapshot_are_judged_by_the_rows_around_them_too(batch_rows: int) -> None:
    assert_snapshot_as_in_one_call(saved(judged_by_rows()), "public.t16385", batch_rows=batch_rows, mode="PERMISSIVE")
