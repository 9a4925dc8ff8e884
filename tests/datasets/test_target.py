"""A data set has all files of a run or none, whatever ends the run, and refuses what it cannot continue."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.datasets import local_folder
from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.datasets.input_selection import (
    Listed,
    Selection,
    check_fingerprints,
    check_no_gap,
    check_source,
    recorded,
    select_by_name,
    select_by_position,
    unknown_files,
)
from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.object_folder import ObjectFolder
from pgdecode.datasets.payload_ranges import PAYLOADS, PayloadReader, PayloadWriter
from pgdecode.datasets.run import Run, Target
from pgdecode.datasets.single_file import SingleFile
from pgdecode.datasets.state import LOG, InputFile, State, parse_state
from pgdecode.datasets.target import target_at
from pgdecode.storage.durable import locked
from pgdecode.storage.errors import PathError, TargetExists
from pgdecode.storage.object_path import FilePath, ObjectPath, object_path
from pgdecode.storage.object_store import listed, read_object, store_of
from support.emulators import Emulator
from support.tiers import full

pytest_plugins = ["support.stores"]
OPTIONS = {"mode": "FAILFAST", "format": "parquet"}


class Killed(BaseException):
    """The process ends."""


@pytest.fixture(params=["local", "s3", full("azure")])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> FilePath:
    """A folder without files."""
    if request.param == "local":
        return tmp_path / "out"
    store: Emulator = request.getfixturevalue(request.param)
    return object_path(f"{store.new_bucket()}/out", store.options)


def write(run: Run, content: bytes, stem: str = "changes", **more: Any) -> Manifest:
    """Write a file, and return the manifest of the run."""
    with run.files.open(stem, "parquet", **more) as file:
        file.write(content)
    return Manifest("local", ["changes"], OPTIONS, rows=1, files=[run.accept(file.written(1))])


def commit(folder: FilePath, rows: bytes = b"rows", *, overwrite: bool = False) -> Manifest:
    """Do a run that writes one file."""
    with target_at(folder).begin(["changes"], OPTIONS, overwrite=overwrite) as run:
        return run.commit(write(run, rows), State(position="seq"))


def names(folder: FilePath) -> set[str]:
    """List all files below a folder."""
    if isinstance(folder, ObjectPath):
        return {item.below(folder) for item, _ in listed(folder)}
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(folder: FilePath) -> list[bytes]:
    """Read the output files that the manifests name."""
    files = [folder / file.name for manifest in target_at(folder).manifests() for file in manifest.files]
    return [content(file) for file in files]


def content(file: FilePath) -> bytes:
    """Read a file or an object."""
    if isinstance(file, Path):
        return file.read_bytes()
    found = read_object(file)
    assert found is not None
    return found


def named(folder: FilePath) -> set[str]:
    """List the files that should be there: those that manifests name, the manifests, and the state of the last run."""
    manifests = target_at(folder).manifests()
    files = {file.name for manifest in manifests for file in manifest.files}
    states = {item.name for item in manifests[-1].state}
    return files | states | {f"{LOG}/{manifest.number:010}.json" for manifest in manifests}


def test_runs_append_files_and_leave_nothing_else(folder: FilePath) -> None:
    assert [commit(folder, content).number for content in (b"1", b"2", b"3")] == [1, 2, 3]
    assert contents(folder) == [b"1", b"2", b"3"]
    assert names(folder) == named(folder)
    if isinstance(folder, Path):
        outputs = {name for name in names(folder) if "/" not in name}
        assert outputs == {"changes.parquet", "changes-0000000002.parquet", "changes-0000000003.parquet"}


def test_a_run_that_does_not_commit_leaves_nothing(folder: FilePath) -> None:
    for _ in range(2):
        before = names(folder)
        with target_at(folder).begin(["changes"], OPTIONS) as run:
            write(run, b"not committed")
        with pytest.raises(ZeroDivisionError), target_at(folder).begin(["changes"], OPTIONS) as run:  # noqa: PT012
            write(run, b"failed")
            raise ZeroDivisionError
        assert names(folder) == before
        commit(folder)
    if isinstance(folder, Path):
        other = folder.with_name("other")
        with pytest.raises(ZeroDivisionError), LocalFolder(other).begin(["changes"], OPTIONS):
            raise ZeroDivisionError
        assert not other.exists()


STEPS: dict[str, Callable[[Run, Manifest], object]] = {
    "after the files": lambda run, manifest: None,
    "after the state": lambda run, manifest: run.target.write_state(run.files, State().to_bytes()),
}


def killed(folder: FilePath, patch: pytest.MonkeyPatch, step: str) -> bool:
    """Kill a run at a step. Return whether it has committed."""

    @contextmanager
    def without_cleaning() -> Iterator[None]:
        with patch.context() as patched:
            for kind in (LocalFolder, ObjectFolder):
                patched.setattr(kind, "discard", lambda self, run: None)
                if step == "after the manifest":
                    patched.setattr(kind, "finish", die_after_first)
            if step == "between renames":
                patched.setattr(local_folder, "sync", die)
            yield

    calls = iter([False, True])

    def die_after_first(self: Target, last: Manifest | None) -> None:
        if next(calls):
            raise Killed

    def die(path: Path) -> None:
        if path.name != "new":
            raise Killed

    with without_cleaning(), pytest.raises(Killed), target_at(folder).begin(["changes"], OPTIONS) as run:  # noqa: PT012
        manifest = write(run, b"killed")
        if step in STEPS:
            STEPS[step](run, manifest)
            raise Killed
        run.commit(manifest, State())
    return step not in STEPS


@pytest.mark.parametrize("n_before", [0, 1])
@pytest.mark.parametrize("step", [*STEPS, "after the manifest", "between renames"])
def test_the_next_run_completes_or_removes_what_a_killed_run_has_left(
    folder: FilePath, monkeypatch: pytest.MonkeyPatch, step: str, n_before: int
) -> None:
    if step == "between renames" and isinstance(folder, ObjectPath):
        pytest.skip("an object store has no renames")
    before = [b"before"] * n_before
    for content in before:
        commit(folder, content)
    is_committed = killed(folder, monkeypatch, step)
    # A reader of the manifests sees all or nothing; in a local folder the next run gives the files their names.
    with target_at(folder).begin(["changes"], OPTIONS) as run:
        assert run.files.number == n_before + is_committed + 1
    if n_before or is_committed:
        assert contents(folder) == before + [b"killed"] * is_committed
    commit(folder, b"next")
    assert contents(folder) == [*before, *[b"killed"] * is_committed, b"next"]
    assert names(folder) == named(folder)


def test_one_of_two_runs_wins(folder: FilePath) -> None:
    commit(folder)
    text = "another process is writing it now" if isinstance(folder, Path) else "has written _pgdecode/0000000002.json"
    with pytest.raises(RunError, match=text), target_at(folder).begin(["changes"], OPTIONS) as run:  # noqa: PT012
        manifest = write(run, b"loses")
        commit(folder, b"wins")
        run.commit(manifest, State())
    if isinstance(folder, ObjectPath):
        assert contents(folder) == [b"rows", b"wins"]
    assert names(folder) == named(folder)


def test_a_manifest_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    commit(tmp_path / "out")
    with pytest.raises(RunError, match="another run"), LocalFolder(tmp_path / "out").begin(["changes"], OPTIONS) as run:  # noqa: PT012
        (tmp_path / "out" / LOG / "0000000002.json").write_bytes(b"of another machine")
        run.commit(write(run, b"loses"), State())
    assert (tmp_path / "out" / LOG / "0000000002.json").read_bytes() == b"of another machine"
    assert (tmp_path / "out" / "changes.parquet").read_bytes() == b"rows"


def test_a_run_that_fails_because_another_one_has_committed_says_so(folder: FilePath) -> None:
    if isinstance(folder, Path):
        pytest.skip("the lock keeps the other run out")
    with pytest.raises(RunError, match="another run has written"), target_at(folder).begin([], {}) as run:  # noqa: PT012
        commit(folder)
        raise RunFault(f"{run.files.folder}: is missing")


def test_a_locked_folder_is_refused_at_once(tmp_path: Path) -> None:
    commit(tmp_path / "out")
    with locked(tmp_path / "out" / LOG / "lock", ValueError()), pytest.raises(RunError, match="is writing it now"):
        commit(tmp_path / "out")


def test_overwriting_begins_anew_and_removes_the_output_before(folder: FilePath) -> None:
    for content in (b"1", b"2"):
        commit(folder, content)
    found = commit(folder, b"3", overwrite=True)
    assert (found.number, found.is_first) == (3, True)
    assert contents(folder) == [b"3"]
    assert names(folder) == named(folder)
    commit(folder, b"4")
    assert contents(folder) == [b"3", b"4"]
    if isinstance(folder, Path):
        assert {name for name in names(folder) if "/" not in name} == {"changes.parquet", "changes-0000000004.parquet"}


def test_overwriting_that_fails_leaves_the_data_set_as_it_was(folder: FilePath) -> None:
    commit(folder)
    before = names(folder)
    with pytest.raises(Killed), target_at(folder).begin(["changes"], OPTIONS, overwrite=True) as run:  # noqa: PT012
        assert run.last is None
        write(run, b"new")
        raise Killed
    assert (names(folder), contents(folder)) == (before, [b"rows"])


def test_a_lost_log_is_an_error_that_names_the_files(folder: FilePath) -> None:
    commit(folder)
    for name in names(folder):
        if name.startswith(LOG):
            obstore.delete(store_of(folder), f"{folder.key}/{name}") if isinstance(folder, ObjectPath) else (
                folder / name
            ).unlink()
    text = r"out: has (files|objects) such as (changes\.parquet|part-0000000001-.*\.parquet), but no _pgdecode"
    with pytest.raises(TargetExists, match=text):
        commit(folder)
    commit(folder, b"again", overwrite=True)
    assert contents(folder) == [b"again"]
    assert names(folder) == named(folder)


def test_a_folder_with_other_files_is_never_replaced(folder: FilePath) -> None:
    if isinstance(folder, ObjectPath):
        obstore.put(store_of(folder), f"{folder.key}/notes.txt", b"mine")
    else:
        folder.mkdir()
        (folder / "notes.txt").write_bytes(b"mine")
    with pytest.raises(PathError, match=r"notes\.txt"):
        commit(folder, overwrite=True)
    assert names(folder) == {"notes.txt"}


@pytest.mark.parametrize(
    ("what", "options", "text"),
    [
        (["public.t"], OPTIONS, "was written with changes, not public.t"),
        (["changes"], {**OPTIONS, "mode": "PERMISSIVE"}, 'was written with mode "FAILFAST", not "PERMISSIVE"'),
        ([], {"mode": "FAILFAST", "types": None}, None),
    ],
    ids=["outputs", "options", "unknown ones"],
)
def test_other_options_are_refused_by_name(
    tmp_path: Path, what: list[str], options: dict[str, Any], text: str | None
) -> None:
    commit(tmp_path / "out")
    target = LocalFolder(tmp_path / "out")
    if text is None:
        with target.begin(what, options):
            return
    with pytest.raises(RunError, match=f"{text}: use the same options.*overwrite=True"), target.begin(what, options):
        pass


def test_attempts_of_tasks_elsewhere_are_accepted_once(folder: FilePath) -> None:
    with target_at(folder).begin(["public.t"], {}) as run:
        written = []
        for task in (0, 0, 1):
            with pickle.loads(pickle.dumps(run.files)).open("part", "parquet", folder="public.t", task=task) as file:
                file.write(b"%d" % task)
            written.append(pickle.loads(pickle.dumps(file.written(5))))
        with pytest.raises(OSError), run.files.open("part", "parquet", folder="public.t", task=2) as file:  # noqa: PT011
            raise OSError("the task fails")
        files = [run.accept(item) for item in written[1:]]
        run.commit(Manifest("spark", ["public.t"], files=files), State())
    assert contents(folder) == [b"0", b"1"]
    assert names(folder) == named(folder)
    if isinstance(folder, Path):
        assert [file.name for file in files] == ["public.t/part-00000.parquet", "public.t/part-00001.parquet"]


def test_payloads_stay_until_no_state_needs_them(folder: FilePath) -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "begin_position": [3, 3],
            "position": [4, 5],
            "xid": [0, 0],
            "relation_id": [7, 7],
            "version": [0, 0],
            "payload": [b"I1", b"I2"],
        },
        schema=PAYLOADS,
    )
    with target_at(folder).begin([], {}) as run, PayloadWriter(run.files.payload_path()) as writer:
        writer.write(rows)
        writer.__exit__(None, None, None)
        assert writer.file is not None
        state = State({}, {3: [writer.ranges[3]]}, payload_files={writer.file.name: writer.file})
        run.commit(Manifest("python", ()), state)
    target = target_at(folder)
    for _ in range(2):
        with target.begin([], {}) as run:
            (payloads,) = run.state.payloads[3]
            reader = run.state.readers()[payloads.file]
            assert pa.Table.from_batches(reader.read(payloads))["payload"].to_pylist() == [b"I1", b"I2"]
            run.commit(Manifest("python", ()), run.state)
    with target.begin([], {}) as run:
        run.commit(Manifest("python", ()), State())
    assert not [name for name in names(folder) if "payloads" in name]
    reader = PayloadReader(folder / LOG / payloads.file, reader.file)
    with pytest.raises(RunFault, match="is missing"):
        list(reader.read(payloads))


def test_a_state_is_checked_before_it_is_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    commit(out)
    path = out / LOG / "state-0000000001.json.zst"
    content = path.read_bytes()
    for wrong, text in (
        (b"{}", "has another SHA-256 than in the manifest"),
        (None, "is missing: the manifest names it"),
    ):
        path.unlink() if wrong is None else path.write_bytes(wrong)
        with pytest.raises(RunFault, match=text):
            commit(out)
        path.write_bytes(content)
    (out / LOG / "0000000001.json").write_bytes(b"{")
    with pytest.raises(RunFault, match=r"0000000001\.json: is damaged"):
        commit(out)
    commit(out, b"again", overwrite=True)
    assert contents(out) == [b"again"]


def test_a_single_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    for overwrite in (False, True):
        with SingleFile(path).begin(["changes"], OPTIONS, overwrite=overwrite) as run:
            manifest = write(run, b"new" if overwrite else b"old")
            assert path.exists() == overwrite
            run.commit(manifest, State())
    with pytest.raises(TargetExists), SingleFile(path).begin(["changes"], OPTIONS):
        pass
    assert names(tmp_path) == {"out.parquet"}
    assert path.read_bytes() == b"new"


# -- the selection of input files -------------------------------------------------------------------------------------


def file(path: str, first: int, last: int, rows: int | None = None, **more: Any) -> InputFile:
    return InputFile(path, 1, "1", last - first + 1 if rows is None else rows, first, last, **more)


BEFORE = State(
    position="seq",
    files=[
        file("/raw/1", 0, 99, fingerprint="a"),
        file("/raw/2", 100, 199, fingerprint="b"),
        InputFile("", 0, "", 21, 260, 280),  # decoded in Python
        file("/raw/3", 300, 390, 50, fingerprint="c"),
    ],
)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(file("/new/1", 0, 99), "same", id="moved"),
        pytest.param(file("/raw/1", 0, 99), "same", id="touched"),
        pytest.param(file("/raw/all", 0, 199), "same", id="merged"),
        pytest.param(file("/raw/part", 10, 60), "came too late", id="a part of a file"),
        pytest.param(file("/raw/part", 265, 270), "same", id="a part of what Python has decoded"),
        pytest.param(file("/raw/all", 0, 390, 271), "same", id="merged with gaps"),
        pytest.param(InputFile("/raw/empty", 1, "1", 0), "same", id="empty"),
        pytest.param(file("/raw/4", 391, 400), 0, id="new"),
        pytest.param(file("/raw/2", 400, 500), 0, id="new under a known name"),
        pytest.param(file("/raw/3", 300, 400, 60), 50, id="grown"),
        pytest.param(
            file("/raw/0", 200, 250), "came too late: it has the positions 200 to 250, but all up to 390", id="late"
        ),
        pytest.param(file("/raw/4", 390, 400), "came too late", id="overlapping"),
        pytest.param(file("/raw/3", 300, 350, 20), "was changed after it was decoded", id="shrunk"),
        pytest.param(file("/raw/3", 301, 400, 60), "was changed after it was decoded", id="another beginning"),
    ],
)
def test_files_are_selected_by_their_positions(item: InputFile, expected: Any) -> None:
    if isinstance(expected, str) and expected != "same":
        with pytest.raises(RunError, match=expected):
            select_by_position([item], BEFORE, 390)
        return
    found = select_by_position([item], BEFORE, 390)
    assert found == (Selection([], [item]) if expected == "same" else Selection([(item, expected)], []))


def counted(path: str, rows: int) -> InputFile:
    return InputFile(path, 1, "1", rows)


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(
    ("item", "expected", "of_ordered"),
    [
        pytest.param(counted("/raw/b", 5), "same", "same", id="touched"),
        pytest.param(counted("/raw/b", 4), "was changed", "was changed", id="shrunk"),
        pytest.param(counted("/raw/b", 7), 5, 5, id="grown"),
        pytest.param(counted("/raw/c", 7), 0, 0, id="new"),
        pytest.param(counted("/raw/a", 7), 5, "has grown, but is not the last one", id="grown before others"),
        pytest.param(counted("/raw/aa", 7), 0, "comes before one that has been decoded", id="late"),
    ],
)
def test_files_without_positions_are_selected_by_name(
    item: InputFile, expected: Any, of_ordered: Any, is_ordered: bool
) -> None:
    state = State(files=[counted("/raw/a", 5), counted("/raw/b", 5)])
    wanted = of_ordered if is_ordered else expected
    if isinstance(wanted, str) and wanted != "same":
        with pytest.raises(RunError, match=wanted):
            select_by_name([item], state, is_ordered=is_ordered)
        return
    found = select_by_name([item], state, is_ordered=is_ordered)
    assert found == (Selection([], [item]) if wanted == "same" else Selection([(item, wanted)], []))


def test_only_the_listing_of_known_files_is_compared() -> None:
    listing = [Listed("/raw/1", 1, "1"), Listed("/raw/2", 2, "1"), Listed("/raw/3", 1, "2"), Listed("/raw/4", 1, "1")]
    assert unknown_files(listing, BEFORE) == [1, 2, 3]


def test_a_file_with_other_rows_at_decoded_positions_is_refused() -> None:
    for item, expected in ((file("/new/1", 0, 99), "a"), (file("/raw/all", 0, 199), "b")):
        check_fingerprints(Selection([], [item]), BEFORE, lambda item, row, expected=expected: expected)  # type: ignore[misc]
        with pytest.raises(RunError, match=f"{item.path}: came too late: .* of other rows"):
            check_fingerprints(Selection([], [item]), BEFORE, lambda item, row: "other")


def test_a_file_whose_decoded_rows_have_changed_is_refused() -> None:
    for found in (Selection([], [file("/raw/1", 0, 99)]), Selection([(file("/raw/1", 0, 120), 100)], [])):
        check_fingerprints(found, BEFORE, lambda item, row: "a" if row == 99 else None)
        with pytest.raises(RunError, match="/raw/1: was changed after it was decoded"):
            check_fingerprints(found, BEFORE, lambda item, row: "b")


def test_files_that_were_passed_over_are_known_afterwards() -> None:
    same = [file("/new/1", 0, 99), file("/raw/1", 0, 99), file("/raw/all", 0, 199)]
    entries = recorded(Selection([], same), BEFORE)
    assert [(item.path, item.first, item.fingerprint) for item in entries] == [
        ("/new/1", 0, None),
        ("/raw/1", 0, "a"),
        ("/raw/all", None, None),
    ]


def test_a_gap_between_files_without_gaps_is_refused() -> None:
    dense = State(files=[file("/raw/1", 0, 99), file("/raw/2", 100, 199)])
    after = Selection([(file("/raw/3", 210, 250), 0)], [])
    with pytest.raises(RunError, match="begins at position 210, but the last decoded position is 199: 10 payloads"):
        check_no_gap(dense, 199, after, is_captured=False)
    check_no_gap(BEFORE, 199, after, is_captured=False)
    check_no_gap(dense, 199, Selection([(file("/raw/3", 200, 250), 0)], []), is_captured=False)
    captured = State(source={"slot": "s"}, files=[file("/raw/1", 0, 99, 50)])
    with pytest.raises(RunError, match="payloads between them are missing"):
        check_no_gap(captured, 99, after, is_captured=True)
    with pytest.raises(RunError, match="came from slot 's', this input comes from slot 't'"):
        check_source(captured, {"slot": "t"})


def test_a_state_with_many_files_is_read_back() -> None:
    files = [
        file(f"/raw/day={n % 30}/{n:010}.parquet", n * 10, n * 10 + 9, fingerprint="f" * 32) for n in range(10_000)
    ]
    state = State({"position": 5}, {}, [(1, "public.t", "enum")], "s", "seq", False, {"slot": "x"}, files)
    found = parse_state(state.to_bytes(), "state", Path("/out/_pgdecode"), ())
    assert found.files == files
    assert (found.replication, found.session, found.position, found.source) == (
        {"position": 5},
        "s",
        "seq",
        {"slot": "x"},
    )


def test_output_files_may_be_read_by_parquet(folder: FilePath) -> None:
    with target_at(folder).begin(["changes"], OPTIONS) as run:
        with run.files.open("changes", "parquet") as new:
            pq.write_table(pa.table({"id": [1, 2]}), new)
        run.commit(Manifest("local", ["changes"], OPTIONS, files=[run.accept(new.written(2))]), State())
    assert pq.read_table(pa.BufferReader(contents(folder)[0])).to_pydict() == {"id": [1, 2]}
