"""What `apply` does when tables change, are renamed, dropped or copied, and when the input does not follow."""

from __future__ import annotations

import json
import shutil
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake.lakes import Lake
from lake.memory_target import MemoryTarget
from net.test_net_public_cases import T, begun, with_facts

from pgdecode import RelationCatalog
from pgdecode.datasets.errors import RunError
from pgdecode.files.payload_file import FileFault
from pgdecode.lake import StaleTables, apply
from pgdecode.lake.applied import Applied
from pgdecode.storage.errors import PathError
from support import captures
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

TABLE = f"public.t{T}"
OTHER = T + 1


def memory() -> Lake:
    target = MemoryTarget()
    return Lake(target, lambda name: target.read(name).read_all())


def next_transaction(slot: Slot, xid: int) -> int:
    slot.commit()
    cut = len(slot.payloads)
    slot.begin(xid)
    return cut


def written(folder: Path, slot: Slot, start: int = 0, end: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    payloads = slot.payloads[start:end]
    table = {"seq": pa.array(range(start, start + len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())}
    pq.write_table(pa.table(table), folder / f"part-{start:08d}.parquet")
    return folder


def test_columns_may_have_the_names_of_those_that_changes_have(lake: Lake, tmp_path: Path) -> None:
    slot = Slot()
    slot.begin(700)
    names = ["_op", "_action", "_unknown", "_key_before", "_old"]
    slot.relation(T, names, keys=["_op"])
    slot.insert(T, "1", "a", "large", None, "")
    slot.insert(T, "2", "b", "x", "k", "")
    first = next_transaction(slot, 701)
    slot.update(T, "3", "c", UNCHANGED, "k", "", old=["1", None, None, None, None], old_type="K")
    slot.delete(T, "2", None, None, None, None, old_type="K")
    second = next_transaction(slot, 702)
    slot.relation(T, [*names[:3], "_position", *names[4:]], keys=["_op"], types=[25, 25, 25, 25, 25])
    slot.insert(T, "4", "d", "y", "p", "")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [first, second])
    assert lake.read(TABLE).schema.names == [*names[:3], "_position", "_old"]
    assert lake.rows() == [("3", "c", "large", "k", ""), ("4", "d", "y", "p", "")]


def test_name_clash_renames_only_columns_with_names_of_changes_and_errors_have_the_names_that_were_sent(
    tmp_path: Path,
) -> None:
    slot, lake = Slot(), memory()
    slot.begin(700)
    slot.relation(T, ["id", "_op", "_action"], keys=["id"])
    facts = [with_facts(slot)]
    slot.insert(T, "1", "a", "b")
    next_transaction(slot, 701)
    slot.relation(T, ["id", "_op", "_action", "_error"], keys=["id"])
    facts.append(with_facts(slot, "c"))
    slot.insert(T, "2", "a", "b", "d")
    slot.commit()
    raw = written(tmp_path / "raw", slot)
    with pytest.raises(PathError, match="column '_op' is text and cannot be read as 'int4'"):
        apply(raw, lake.target, columns={TABLE: {"_op": "int4"}})
    apply(raw, lake.target, name_clash="rename", catalog=RelationCatalog([], facts))
    assert lake.read(TABLE).schema.names == ["id", "_op_", "_action", "_error_"]
    assert lake.rows() == [("1", "a", "b", "c"), ("2", "a", "b", "d")]


@pytest.mark.parametrize("is_new", [False, True], ids=["known table", "new table"])
def test_only_the_table_with_a_value_that_arrow_does_not_have_stays_behind(
    lake: Lake, tmp_path: Path, is_new: bool
) -> None:
    slot, raw = Slot(), tmp_path / "raw"
    slot.begin(700)
    slot.relation(OTHER, ["id"], keys=["id"])
    slot.insert(OTHER, "1")
    slot.relation(T, ["id", "_error"], keys=["id"], types=[25, 1184])
    if not is_new:
        slot.insert(T, "1", "2026-11-28 12:00:00+00")
    cuts = [0, next_transaction(slot, 701)]
    slot.insert(T, "2", "2026-11-28 12:00:00+00")
    slot.insert(T, "3", "infinity")
    slot.insert(OTHER, "2")
    cuts.append(next_transaction(slot, 702))
    slot.insert(T, "4", "-infinity")
    slot.insert(OTHER, "3")
    cuts.append(next_transaction(slot, 703))
    slot.insert(T, "5", "infinity")
    slot.truncate(T)
    slot.insert(T, "6", "2026-11-28 12:00:00+00")
    slot.commit()
    for n_batches, (start, end) in enumerate(pairwise([*cuts, len(slot.payloads)])):
        written(raw, slot, start, end)
        if n_batches in (1, 2):
            for _ in range(2):
                with pytest.raises(StaleTables, match=f"{TABLE}: position {cuts[1] + 2}: column '_error' does not fit"):
                    apply(raw, lake.target, workers=1)
            assert is_new or len(lake.rows()) == 1
            assert lake.rows(f"public.t{OTHER}") == [(str(number),) for number in range(1, n_batches + 2)]
        else:
            apply(raw, lake.target, workers=1)
    assert [row[0] for row in lake.rows()] == ["6"]
    assert len(lake.rows(f"public.t{OTHER}")) == 3
    # A value that is no time is an error of the call.
    slot.begin(704)
    slot.insert(OTHER, "4")
    slot.insert(T, "7", "infinity")
    slot.insert(T, "8", "never")
    slot.commit()
    written(raw, slot, slot.payloads.index(slot.payloads[-1]) - 4)
    with pytest.raises(FileFault, match="column '_error'"):
        apply(raw, lake.target, workers=1)


# -- columns ---------------------------------------------------------------------------------------------------------


def test_columns_are_dropped_renamed_and_widened_with_the_rows(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* a b c", types=[25, 25, 23, 25])
    slot.insert(T, "1", "x", "7", "gone")
    first = next_transaction(slot, 701)
    # Without facts, the order of columns shows the rename.
    slot.relation(T, ["id", "renamed", "b"], keys=["id"], types=[25, 25, 20])
    slot.update(T, "1", UNCHANGED, "8000000000")
    slot.insert(T, "2", "y", "9")
    second = next_transaction(slot, 702)
    slot.relation(T, ["id", "renamed", "b"], keys=["id"], types=[25, 25, 25])
    slot.insert(T, "3", "z", "text")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [first, second])
    assert lake.rows() == [("1", "x", "8000000000"), ("2", "y", "9"), ("3", "z", "text")]
    assert lake.read(TABLE).schema.names == ["id", "renamed", "b"]


def test_ignored_changes_leave_the_columns_of_the_target(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* a b", types=[25, 25, 23])
    slot.insert(T, "1", "x", "7")
    slot.insert(T, "5", "x", "7")
    first = next_transaction(slot, 701)
    slot.relation(T, ["id", "renamed", "b", "new"], keys=["id"], types=[25, 25, 20, 25])
    slot.update(T, "1", UNCHANGED, "8", "n")
    slot.update(T, "2", UNCHANGED, "8", "n", old=["5", None, None, None], old_type="K")
    second = next_transaction(slot, 702)
    slot.relation(T, ["id", "renamed", "new"], keys=["id"])
    slot.update(T, "1", "z", "n")
    slot.insert(T, "3", "w", "n")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [first, second], schema_changes="ignore")
    assert lake.read(TABLE).schema.names == ["id", "a", "b"]
    assert lake.rows() == [("1", "z", 8), ("2", "x", 8), ("3", "w", None)]


def test_a_target_that_is_no_text_is_refused_by_its_type(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^target is a str such as 'parquet:FOLDER', or a Target, not PosixPath$"):
        apply(tmp_path, tmp_path / "lake")  # type: ignore[arg-type]


def test_a_call_that_refuses_other_columns_names_the_change_and_changes_nothing(tmp_path: Path) -> None:
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    cut = next_transaction(slot, 701)
    slot.insert(T, "2", "x")
    slot.relation(T, ["id", "b"], keys=["id"])
    slot.insert(T, "3", "x")
    slot.commit()
    lake = memory()
    with pytest.raises(RunError, match=rf"table {TABLE}: position \d+: column 'b' was added, column 'a' was dropped"):
        lake.apply_batches(tmp_path / "raw", slot.payloads, [cut], schema_changes="fail")
    assert lake.rows() == [("1", "x")]


def test_a_table_with_unknown_values_stays_until_a_copy_mends_it(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* a")
    slot.relation(OTHER, ["id", "a"], keys=["id"])
    slot.insert(T, "1", "x")
    slot.insert(OTHER, "1", "x")
    first = next_transaction(slot, 701)
    slot.insert(T, "2", "last good")
    slot.commit()
    slot.begin(702)
    slot.relation(T, ["id", "a", "now"], keys=["id"])
    slot.insert(T, "3", "z", "12:00")
    slot.insert(OTHER, "2", "y")
    second = next_transaction(slot, 703)
    slot.truncate(T)
    slot.insert(T, "1", "copied", "11:00")
    slot.commit()
    raw = written(tmp_path / "raw", slot, 0, first)
    apply(raw, lake.target)
    written(raw, slot, first, second)
    for _ in range(2):
        with pytest.raises(StaleTables, match=f"table {TABLE}: position {second - 3}: column 'now' was added"):
            apply(raw, lake.target)
        assert lake.rows() == [("1", "x")]
        assert lake.rows(f"public.t{OTHER}") == [("1", "x"), ("2", "y")]
    written(raw, slot, second)
    apply(raw, lake.target)
    assert lake.rows() == [("1", "copied", "11:00")]
    assert lake.rows(f"public.t{OTHER}") == [("1", "x"), ("2", "y")]


# -- tables ----------------------------------------------------------------------------------------------------------


def test_a_renamed_table_is_built_under_its_new_name_and_the_old_one_stays(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    first = next_transaction(slot, 701)
    slot.insert(T, "2", "x")
    slot.relation(T, ["id", "a"], keys=["id"], name="now")
    slot.update(T, "1", "renamed")
    second = next_transaction(slot, 702)
    slot.insert(T, "3", "x")
    slot.commit()
    result = lake.apply_batches(tmp_path / "raw", slot.payloads, [first, second])
    assert lake.rows("public.now") == [("1", "renamed"), ("2", "x"), ("3", "x")]
    assert lake.rows() == [("1", "x"), ("2", "x")]
    assert [*result.tables] == ["public.now"]


def test_a_table_that_is_renamed_while_it_is_stale_goes_on_under_its_new_name(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* at", types=[25, 1184])
    slot.insert(T, "1", "2026-11-28 12:00:00+00")
    cuts = [next_transaction(slot, 701)]
    slot.insert(T, "2", "infinity")
    cuts.append(next_transaction(slot, 702))
    slot.relation(T, ["id", "at"], keys=["id"], types=[25, 1184], name="now")
    slot.insert(T, "3", "2026-11-28 12:00:00+00")
    cuts.append(next_transaction(slot, 703))
    slot.truncate(T)
    slot.insert(T, "4", "2026-11-28 12:00:00+00")
    cuts.append(next_transaction(slot, 704))
    slot.insert(T, "5", "2026-11-28 12:00:00+00")
    slot.commit()
    result = lake.apply_batches(tmp_path / "raw", slot.payloads, cuts)
    assert [row[0] for row in lake.rows("public.now")] == ["4", "5"]
    assert [*result.tables] == ["public.now"]


def test_a_table_that_was_dropped_and_made_again_is_made_anew(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    first = next_transaction(slot, 701)
    slot.insert(T, "2", "x")
    slot.relation(OTHER, ["key", "b"], keys=["key"], name=f"t{T}")
    slot.insert(OTHER, "1", "again")
    second = next_transaction(slot, 702)
    slot.insert(OTHER, "2", "again")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [first, second])
    assert lake.rows() == [("1", "again"), ("2", "again")]
    assert lake.read(TABLE).schema.names == ["key", "b"]


def test_a_table_that_is_made_again_many_times_in_one_batch_has_the_rows_of_the_last(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* a")
    slot.insert(T, "0", "first")
    for number in range(1, 20):
        next_transaction(slot, 700 + number)
        slot.relation(T + number, ["id", "a"], keys=["id"], name=f"t{T}")
        slot.insert(T + number, str(number), "again")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [])
    assert lake.rows() == [("19", "again")]


def test_a_table_that_was_made_again_keeps_its_rows_while_another_is_stale(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* at", types=[25, 1184])
    slot.insert(T, "1", "2026-11-28 12:00:00+00")
    cuts = [next_transaction(slot, 701)]
    slot.insert(T, "2", "infinity")
    for number, value in enumerate(("first", "second", "third")):
        slot.relation(OTHER + number, ["id", "v"], keys=["id"], name="again")
        slot.insert(OTHER + number, str(number), value)
        cuts.append(next_transaction(slot, 702 + number))
    slot.insert(OTHER + 2, "3", "third")
    slot.commit()
    # Each call reads the payloads again from the stale table's position on.
    lake.apply_batches(tmp_path / "raw", slot.payloads, cuts)
    assert lake.rows("public.again") == [("2", "third"), ("3", "third")]


@pytest.mark.parametrize("is_cut", [False, True], ids=["one batch", "batches"])
@pytest.mark.parametrize("is_renamed", [False, True], ids=["made", "renamed"])
def test_the_last_table_with_a_name_has_it_after_renames(tmp_path: Path, *, is_renamed: bool, is_cut: bool) -> None:
    lake = memory()
    slot = Slot()
    slot.begin(700)
    if is_renamed:
        slot.relation(OTHER, ["id", "a"], keys=["id"], name="before")
        slot.insert(OTHER, "1", "last")
    slot.relation(T, ["id", "a"], keys=["id"])
    slot.insert(T, "2", "first")
    cuts = [next_transaction(slot, 701)]
    slot.relation(T, ["id", "a"], keys=["id"], name="now")
    slot.insert(T, "3", "first")
    cuts.append(next_transaction(slot, 702))
    # The table was dropped.
    slot.relation(OTHER, ["id", "a"], keys=["id"], name="now")
    slot.insert(OTHER, "4", "last")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, cuts if is_cut else [])
    assert lake.rows("public.now") == ([("1", "last")] if is_renamed else []) + [("4", "last")]


def test_the_last_table_with_a_name_has_it_while_another_is_stale(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* at", types=[25, 1184])
    slot.insert(T, "1", "2026-11-28 12:00:00+00")
    slot.relation(OTHER, ["id", "a"], keys=["id"])
    slot.insert(OTHER, "1", "first")
    cuts = [next_transaction(slot, 701)]
    slot.insert(T, "2", "infinity")
    cuts.append(next_transaction(slot, 702))
    slot.insert(OTHER, "2", "first")
    cuts.append(next_transaction(slot, 703))
    slot.relation(OTHER, ["id", "a"], keys=["id"], name="now")
    slot.insert(OTHER, "3", "first")
    next_transaction(slot, 704)
    # The table was dropped.
    slot.relation(OTHER + 1, ["id", "a"], keys=["id"], name="now")
    slot.insert(OTHER + 1, "4", "last")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, cuts)
    assert lake.rows("public.now") == [("4", "last")]


@pytest.mark.parametrize("is_stale", [False, True], ids=["alone", "another is stale"])
@pytest.mark.parametrize("is_used_first", [False, True], ids=["made first", "renamed first"])
def test_a_table_that_was_renamed_and_one_that_was_made_with_its_name_are_both_there(
    tmp_path: Path, *, is_used_first: bool, is_stale: bool
) -> None:
    lake = memory()
    slot = begun("id* at", types=[25, 1184])
    slot.insert(T, "1", "2026-11-28 12:00:00+00")
    slot.relation(OTHER, ["id", "a"], keys=["id"], name="before")
    slot.insert(OTHER, "1", "renamed")
    cuts = [next_transaction(slot, 701)]
    slot.insert(T, "2", "infinity" if is_stale else "2026-11-28 12:00:00+00")
    slot.insert(OTHER, "2", "renamed")
    cuts.append(next_transaction(slot, 702))
    if is_used_first:
        slot.relation(OTHER, ["id", "a"], keys=["id"], name="now")
        slot.insert(OTHER, "3", "renamed")
        next_transaction(slot, 703)
    slot.relation(OTHER + 1, ["id", "a"], keys=["id"], name="before")
    slot.insert(OTHER + 1, "4", "made")
    next_transaction(slot, 704)
    slot.relation(OTHER, ["id", "a"], keys=["id"], name="now")
    slot.insert(OTHER, "5", "renamed")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, cuts)
    numbers = ["1", "2", "3", "5"] if is_used_first else ["1", "2", "5"]
    assert lake.rows("public.now") == [(number, "renamed") for number in numbers]
    assert lake.rows("public.before") == [("4", "made")]


def test_a_table_that_is_renamed_leaves_its_name_to_another_and_is_renamed_again(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    next_transaction(slot, 701)
    slot.relation(T, ["id", "a"], keys=["id"], name="now")
    slot.insert(T, "2", "x")
    next_transaction(slot, 702)
    slot.relation(OTHER, ["id", "a"], keys=["id"], name="now")
    slot.insert(OTHER, "3", "y")
    next_transaction(slot, 703)
    slot.relation(T, ["id", "a"], keys=["id"], name="later")
    slot.insert(T, "4", "x")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [])
    assert lake.rows("public.now") == [("3", "y")]
    assert lake.rows("public.later") == [("1", "x"), ("2", "x"), ("4", "x")]


def test_a_table_that_is_named_later_is_read_from_the_beginning(tmp_path: Path) -> None:
    lake = memory()
    slot = begun("id* a")
    slot.relation(OTHER, ["id", "a"], keys=["id"])
    slot.insert(T, "1", "x")
    slot.insert(OTHER, "1", "x")
    cut = next_transaction(slot, 701)
    slot.insert(OTHER, "2", "x")
    slot.commit()
    raw = written(tmp_path / "raw", slot, 0, cut)
    apply(raw, lake.target, tables=[TABLE])
    written(raw, slot, cut)
    result = apply(raw, lake.target)
    assert lake.rows(f"public.t{OTHER}") == [("1", "x"), ("2", "x")]
    assert {item.position for item in result.tables.values()} == {len(slot.payloads) - 1}
    with pytest.raises(ValueError, match=r"table public\.nope: no committed transaction of"):
        apply(raw, lake.target, tables="public.nope")


def test_a_primary_key_of_the_catalog_is_the_key_of_a_full_identity(lake: Lake, tmp_path: Path) -> None:
    slot = begun("id* a*", identity="f")
    facts = [with_facts(slot)]
    slot.insert(T, "1", "x")
    slot.insert(T, "2", "x")
    cut = next_transaction(slot, 701)
    slot.update(T, "3", UNCHANGED, old=["1", "x"], old_type="O")
    slot.commit()
    lake.apply_batches(tmp_path / "raw", slot.payloads, [cut], catalog=RelationCatalog([], facts))
    assert lake.rows() == [("2", "x"), ("3", "x")]


# -- the input -------------------------------------------------------------------------------------------------------


def streamed() -> tuple[Slot, int]:
    """A streamed transaction in two parts, the second of which commits it; and where that begins."""
    slot = begun("id* a")
    slot.insert(T, "1", "x")
    slot.commit()
    slot.start(900, first=True)
    slot.payloads.append(slot.payloads[1][:1] + (900).to_bytes(4, "big") + slot.payloads[1][1:])
    slot.insert(T, "2", "streamed", xid=900)
    slot.stop()
    cut = len(slot.payloads)
    slot.start(900)
    slot.insert(T, "3", "streamed", xid=900)
    slot.stop()
    slot.stream_commit(900)
    return slot, cut


def test_payloads_of_open_transactions_are_not_stored_and_read_again(lake: Lake, tmp_path: Path) -> None:
    slot, cut = streamed()
    raw = written(tmp_path / "raw", slot, 0, cut)
    apply(raw, lake.target)
    assert lake.rows() == [("1", "x")]
    written(raw, slot, cut)
    apply(raw, lake.target)
    assert lake.rows() == [("1", "x"), ("2", "streamed"), ("3", "streamed")]


def test_missing_payloads_of_an_open_transaction_are_an_error(tmp_path: Path) -> None:
    lake = memory()
    slot, cut = streamed()
    raw = written(tmp_path / "raw", slot, 0, cut)
    apply(raw, lake.target)
    assert isinstance(lake.target, MemoryTarget)
    (state,) = (Applied.from_json(text) for text in lake.target._states.values())
    assert (state.position, state.restart_position) == (cut - 1, 4)
    shutil.rmtree(raw)
    written(raw, slot, cut)
    with pytest.raises(RunError, match="1 payloads of a transaction that had no end at the last run are missing: keep"):
        apply(raw, lake.target)
    assert lake.rows() == [("1", "x")]


def test_payloads_without_positions_are_counted_from_file_to_file(tmp_path: Path) -> None:
    lake = memory()
    slot, cut = streamed()
    raw = tmp_path / "raw"
    for start, end in ((0, 2), (2, cut), (cut, len(slot.payloads))):
        raw.mkdir(exist_ok=True)
        pq.write_table(
            pa.table({"data": pa.array(slot.payloads[start:end], pa.binary())}), raw / f"{start:04d}.parquet"
        )
        if end > 2:
            apply(raw, lake.target)
    assert lake.rows() == [("1", "x"), ("2", "streamed"), ("3", "streamed")]


@pytest.mark.parametrize("has_positions", [True, False])
def test_files_that_come_between_those_that_were_applied_are_an_error(has_positions: bool, tmp_path: Path) -> None:
    slot, cuts = begun("id* v"), [0]
    for xid in range(700, 705):
        if xid > 700:
            slot.begin(xid)
        slot.insert(T, f"{xid}", "x")
        slot.commit()
        cuts.append(len(slot.payloads))
    raw, lake = tmp_path / "raw", memory()

    def write(number: int) -> Path:
        written(raw, slot, *cuts[number : number + 2])
        path = raw / f"part-{cuts[number]:08d}.parquet"
        if not has_positions:
            pq.write_table(pq.read_table(path).drop_columns("seq"), path)
        return path

    first = write(0)
    write(2)
    apply(raw, lake.target)
    write(4)
    apply(raw, lake.target)
    late = write(1)
    error = (
        "3 payloads came too late: they are at or before" if has_positions else "part-.* were added or removed: keep"
    )
    for _ in range(2):
        with pytest.raises(RunError, match=error):
            apply(raw, lake.target)
    assert [row[0] for row in lake.rows()] == ["700", "702", "704"]
    late.unlink()
    # A file that has been applied may be deleted if others have positions of their own, and come back.
    first.unlink()
    if has_positions:
        apply(raw, lake.target)
        write(0)
    else:
        with pytest.raises(RunError, match=error):
            apply(raw, lake.target)
        write(0)
    assert apply(raw, lake.target).tables[TABLE].rows == 3


def transactions(xids: range) -> list[list[bytes]]:
    """Make transactions of one row each; the first has the columns too."""
    slot, found, start = begun("id* v"), list[list[bytes]](), 0
    for xid in xids:
        if start:
            slot.begin(xid)
        slot.insert(T, f"{xid}", "x")
        slot.commit()
        found.append(slot.payloads[start:])
        start = len(slot.payloads)
    return found


def counted(path: Path, payloads: list[bytes]) -> Path:
    """Write payloads without positions: as Parquet, or as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"data": pa.array(payloads, pa.binary())}), path)
    else:
        path.write_text("".join(json.dumps({"data": payload.hex()}) + "\n" for payload in payloads))
    return path


def test_counted_files_are_known_by_their_paths_in_the_source(tmp_path: Path) -> None:
    lake, raw = memory(), tmp_path / "raw"
    first, second, third, late = transactions(range(700, 704))
    for day, payloads in enumerate((first, second, third), 2):
        counted(raw / f"2026-01-{day:02d}" / "part-0.parquet", payloads)
        for _ in range(2):
            apply(raw, lake.target)
    assert [row[0] for row in lake.rows()] == ["700", "701", "702"]
    counted(raw / "2026-01-01" / "part-0.parquet", late)
    with pytest.raises(RunError, match=r"before the end of 2026-01-04/part-0\.parquet, .* were added or removed: keep"):
        apply(raw, lake.target)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_without_positions_may_be_renamed_and_grow(suffix: str, tmp_path: Path) -> None:
    lake = memory()
    first, second = transactions(range(700, 702))
    log = counted(tmp_path / f"log.{suffix}", first)
    apply(log, lake.target)
    archive = log.rename(tmp_path / f"archive.{suffix}")
    apply(archive, lake.target)
    counted(archive, first + second)
    assert apply(archive, lake.target).tables[TABLE].rows == 2


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("n_new", [1, 3, 5])
def test_a_file_without_positions_that_was_replaced_is_an_error(n_new: int, suffix: str, tmp_path: Path) -> None:
    lake = memory()
    first, second, *others = transactions(range(700, 708))
    log = counted(tmp_path / f"log.{suffix}", first)
    apply(log, lake.target)
    counted(log, first + second)
    apply(log, lake.target)
    n_applied, new = len(first + second), [*chain(*others[:n_new])]
    counted(log, new)
    error = "is not the one that was applied" if len(new) >= n_applied else f"has {len(new)} payloads, but all up to"
    for _ in range(2):
        with pytest.raises(RunError, match=error):
            apply(log, lake.target)
    assert len(lake.rows()) == 2
    counted(log, first + second + new)
    assert apply(log, lake.target).tables[TABLE].rows == 2 + n_new


def test_the_payload_at_the_last_position_is_known_after_a_call_with_until(tmp_path: Path) -> None:
    lake = memory()
    payloads = transactions(range(700, 704))
    log = counted(tmp_path / "log.jsonl", [*chain(*payloads)])
    lsn = int.from_bytes(payloads[1][0][1:9], "big")  # of the Begin message
    assert apply(log, lake.target, until=lsn).tables[TABLE].rows == 2
    assert apply(log, lake.target).tables[TABLE].rows == 4


def test_counted_files_that_were_cut_are_an_error(tmp_path: Path) -> None:
    lake, raw = memory(), tmp_path / "raw"
    first, second, third = transactions(range(700, 703))
    counted(raw / "0.parquet", first)
    part = counted(raw / "1.parquet", second)
    apply(raw, lake.target)
    counted(part, second[:-1])
    with pytest.raises(RunError, match="payloads, but all up to position"):
        apply(raw, lake.target)
    counted(raw / "2.parquet", third)
    with pytest.raises(RunError, match=r"before the end of 1\.parquet"):
        apply(raw, lake.target)
    counted(part, second)
    assert apply(raw, lake.target).tables[TABLE].rows == 3


def test_a_late_file_is_an_error_after_applied_files_were_deleted(tmp_path: Path) -> None:
    lake, raw = memory(), tmp_path / "raw"
    raw.mkdir()

    def write(name: str, first: int, payloads: list[bytes]) -> Path:
        table = {"seq": pa.array(range(first, first + len(payloads)), pa.int64()), "data": pa.array(payloads)}
        pq.write_table(pa.table(table), raw / name)
        return raw / name

    first, second, third, fourth, late = transactions(range(700, 705))
    applied = [write("a.parquet", 0, first), write("b.parquet", 10, second)]
    write("c.parquet", 30, third)
    apply(raw, lake.target)
    for path in applied:
        path.unlink()
    apply(raw, lake.target)
    write("d.parquet", 40, fourth)
    assert apply(raw, lake.target).tables[TABLE].rows == 4
    path = write("late.parquet", 20, late)
    with pytest.raises(RunError, match="3 payloads came too late: they are at or before position 42"):
        apply(raw, lake.target)
    path.unlink()
    assert apply(raw, lake.target).tables[TABLE].rows == 4


def test_a_parquet_target_without_its_state_is_refused_by_name(tmp_path: Path) -> None:
    slot, _ = streamed()
    raw, target = written(tmp_path / "raw", slot), tmp_path / "lake"
    apply(raw, f"parquet:{target}")
    shutil.rmtree(target / "_pgdecode")
    with pytest.raises(PathError, match=r"has files such as public\.t.*, but no _pgdecode"):
        apply(raw, f"parquet:{target}")


def test_options_that_change_rows_must_be_those_of_the_calls_before(tmp_path: Path) -> None:
    slot, _ = streamed()
    raw = written(tmp_path / "raw", slot)
    lake = memory()
    apply(raw, lake.target)
    with pytest.raises(RunError, match="was applied with unrepresentable='error', and not 'text'"):
        apply(raw, lake.target, unrepresentable="text")


def test_a_dry_run_counts_and_writes_nothing(lake: Lake, tmp_path: Path) -> None:
    slot, cut = streamed()
    raw = written(tmp_path / "raw", slot, 0, cut)
    for _ in range(2):
        result = apply(raw, lake.target, dry_run=True)
        assert (result.is_dry_run, result.tables[TABLE].upserts, result.tables[TABLE].rows) == (True, 1, 1)
    apply(raw, lake.target)
    written(raw, slot, cut)
    assert apply(raw, lake.target, dry_run=True).tables[TABLE].rows == 3
    assert lake.rows() == [("1", "x")]


def test_a_dry_run_counts_the_rows_of_other_tables_once_if_a_table_is_stale(tmp_path: Path) -> None:
    slot = begun("id* a", types=[25, 23])
    slot.insert(T, "1", "7")
    slot.relation(OTHER, "id* b")
    slot.insert(OTHER, "1", "x")
    cut = next_transaction(slot, 701)
    slot.insert(T, "3", "9")
    slot.relation(T, "id* a", types=[25, 20])
    slot.insert(T, "2", "8")
    slot.relation(OTHER, "id* b now")
    slot.insert(OTHER, "2", "y", "z")
    slot.commit()
    raw, lake = written(tmp_path / "raw", slot, 0, cut), memory()
    apply(raw, lake.target)
    written(raw, slot, cut)
    for is_dry in (True, False):
        with pytest.raises(StaleTables) as error:
            apply(raw, lake.target, dry_run=is_dry)
        assert error.value.result.tables[TABLE].rows == 3


def test_a_capture_without_its_beginning_gives_only_tables_that_were_copied(tmp_path: Path) -> None:
    _, second = sorted((captures.DATA / "capture").glob("*.parquet"))
    shutil.copy(second, tmp_path)
    with pytest.raises(StaleTables, match="position 23: the payloads before it are missing"):
        apply(tmp_path, MemoryTarget())


def test_a_name_that_may_mean_several_tables_is_an_error_with_their_names(tmp_path: Path) -> None:
    slot = begun("id*", name="c", namespace="a.b")
    slot.insert(T, "1")
    slot.relation(OTHER, "id*", name="b.c", namespace="a")
    slot.insert(OTHER, "2")
    slot.commit()
    raw, lake = written(tmp_path / "raw", slot), memory()
    with pytest.raises(PathError, match=r"""table 'a\.b\.c' is ambiguous: write "a\.b"\.c or a\."b\.c"$"""):
        apply(raw, lake.target, tables="a.b.c")
    assert apply(raw, lake.target, tables='"a.b".c').tables.keys() == {'"a.b".c'}
    with pytest.raises(PathError, match=r"""table a\.d: .* uses it; there are "a\.b"\.c, a\."b\.c"$"""):
        apply(raw, memory().target, tables="a.d")
