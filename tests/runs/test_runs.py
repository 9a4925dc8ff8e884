"""Runs that continue each other give what one run over everything gives, and refuse what would not."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.changes.stored_state import load_state
from pgdecode.runs.claim import LOCK
from pgdecode.runs.errors import RunError, RunFault
from pgdecode.runs.manifest import MANIFEST, Manifest, manifest_bytes, read_manifest
from pgdecode.runs.payload_ranges import PAYLOADS, STATE, PayloadWriter
from pgdecode.storage.durable import locked
from pgdecode.storage.errors import PathError
from support.generators.slot import Slot
from support.shell import Shell, written
from support.tiers import full

sys.path.insert(0, str(Path(__file__).parent))
from run_campaign import trials

T = 20001


def columns(payloads: list[bytes], first: int = 0) -> dict[str, Any]:
    return {"data": pa.array(payloads, pa.binary()), "seq": range(first, first + len(payloads))}


def streamed(n_rows: int = 3) -> list[list[bytes]]:
    """Three parts of a sequence with one streamed transaction. Its first rows of xid 10 are rolled back."""
    slot = Slot()
    parts = []
    for number in range(3):
        done = len(slot.payloads)
        slot.start(9, first=number == 0)
        if number == 0:
            slot.relation(T, ["id"], xid=9)
        for row in range(n_rows):
            slot.insert(T, f"{number}.{row}", xid=9)
        slot.insert(T, "rolled back", xid=10)
        slot.stop()
        if number == 1:
            slot.stream_abort(9, 10)
        if number == 2:
            slot.stream_commit(9)
        parts.append(slot.payloads[done:])
    return parts


def positions(parts: list[list[bytes]], number: int) -> range:
    """The positions of a part, counted over all parts."""
    first = sum(map(len, parts[:number]))
    return range(first, first + len(parts[number]))


def saved(folder: Path, payloads: list[bytes], first: int = 0, *, after: Path | None = None) -> ChangeDecoder:
    """Decode payloads in Python, and save the run."""
    decoder = ChangeDecoder() if after is None else ChangeDecoder.load(after)
    decoder.decode(pa.array(payloads, pa.binary()), range(first, first + len(payloads)))
    decoder.save(folder)
    return decoder


# -- the union of runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, *map(full, (3, 5, 6, *range(10, 30)))])
def test_the_union_of_runs_on_any_engine_equals_one_run(seed: int) -> None:
    (trial,) = trials([seed])
    assert trial.problems == []


@pytest.mark.parametrize(("seed", "kills"), [(1, 1), full(2, 3)])
def test_killed_calls_can_be_repeated(seed: int, kills: int) -> None:
    (trial,) = trials([seed], kills=kills)
    assert trial.problems == []
    assert trial.killed > 0


@pytest.mark.parametrize("end", ["stream_commit", "stream_prepare", "stream_abort", "stream_stop"])
@pytest.mark.parametrize("words", [["--changes"], ["--table", "public.a"], ["--snapshot", "public.a"]], ids=" ".join)
def test_a_run_after_any_output_knows_the_tables_that_a_stream_has_described(
    run: Shell, words: list[str], end: str
) -> None:
    a, b = 20001, 20002
    slot = Slot()
    slot.begin(7)
    slot.relation(a, ["id"], name="a")
    slot.insert(a, "1")
    slot.commit()
    # After the first batch.
    slot.start(9, first=True)
    slot.relation(b, ["id"], name="b", xid=9)
    slot.insert(b, "2", xid=9)
    slot.stop()
    if end == "stream_commit":
        slot.stream_commit(9)
    elif end == "stream_prepare":
        slot.stream_prepare(9, "gid")
    elif end == "stream_abort":
        slot.stream_abort(9, 9)
    n = len(slot.payloads)
    slot.begin(10)
    if end in ("stream_abort", "stream_stop"):
        slot.relation(b, ["id"], name="b")
    slot.insert(b, "3")
    slot.commit()
    written("1.parquet", slot.payloads[:n], seq=range(n))
    written("2.parquet", slot.payloads[n:], seq=range(n, len(slot.payloads)))
    for batch_rows, out in ((4, "some"), (100, "all")):
        assert run("decode", "1.parquet", out, *words, "--batch-rows", batch_rows).code == 0
    some, all_ = (pq.read_table(Path(out, STATE, "catalog.parquet")).to_pylist() for out in ("some", "all"))
    assert some == all_
    done = run("decode", "2.parquet", "next", "--table", "public.b", "--resume", "some")
    assert done.code == 0, done.err
    rows = pq.read_table("next/public.b.parquet")
    assert rows["id"].to_pylist() == ["3"]


def test_a_run_with_a_catalog_and_counted_positions_is_continued(run: Shell, tmp_path: Path) -> None:
    described, slot = Slot(), Slot()
    described.begin(7)
    described.relation(T, ["id"])
    described.commit()
    for xid in (8, 9):
        slot.begin(xid)
        slot.insert(T, str(xid))
        slot.commit()
    catalog = RelationCatalog.from_messages(described.payloads)
    decoder = ChangeDecoder(catalog=catalog)
    decoder.decode(slot.payloads[:3])
    assert RelationCatalog.from_json(decoder.catalog.to_json()) == decoder.catalog
    assert ChangeDecoder(state=decoder.state).decode(slot.payloads[3:])["new"].to_pylist() == [[("id", "9")]]
    decoder.save(tmp_path / "run")
    assert ChangeDecoder.load(tmp_path / "run").decode(slot.payloads[3:])["new"].to_pylist() == [[("id", "9")]]
    Path("catalog.json").write_text(catalog.to_json())
    for number, payloads in enumerate((slot.payloads[:3], slot.payloads[3:])):
        written(f"{number}.parquet", payloads)
        before = ["--resume", "out0"] if number else ["--catalog", "catalog.json"]
        done = run("decode", f"{number}.parquet", f"out{number}", "--changes", *before)
        assert done.code == 0, done.err
        assert " 20001  before  id" in run("inspect", f"out{number}", "--catalog").out
    assert pq.read_table("out1/changes.parquet")["new"].to_pylist() == [[("id", "9")]]


def test_an_abort_of_an_earlier_run_counts_only_for_rows_before_it(tmp_path: Path) -> None:
    parts = streamed()
    saved(tmp_path / "0", parts[0])
    saved(tmp_path / "1", parts[1], len(parts[0]), after=tmp_path / "0")
    decoder = ChangeDecoder.load(tmp_path / "1")
    found = decoder.decode(pa.array(parts[2], pa.binary()))
    ids = [dict(new)["id"] for new in found["new"].to_pylist()]
    assert ids == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "rolled back"]


def test_a_duplicate_of_an_earlier_run_is_dropped(run: Shell) -> None:
    slot = Slot()
    for xid in (7, 8):
        slot.begin(xid)
        slot.relation(T, ["id"])
        slot.insert(T, str(xid))
        slot.commit()
    one = written("one.parquet", slot.payloads, seq=range(8))
    two = written("two.parquet", slot.payloads[4:], seq=range(8, 12))
    assert run("decode", one, "out1", "--changes", "--drop-duplicates").code == 0
    assert run("decode", two, "out2", "--changes", "--drop-duplicates", "--resume", "out1").code == 0
    assert pq.read_table("out2/changes.parquet").num_rows == 0


def test_a_reconnect_between_runs_is_known_by_the_session_column(run: Shell) -> None:
    slot = Slot()
    slot.start(9, first=True)
    slot.relation(T, ["id"], xid=9)
    slot.insert(T, "lost", xid=9)
    slot.stop()
    first = list(slot.payloads)
    slot.begin(8)
    slot.relation(T, ["id"])
    slot.insert(T, "kept")
    slot.commit()
    written("one.parquet", first, seq=range(4), session=[1] * 4)
    written("two.parquet", slot.payloads[4:], seq=range(4, 8), session=[2] * 4)
    for name, before in (("one", []), ("two", ["--resume", "one"])):
        assert run("decode", f"{name}.parquet", name, "--changes", "--session", "session", *before).code == 0
    assert read_manifest(Path("one")).undecided == 1
    assert read_manifest(Path("two")).undecided == 0


def test_a_table_has_the_columns_that_earlier_runs_know(run: Shell) -> None:
    slot = Slot()
    for xid, names in ((7, ["id", "old"]), (8, ["id"])):
        slot.begin(xid)
        slot.relation(T, names, name="t")
        slot.insert(T, *names)
        slot.commit()
    written("one.parquet", slot.payloads[:4], seq=range(4))
    written("two.parquet", slot.payloads[4:], seq=range(4, 8))
    assert run("decode", "one.parquet", "one", "--table", "public.t").code == 0
    assert run("decode", "two.parquet", "two", "--table", "public.t", "--resume", "one").code == 0
    found = pq.read_table("two/public.t.parquet")
    assert found.select(["id", "old"]).to_pylist() == [{"id": "id", "old": None}]


def test_positions_are_counted_over_all_runs_if_there_is_no_column(run: Shell) -> None:
    parts = streamed()
    for number, payloads in enumerate(parts):
        written(f"{number}.parquet", payloads)
        before = ["--resume", f"out{number - 1}"] if number else []
        assert run("decode", f"{number}.parquet", f"out{number}", "--changes", *before).code == 0
    positions = [position for part in parts for position in range(len(part))]
    assert read_manifest(Path("out2")).input.last_position == len(positions) - 1
    done = run("decode", "2.parquet", "again", "--changes", "--resume", "out2")
    assert (done.code, done.err) == (2, "pgdecode: out2: has decoded the same files already\n")


# -- what a run leaves -----------------------------------------------------------------------------------------------


def test_an_undecided_transaction_is_written_once(tmp_path: Path) -> None:
    parts = streamed(1000)
    saved(tmp_path / "0", parts[0])
    saved(tmp_path / "1", parts[1], len(parts[0]), after=tmp_path / "0")
    first, second = (sorted((tmp_path / name / STATE).glob("payloads-*")) for name in "01")
    assert [path.name for path in first] == ["payloads-00000000000000000000-00000.parquet"]
    assert [path.name for path in second] == [first[0].name, "payloads-00000000000000001004-00000.parquet"]
    assert os.path.samefile(first[0], second[0])
    assert pq.read_metadata(second[1]).num_rows == 1001


def test_the_json_of_a_state_does_not_grow_with_a_transaction(tmp_path: Path) -> None:
    sizes = []
    for n_rows in (1, 2000):
        saved(tmp_path / str(n_rows), streamed(n_rows)[0])
        sizes.append((tmp_path / str(n_rows) / STATE / "state.json").stat().st_size)
    assert sizes[1] - sizes[0] < 10


def test_the_manifest_names_what_a_run_read_wrote_and_left(run: Shell) -> None:
    parts = streamed()
    for number, payloads in enumerate(parts):
        written(f"{number}.parquet", payloads, seq=positions(parts, number))
        before = ["--resume", f"out{number - 1}"] if number else []
        assert run("decode", f"{number}.parquet", f"out{number}", "--changes", *before).code == 0
    one, two = (read_manifest(Path(name)) for name in ("out1", "out2"))
    assert (one.undecided, two.undecided, one.rows, two.rows) == (1, 0, 0, 10)
    assert (one.input.first_position, one.input.last_position, one.input.rows) == (7, 13, 7)
    assert two.previous is not None
    assert (two.previous.path, two.previous.manifest) == ("../out1", one.sha256)
    assert [(item.name, item.rows) for item in two.files] == [("changes.parquet", 10)]
    assert [Path("out2", item.name).stat().st_size for item in two.files] == [item.bytes for item in two.files]


def test_a_decoder_that_saves_twice_makes_two_runs(tmp_path: Path) -> None:
    parts = streamed()
    decoder = saved(tmp_path / "0", parts[0])
    decoder.decode(pa.array(parts[1], pa.binary()), positions(parts, 1))
    decoder.save(tmp_path / "1")
    first, second = (read_manifest(tmp_path / name) for name in "01")
    assert second.previous is not None
    assert second.previous.manifest == first.sha256
    assert (second.input.rows, second.input.first_position) == (len(parts[1]), len(parts[0]))
    assert len(ChangeDecoder.load(tmp_path / "1").decode(pa.array(parts[2], pa.binary()))) == 10


def test_the_state_of_a_loaded_decoder_contains_its_payloads(tmp_path: Path) -> None:
    decoder = saved(tmp_path / "0", streamed()[0])
    loaded = ChangeDecoder.load(tmp_path / "0").state
    assert loaded == decoder.state
    assert json.loads(json.dumps(loaded)) == json.loads(json.dumps(decoder.state))


def test_a_failed_call_leaves_a_loaded_decoder_unchanged(tmp_path: Path) -> None:
    parts = streamed()
    saved(tmp_path / "0", [*parts[0], *parts[1]])
    decoder = ChangeDecoder.load(tmp_path / "0", spill=tmp_path / "spill", max_held_bytes=0)
    with pytest.raises(ValueError, match="unknown message tag"):
        decoder.decode(pa.array([*parts[2], b"Z"], pa.binary()))
    assert len(decoder.decode(pa.array(parts[2], pa.binary()))) == 10


# -- a first run without payloads ------------------------------------------------------------------------------------


def without_relation() -> tuple[RelationCatalog, list[bytes]]:
    """A catalog, and the payloads of a transaction whose relation it has."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.insert(T, "1")
    slot.commit()
    return RelationCatalog.from_messages(slot.payloads), [slot.payloads[0], *slot.payloads[2:]]


def test_a_saved_run_without_payloads_keeps_the_catalog(tmp_path: Path) -> None:
    catalog, payloads = without_relation()
    ChangeDecoder(catalog=catalog).save(tmp_path / "0")
    decoder = ChangeDecoder.load(tmp_path / "0")
    decoder.save(tmp_path / "1")
    for folder in "01":
        loaded = ChangeDecoder.load(tmp_path / folder)
        assert loaded.catalog == catalog
        assert loaded.decode(payloads)["new"].to_pylist() == [[("id", "1")]]


@pytest.mark.parametrize("days", [[0, 1, 2], [1, 2]], ids=["every day", "from the second day"])
@pytest.mark.parametrize("has_positions", [True, False])
def test_a_catalog_applies_to_the_first_payload_of_runs_with_a_state(
    run: Shell, days: list[int], has_positions: bool
) -> None:
    catalog, payloads = without_relation()
    Path("catalog.json").write_text(catalog.to_json())
    for day, part in enumerate([[], payloads, payloads]):
        positions = {"seq": pa.array([3 * day + at for at in range(len(part))], pa.int64())}
        sessions = {"session": pa.array([day] * len(part), pa.int64())}
        written(f"{day}.parquet", part, **sessions, **positions if has_positions else {})
        words = ["--changes", "--state", "state", *(["--catalog", "catalog.json"] if day in days else [])]
        done = run("decode", f"{day}.parquet", f"{day}.jsonl", *words, "--session", "session")
        assert done.code == 0, done.err
        found = [json.loads(line)["new"] for line in Path(f"{day}.jsonl").read_text().splitlines()]
        assert found == [{"id": "1"}] * bool(part)


def test_a_run_counts_only_the_transactions_that_it_leaves_out_itself(run: Shell) -> None:
    catalog, payloads = without_relation()
    Path("catalog.json").write_text(catalog.to_json())
    written("0.parquet", payloads[1:])
    written("1.parquet", payloads)
    words = ["--changes", "--start", "anywhere", "--state", "state", "--catalog", "catalog.json"]
    reports = [run("decode", f"{day}.parquet", f"out{day}", *words).err for day in (0, 1)]
    assert "0 changes, no bad rows, 1 transaction without a beginning left out" in reports[0]
    assert "1 change, no bad rows; " in reports[1]


# -- runs that do not follow -----------------------------------------------------------------------------------------


def test_an_overlap_and_a_gap_name_both_positions(run: Shell) -> None:
    parts = streamed()
    written("0.parquet", parts[0], seq=range(100, 100 + len(parts[0])))
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    for first, text in (
        (
            103,
            "the input begins at position 103, but out ended at position 106: the input overlaps that of the run "
            "before, or has files that came too late",
        ),
        (
            120,
            "the input begins at position 120, but out ended at position 106: 13 payloads between them are missing",
        ),
    ):
        written("1.parquet", parts[1], seq=range(first, first + len(parts[1])))
        done = run("decode", "1.parquet", "next", "--changes", "--resume", "out")
        assert (done.code, done.err) == (2, f"pgdecode: {text}\n")
        assert not Path("next").exists()


def test_a_gap_is_named_and_not_the_message_that_is_missing(run: Shell) -> None:
    slot = Slot()
    for xid in range(7, 10):
        slot.begin(xid)
        slot.relation(T, ["id"])
        slot.commit()
    # The second file begins inside a transaction.
    written("0.parquet", slot.payloads[:3], seq=range(3))
    written("1.parquet", slot.payloads[4:], seq=range(4, 9))
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    done = run("decode", "1.parquet", "next", "--changes", "--resume", "out")
    text = "the input begins at position 4, but out ended at position 2: 1 payloads between them are missing"
    assert (done.code, done.err) == (2, f"pgdecode: {text}\n")


def test_positions_with_gaps_of_their_own_may_have_one_between_runs(run: Shell) -> None:
    parts = streamed()
    for number, payloads in enumerate(parts):
        written(f"{number}.parquet", payloads, seq=range(100 * number, 100 * number + 2 * len(payloads), 2))
        before = ["--resume", f"out{number - 1}"] if number else []
        assert run("decode", f"{number}.parquet", f"out{number}", "--changes", *before).code == 0


def test_python_refuses_an_overlap_and_a_gap(tmp_path: Path) -> None:
    parts = streamed()
    saved(tmp_path / "0", parts[0])
    decoder = ChangeDecoder.load(tmp_path / "0")
    with pytest.raises(ValueError, match="position starts at 3, but earlier payloads end at 6"):
        decoder.decode(pa.array(parts[1], pa.binary()), range(3, 3 + len(parts[1])))
    decoder.decode(pa.array(parts[1], pa.binary()), range(9, 9 + len(parts[1])))
    with pytest.raises(RunError, match=r"begins at position 9, but .*0 ended at position 6: 2 payloads .* missing"):
        decoder.save(tmp_path / "1")
    assert not (tmp_path / "1" / MANIFEST).exists()


def test_the_input_of_another_slot_is_refused(run: Shell) -> None:
    parts = streamed()
    for number, slot in enumerate(("s", "other")):
        origin = {"system": "7", "timeline": 1, "database": "d", "slot": slot, "publications": ["p"]}
        table = pa.table(columns(parts[number], 10 * number))
        footer = {"pgdecode.capture": json.dumps({"origin": origin})}
        pq.write_table(table.replace_schema_metadata(footer), f"{number}.parquet")
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    done = run("decode", "1.parquet", "next", "--changes", "--resume", "out")
    assert done.err == "pgdecode: out: its input came from slot 's', this input comes from slot 'other'\n"
    Path("both").mkdir()
    for number in range(2):
        Path(f"{number}.parquet").rename(f"both/{number}.parquet")
    done = run("decode", "both", "out2", "--changes")
    assert done.err == "pgdecode: both/1.parquet: was captured from another slot or server than both/0.parquet\n"


def test_captured_files_may_have_no_gap_even_if_rows_are_missing_inside(run: Shell) -> None:
    parts = streamed()
    origin = {"system": "7", "timeline": 1, "database": "d", "slot": "s", "publications": ["p"]}
    footer = {"pgdecode.capture": json.dumps({"origin": origin})}
    for number, step in ((0, 1), (1, 3)):
        positions = range(10 * number, 10 * number + step * len(parts[number]), step)
        table = pa.table({**columns(parts[number]), "seq": positions})
        pq.write_table(table.replace_schema_metadata(footer), f"{number}.parquet")
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    done = run("decode", "1.parquet", "next", "--changes", "--resume", "out")
    assert "begins at position 10, but out ended at position 6: 3 payloads" in done.err


def test_options_in_a_manifest_are_json_objects_whatever_mappings_the_caller_passed(tmp_path: Path) -> None:
    types, columns = {"public.mood": "enum"}, {"public.t": {"a": "int4"}}
    read_only = {table: MappingProxyType(of_table) for table, of_table in columns.items()}
    ChangeDecoder(types=UserDict(types), columns=UserDict(read_only)).save(tmp_path / "1")
    options = read_manifest(tmp_path / "1").options
    assert (options["types"], options["columns"]) == (types, columns)


def test_a_manifest_refuses_what_is_not_json() -> None:
    with pytest.raises(TypeError, match="UserDict is not a JSON value"):
        manifest_bytes(Manifest("python", ["changes"], {"types": UserDict()}))


def hold(path: Path, ready: Any, end: Any) -> None:
    with locked(path, RunError("taken")):
        ready.set()
        end.wait(60)


@pytest.mark.parametrize("option", [full("--resume"), "--state"])
def test_two_runs_cannot_continue_one_state_at_once(run: Shell, option: str) -> None:
    parts = streamed()
    for number in range(2):
        written(f"{number}.parquet", parts[number], seq=positions(parts, number))
    first = ["--state", "before"] if option == "--state" else []
    assert run("decode", "0.parquet", "out" if first else "before", "--changes", *first).code == 0
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    path = Path("before", LOCK) if first else Path("before", STATE, LOCK)
    other = context.Process(target=hold, args=(path, ready, end))
    other.start()
    try:
        assert ready.wait(60)
        done = run("decode", "1.parquet", "next", "--changes", option, "before")
    finally:
        end.set()
        other.join()
    assert done.code == 2
    assert "before: another run is " in done.err


def test_a_run_is_continued_once(tmp_path: Path) -> None:
    parts = streamed()
    saved(tmp_path / "0", parts[0])
    one, two = (ChangeDecoder.load(tmp_path / "0") for _ in range(2))
    one.save(tmp_path / "1")
    with pytest.raises(RunError, match=r"0: was continued already, by .*1: continue from there"):
        two.save(tmp_path / "2")
    (tmp_path / "1" / MANIFEST).unlink()
    two.save(tmp_path / "2")
    with pytest.raises(FileExistsError, match=r"2 has the output of an earlier run; remove it, or load\(\) from it"):
        ChangeDecoder().save(tmp_path / "2")


# -- states that are damaged, hostile or old -------------------------------------------------------------------------


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("state.json", "has another SHA-256 than in the manifest"),
        ("catalog.parquet", "has another SHA-256 than in the manifest"),
        ("transactions.parquet", "has another SHA-256 than in the manifest"),
        ("payloads-00000000000000000000-00000.parquet", "has another SHA-256 than in the manifest"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, name: str, message: str) -> None:
    parts = streamed()
    saved(tmp_path / "0", parts[0])
    path = tmp_path / "0" / STATE / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunFault, match=f"{name}: {message}"):
        ChangeDecoder.load(tmp_path / "0").decode(pa.array(parts[1] + parts[2], pa.binary()))
    path.write_bytes(content[:-1])
    with pytest.raises(RunFault, match=f"{name}: has {len(content) - 1} bytes, the manifest has {len(content)}"):
        load_state(tmp_path / "0")
    path.unlink()
    with pytest.raises(RunFault, match=f"{name}: is missing"):
        load_state(tmp_path / "0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.update(version=1), r"has version 1 of pgdecode\.Manifest, this pgdecode reads 2"),
        (lambda plain: plain.update(format="other"), r"is not a pgdecode\.Manifest"),
        (lambda plain: plain.pop("files"), "is damaged: has no files"),
        (lambda plain: plain.update(state=[{"name": "x"}]), "is damaged: state: has no rows"),
        (lambda plain: plain.update(state=[]), "has no state"),
    ],
)
def test_a_manifest_of_another_kind_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    saved(tmp_path / "0", streamed()[0])
    edit(tmp_path / "0" / MANIFEST, change)
    with pytest.raises(RunFault, match=message):
        load_state(tmp_path / "0")
    (tmp_path / "0" / MANIFEST).unlink()
    with pytest.raises(RunFault, match="it is not the folder of a complete run"):
        load_state(tmp_path / "0")


def sealed(folder: Path, name: str) -> None:
    """Write the size and SHA-256 of a changed file into the manifest."""
    import hashlib

    content = (folder / STATE / name).read_bytes()

    def change(plain: dict[str, Any]) -> None:
        for item in plain["state"]:
            if item["name"] == f"{STATE}/{name}":
                item.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    edit(folder / MANIFEST, change)


def test_hostile_values_in_the_small_files_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "0", streamed()[0])
    path = tmp_path / "0" / STATE / "state.json"
    original = path.read_text()
    for name, value in (("position", -1), ("position", "5"), ("last_lsn", 2**63), ("version", 2), ("skipped", 3)):
        path.write_text(original)
        edit(path, lambda plain, name=name, value=value: plain.update({name: value}))
        sealed(tmp_path / "0", "state.json")
        with pytest.raises(RunFault, match="_state"):
            load_state(tmp_path / "0")
    path.write_text(original)
    sealed(tmp_path / "0", "state.json")
    for name in ("transactions.parquet", "catalog.parquet"):
        path = tmp_path / "0" / STATE / name
        table = pq.read_table(path)
        kind = table.column_names[0]
        for bad in (
            table.drop_columns([kind]),
            table.set_column(0, kind, pa.array(["other"] * len(table))),
        ):
            pq.write_table(bad, path)
            sealed(tmp_path / "0", name)
            with pytest.raises(RunFault, match="_state"):
                load_state(tmp_path / "0")
        pq.write_table(table, path)
        sealed(tmp_path / "0", name)
    load_state(tmp_path / "0")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("begin_position", 99, "of another transaction"),
        ("position", 1000, "out of order|at another position"),
        ("version", 5, "of an unknown version of a relation"),
        ("version", -2, "of an unknown version of a relation"),
        ("payload", b"B", "not a row"),
    ],
)
def test_hostile_payloads_are_refused_when_they_are_read(tmp_path: Path, column: str, value: Any, message: str) -> None:
    parts = streamed()
    saved(tmp_path / "0", parts[0])
    name = "payloads-00000000000000000000-00000.parquet"
    path = tmp_path / "0" / STATE / name
    rows = pq.read_table(path).to_pylist()
    rows[1][column] = value
    path.unlink()
    with PayloadWriter(path.parent, name) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows, PAYLOADS))
    sealed(tmp_path / "0", name)
    decoder = ChangeDecoder.load(tmp_path / "0")
    with pytest.raises(RunFault, match=message):
        decoder.decode(pa.array(parts[1] + parts[2], pa.binary()))


def test_a_state_folder_with_other_files_is_refused(run: Shell) -> None:
    written("0.parquet", streamed()[0])
    Path("state").mkdir()
    Path("state/notes.txt").write_text("mine")
    done = run("decode", "0.parquet", "out", "--changes", "--state", "state")
    assert (done.code, done.err) == (1, "pgdecode: state: is not a state folder: it has 'notes.txt'\n")


def test_what_a_killed_run_left_in_a_state_folder_is_removed(run: Shell) -> None:
    parts = streamed()
    for number in range(2):
        written(f"{number}.parquet", parts[number], seq=positions(parts, number))
    assert run("decode", "0.parquet", "0.jsonl", "--changes", "--state", "state").code == 0
    Path("state/.current.13705.partial").write_text("{")
    Path("state/00000002.partial/_state").mkdir(parents=True)
    assert run("decode", "1.parquet", "1.jsonl", "--changes", "--state", "state").code == 0
    assert sorted(path.name for path in Path("state").iterdir()) == ["00000001", "00000002", "_lock", "current"]


# -- the shell -------------------------------------------------------------------------------------------------------


def test_a_file_needs_a_state_folder_to_be_continued(run: Shell) -> None:
    written("0.parquet", streamed()[0])
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    done = run("decode", "0.parquet", "next.parquet", "--changes", "--resume", "out")
    assert done.code == 2
    assert "next.parquet must be a folder, because the state for the next run is in it; with a file, keep" in done.err


@pytest.mark.parametrize("state", [None, "state"])
def test_inspect_describes_the_state_of_a_run(run: Shell, state: str | None) -> None:
    written("0.parquet", streamed()[0], seq=range(7))
    options = ["--changes"] if state is None else ["--changes", "--state", state]
    assert run("decode", "0.parquet", "out", *options).code == 0
    (found,) = json.loads(f"[{run('inspect', state or 'out', '--catalog', '--json').out}]")
    assert (found["next_position"], found["last_lsn"], found["what"]) == (7, None, ["changes"])
    assert found["undecided"] == [{"xid": 9, "gid": None, "begin_position": 0, "changes": 4}]
    assert [item["relation"]["name"] for item in found["relations"]] == ["t20001"]
    text = run("inspect", state or "out", "--catalog").out
    assert "public.t20001  20001  1 (not committed)" in text
    done = run("inspect", ".", "--catalog")
    assert (done.code, done.err) == (
        1,
        "pgdecode: .: has no _manifest.json: it is not the folder of a complete run\n",
    )
    done = run("inspect", "0.parquet", "--catalog")
    assert done.code == 2
    assert "--catalog is for the folder of a run or of --state; 0.parquet is a file" in done.err


def test_output_run_before_and_state_are_different_folders(run: Shell) -> None:
    written("0.parquet", streamed()[0])
    assert run("decode", "0.parquet", "out", "--changes").code == 0
    for target, option, other in (("out", "--resume", "out"), ("out/x", "--resume", "out"), ("s", "--state", "s/s")):
        done = run("decode", "0.parquet", target, "--changes", option, other, "--overwrite")
        assert done.code == 2
        assert done.err.startswith(f"pgdecode: {target}: the ")
        assert done.err.endswith(f", {other}, must be another folder\n")


def test_the_folder_of_a_run_is_no_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = r"^the folder of a run must be a local path, not s3://$"
    with pytest.raises(PathError, match=message):
        ChangeDecoder().save("s3://user:secret@lake/x")
    with pytest.raises(PathError, match=message):
        ChangeDecoder.load("s3://lake/x")
    assert list(tmp_path.iterdir()) == []


def test_a_run_cannot_be_saved_after_the_run_before_was_removed(tmp_path: Path) -> None:
    saved(tmp_path / "0", streamed()[0])
    decoder = ChangeDecoder.load(tmp_path / "0")
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(RunFault, match="0: has no _state: the run was removed"):
        decoder.save(tmp_path / "1")


def test_the_same_call_again_finds_its_output_complete_or_replaces_it(run: Shell) -> None:
    parts = streamed()
    for number in range(2):
        written(f"{number}.parquet", parts[number], seq=positions(parts, number))
    state = ["--changes", "--state", "state"]
    assert run("decode", "0.parquet", "0.jsonl", *state).code == 0
    for _ in range(2):
        assert run("decode", "1.parquet", "1.jsonl", *state).code == 0
    assert "complete already" in run("decode", "1.parquet", "1.jsonl", *state).err
    assert "changes, no bad rows" in run("decode", "1.parquet", "1.jsonl", *state, "--overwrite").err
    Path("1.jsonl").unlink()
    assert "changes, no bad rows" in run("decode", "1.parquet", "1.jsonl", *state).err
    assert sorted(path.name for path in Path("state").iterdir()) == ["00000001", "00000002", "_lock", "current"]
    done = run("decode", "0.parquet", "0.jsonl", *state, "--overwrite")
    assert done.code == 2
    assert "the input begins at position 0, but state/00000002 ended at position 13" in done.err
