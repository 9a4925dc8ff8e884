"""The log of a folder: its contents, its state after a crash, and which files may be deleted."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.capture.errors import RequestError, StoppedError
from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import SCHEMA
from pgdecode.capture.journal import LOG_NAME, Contents, FileEntry, Journal, Log, file_name, read_log
from pgdecode.capture.options import PluginOptions, bytes_from_text, seconds_from_text
from pgdecode.capture.retention import Retention, deletable
from pgdecode.capture.server import Identity

ORIGIN = {"system": "1", "timeline": 1, "database": "d", "slot": "s", "publications": ["p"]}


def opened(folder: Path) -> Journal:
    journal = Journal(folder)
    if journal.contents.origin is None:
        journal.begin(Identity("1", 1, "d", 150000), "s", ("p",), 5)
    return journal


def sealed(folder: Path, first_seq: int, recorded: int) -> FileEntry:
    writer = FileWriter(folder, first_seq, "zstd")
    rows = [{"seq": first_seq + n, "lsn": n, "received": 0, "data": b"B"} for n in range(3)]
    writer.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    return writer.seal(recorded, 1, (0, 0), {"origin": ORIGIN}, {})


def test_recorded_entries_are_read_back(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add_file(sealed(tmp_path, 0, 20))
    journal.add_position(30)
    journal.close()
    again = opened(tmp_path)
    again.close()
    assert (again.contents.recorded, again.contents.next_seq) == (30, 3)
    assert list(again.contents.files) == ["00000000000000000000.parquet"]


def test_a_file_that_the_log_lacks_is_found_by_its_footer(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    sealed(tmp_path, 0, 20)
    journal.close()
    again = opened(tmp_path)
    again.close()
    assert (again.contents.recorded, again.contents.next_seq) == (20, 3)
    assert read_log(tmp_path).recorded == 20


def test_incomplete_files_are_removed(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / ".00000000000000000000.parquet.partial").write_bytes(b"PAR1")
    opened(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOG_NAME, "_capture.lock"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_an_incomplete_line_is_ignored(tmp_path: Path, cut: int) -> None:
    journal = opened(tmp_path)
    journal.add_position(30)
    journal.add_position(40)
    journal.close()
    log = tmp_path / LOG_NAME
    log.write_bytes(log.read_bytes()[:-cut])
    again = opened(tmp_path)
    assert again.contents.recorded == 30
    again.add_position(50)
    again.close()
    assert read_log(tmp_path).recorded == 50


def test_a_lost_log_is_rebuilt_from_the_footers(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add_file(sealed(tmp_path, 0, 20))
    journal.add_file(sealed(tmp_path, 3, 30))
    journal.close()
    (tmp_path / LOG_NAME).unlink()
    again = Journal(tmp_path)
    again.close()
    assert (again.contents.recorded, again.contents.next_seq) == (30, 6)
    assert again.contents.origin is not None
    assert again.contents.origin["slot"] == "s"


def test_other_parquet_files_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    with pytest.raises(RequestError, match=r"contains other\.parquet, which no capture has written"):
        Journal(tmp_path)
    (tmp_path / "other.parquet").rename(tmp_path / "00000000000000000000.parquet")
    with pytest.raises(StoppedError, match="not a complete file of a capture"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    "footer",
    [
        {"origin": None},
        {"origin": {**ORIGIN, "slot": 7}},
        {"origin": {**ORIGIN, "publications": "p"}},
        {"file": {}},
        {"file": 7},
        {"gaps": 7},
        {"gaps": [{"from": "0/1"}]},
        {"prepared": [7]},
    ],
    ids=str,
)
def test_a_damaged_footer_is_one_line(tmp_path: Path, footer: dict[str, object]) -> None:
    journal = opened(tmp_path)
    journal.close()
    entry = sealed(tmp_path, 0, 20)
    path = tmp_path / entry.name
    table = pq.read_table(path)
    metadata = json.loads(pq.read_metadata(path).metadata[b"pgdecode.capture"])
    pq.write_table(table.replace_schema_metadata({"pgdecode.capture": json.dumps({**metadata, **footer})}), path)
    with pytest.raises(StoppedError, match=rf"{entry.name}: not a complete file of a capture$"):
        Journal(tmp_path)


def test_an_idle_slot_does_not_make_the_log_grow_without_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.capture.journal._MOST_OBSOLETE", 10)
    journal = opened(tmp_path)
    for lsn in range(100, 200):
        journal.add_position(lsn)
    journal.close()
    assert len((tmp_path / LOG_NAME).read_text().splitlines()) < 15
    assert read_log(tmp_path).recorded == 199


def test_files_stay_in_the_log_of_an_idle_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.capture.journal._MOST_OBSOLETE", 10)
    journal = opened(tmp_path)
    journal.add_file(sealed(tmp_path, 0, 20))
    for lsn in range(100, 200):
        journal.add_position(lsn)
    journal.close()
    assert [*read_log(tmp_path).files] == [file_name(0)]
    again = opened(tmp_path)
    again.close()
    assert [*again.contents.files] == [file_name(0)]


def test_a_log_that_is_read_again_is_as_if_it_were_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgdecode.capture.journal._MOST_OBSOLETE", 3)
    log, chosen = Log(tmp_path), Random(7)
    path, n_rewritten = tmp_path / LOG_NAME, 0
    for number in range(60):
        # Other processes write to the folder too, without this log.
        journal = Journal(tmp_path, chosen.choice([log, None]))
        inode = path.stat().st_ino if number else 0
        if journal.contents.origin is None:
            journal.begin(Identity("1", 1, "d", 150000), "s", ("p",), 5)
        journal.append("session", session=number + 1, start="0/5", timeline=1)
        journal.add_file(sealed(tmp_path, journal.contents.next_seq, 20 + number))
        for entry in deletable([*journal.contents.files.values()], Retention(bytes=chosen.choice([0, 10**9])), 0):
            (tmp_path / entry.name).unlink()
            if chosen.random() < 0.5:
                journal.append("deleted", name=entry.name)
        journal.close()
        n_rewritten += path.stat().st_ino != inode
        if chosen.random() < 0.2:
            path.write_bytes(path.read_bytes() + b'{"event": "pos')
        assert log.read() == read_log(tmp_path)
    assert 5 < n_rewritten < 60


def test_lines_of_a_log_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    take = Contents.take
    monkeypatch.setattr(Contents, "take", lambda self, line: (taken.append(line["event"]), take(self, line)))
    log = Log(tmp_path)
    for number in range(20):
        journal = Journal(tmp_path, log)
        if number == 0:
            journal.begin(Identity("1", 1, "d", 150000), "s", ("p",), 5)
        journal.add_file(sealed(tmp_path, 3 * number, 20 + number))
        journal.close()
        assert len(log.read().files) == number + 1
    assert taken == ["begin", *["file"] * 20]


def test_a_gap_that_was_accepted_stays_in_the_log(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append("gap", **{"from": "0/5"}, to="0/40", reason="why", server={**ORIGIN, "timeline": 2})
    journal.close()
    for _ in range(2):
        again = opened(tmp_path)
        again.close()
        assert [gap["reason"] for gap in again.contents.gaps] == ["why"]
        assert again.contents.recorded == 0x40
        assert again.contents.origin is not None
        assert again.contents.origin["timeline"] == 2


def footer(folder: Path, first_seq: int, journal: Journal) -> dict[str, object]:
    """Complete a file as a capture does, and return what its footer has of what comes before it."""
    before = journal.before_next_file()
    journal.add_file(sealed(folder, first_seq, first_seq + 10))
    return before


def test_a_gap_is_described_in_the_next_file_and_in_no_other_one(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert footer(tmp_path, 0, journal) == {"beginning": {"lsn": "0/5", "slot_was_read": False}}
    journal.add_gap(10, 0x40, "why", ORIGIN)
    journal.add_gap(0x40, 0x50, "again", ORIGIN)
    for _ in range(2):
        journal.close()
        journal = opened(tmp_path)
        found = journal.before_next_file()
        assert [(gap["from"], gap["to"], gap["reason"]) for gap in found["gaps"]] == [
            ("0/A", "0/40", "why"),
            ("0/40", "0/50", "again"),
        ]
    assert list(footer(tmp_path, 3, journal)) == ["gaps"]
    for _ in range(2):
        assert journal.before_next_file() == {}
        journal.close()
        journal = opened(tmp_path)
    journal.close()
    assert [gap["file"] for gap in journal.contents.gaps] == ["00000000000000000003.parquet"] * 2


def test_another_server_that_goes_on_at_the_recorded_lsn_is_no_gap_for_readers(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    footer(tmp_path, 0, journal)
    journal.add_gap(10, 10, "another timeline", {**ORIGIN, "timeline": 2})
    assert journal.before_next_file() == {}
    journal.close()


def test_gaps_survive_the_loss_of_the_log(tmp_path: Path) -> None:
    gap = {"time": "t", "from": "0/5", "to": "0/40", "reason": "why"}
    opened(tmp_path).close()
    writer = FileWriter(tmp_path, 0, "zstd")
    writer.add(pa.RecordBatch.from_pylist([{"seq": 0, "lsn": 1, "received": 0, "data": b"B"}], schema=SCHEMA))
    writer.seal(0x50, 1, (0, 0), {"origin": ORIGIN, "gaps": [gap]}, {})
    (tmp_path / LOG_NAME).unlink()
    for _ in range(2):
        journal = Journal(tmp_path)
        journal.close()
        assert [(item["from"], item["file"]) for item in journal.contents.gaps] == [("0/5", file_name(0))]
        assert journal.before_next_file() == {}


DAMAGES = {
    "empty": lambda lines: [],
    "not JSON": lambda lines: [b"x\n", *lines[1:]],
    "a first line that is not whole": lambda lines: [lines[0][:20]],
    "not UTF-8": lambda lines: [lines[0], b'{"event": "\xff"}\n', *lines[2:]],
    "a line in the middle": lambda lines: [lines[0], lines[1][:10] + b"\n", *lines[2:]],
    "zeros in the middle": lambda lines: [lines[0], bytes(len(lines[1]) - 1) + b"\n", *lines[2:]],
    "no beginning": lambda lines: lines[1:],
    "two beginnings": lambda lines: [lines[0], *lines],
    "lines of another log": lambda lines: [b"[]\n", *lines],
    "a number": lambda lines: [*lines[:-1], b"7\n"],
    "deeply nested": lambda lines: [lines[0], b"[" * 100_000 + b"\n", *lines[1:]],
}


@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_an_error_that_names_the_line_and_the_way_on(
    tmp_path: Path, damage: str, *, has_files: bool
) -> None:
    journal = opened(tmp_path)
    if has_files:
        journal.add_file(sealed(tmp_path, 0, 20))
    journal.add_position(30)
    journal.add_position(40)
    journal.close()
    log = tmp_path / LOG_NAME
    damaged = b"".join(DAMAGES[damage](log.read_bytes().splitlines(keepends=True)))
    log.write_bytes(damaged)
    for read in (Journal, read_log):
        with pytest.raises(RequestError, match=r"_capture\.jsonl: line \d is damaged: restore") as caught:
            read(tmp_path)
        assert "\n" not in str(caught.value)
    assert log.read_bytes() == damaged


LINES = {
    "begin": lambda journal, folder: None,
    "file": lambda journal, folder: journal.add_file(sealed(folder, 0, 20)),
    "position": lambda journal, folder: journal.add_position(30),
    "session": lambda journal, folder: journal.append("session", session=1, start="0/5", timeline=1),
    "gap": lambda journal, folder: journal.add_gap(10, 40, "why", ORIGIN),
    "deleted": lambda journal, folder: journal.append("deleted", name=file_name(0)),
}
NEEDED = {
    "begin": {"version", "recorded", "system", "timeline", "database", "slot", "publications"},
    "file": set(FileEntry.__dataclass_fields__) - {"copies"},
    "position": {"recorded"},
    "session": {"session", "start"},
    "gap": {"from", "to", "server"},
    "deleted": {"name"},
}


@pytest.mark.parametrize("event", LINES)
def test_values_of_the_log_that_are_missing_or_of_another_type_are_errors(tmp_path: Path, event: str) -> None:
    journal = opened(tmp_path)
    LINES[event](journal, tmp_path)
    journal.close()
    log = tmp_path / LOG_NAME
    lines = log.read_bytes().splitlines()
    last = json.loads(lines[-1])
    assert last["event"] == event
    others = [None, True, -1, 1.5, "x", [], [1], {}, {"x": 1}]
    cases = [{**last, name: other} for name in last for other in others if other != last[name]]
    cases += [{name: last[name] for name in last if name != left_out} for left_out in last]
    for case in cases:
        log.write_bytes(b"\n".join([*lines[:-1], json.dumps(case).encode(), b""]))
        contents = None
        with contextlib.suppress(RequestError):
            contents = read_log(tmp_path)
        if contents is not None:
            assert case.keys() >= {"event", *NEEDED[event]}
            assert case["event"] == event
            assert isinstance(contents.recorded, int)
            assert isinstance(contents.next_seq, int)


def entry(number: int, *, open_streams: int = 0, prepared: int = 0, session: int = 1, age: float = 0) -> FileEntry:
    sealed_us = int((time.time() - age) * 1e6)
    return FileEntry(f"{number}", 1, 100, number, number, 0, 0, 0, session, open_streams, prepared, sealed_us)


@pytest.mark.parametrize(
    ("files", "retention", "expected"),
    [
        pytest.param([entry(0), entry(1), entry(2)], Retention(bytes=250), ["0"], id="bytes"),
        pytest.param([entry(0, age=9), entry(1, age=8), entry(2)], Retention(seconds=5), ["0", "1"], id="age"),
        pytest.param([entry(0, age=9)], Retention(seconds=5), [], id="never the last"),
        pytest.param([entry(0), entry(1, open_streams=1), entry(2)], Retention(bytes=1), ["0"], id="open stream"),
        pytest.param([entry(0), entry(1, prepared=1), entry(2)], Retention(bytes=1), ["0"], id="prepared"),
        pytest.param(
            [entry(0, open_streams=1), entry(1, session=2), entry(2, session=2)],
            Retention(bytes=1),
            ["0", "1"],
            id="a stream of an earlier session",
        ),
    ],
)
def test_files_that_may_be_deleted(files: list[FileEntry], retention: Retention, expected: list[str]) -> None:
    assert [found.name for found in deletable(files, retention, time.time())] == expected


@pytest.mark.parametrize(
    ("options", "version", "text"),
    [
        ({"protocol": 2}, 130000, "protocol 2 needs PostgreSQL 14, the server is 13"),
        ({"streaming": "on"}, 130000, "protocol 2 needs PostgreSQL 14, the server is 13"),
        ({"streaming": "parallel"}, 150000, "protocol 4 needs PostgreSQL 16, the server is 15"),
        ({"two_phase": True}, 140000, "protocol 3 needs PostgreSQL 15, the server is 14"),
        ({"binary": True}, 130000, "binary needs PostgreSQL 14, the server is 13"),
        ({"messages": True}, 130000, "messages needs PostgreSQL 14, the server is 13"),
        ({"origin": "none"}, 150000, "origin needs PostgreSQL 16, the server is 15"),
    ],
)
def test_options_that_a_server_does_not_support_are_refused(
    options: dict[str, object], version: int, text: str
) -> None:
    with pytest.raises(RequestError, match=f"^{text}$"):
        PluginOptions(**options).check(version)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"protocol": 5}, "protocol is 1 to 4, not 5"),
        ({"protocol": 1, "streaming": "on"}, "streaming on needs protocol 2, not 1"),
        ({"protocol": 2, "two_phase": True}, "two_phase needs protocol 3, not 2"),
        ({"protocol": 3, "streaming": "parallel"}, "streaming parallel needs protocol 4, not 3"),
        ({"streaming": "of"}, 'streaming is "off", "on" or "parallel", not \'of\''),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(RequestError) as caught:
        PluginOptions(**options)  # type: ignore[arg-type]
    assert str(caught.value) == text


def test_durations_and_sizes_are_distinguished() -> None:
    assert [seconds_from_text(text) for text in ("90s", "5min", "5m", "1.5h", "7d", "5M", "x")] == [
        *(90.0, 300.0, 300.0, 5400.0, 604800.0),
        *(None, None),
    ]
    assert [bytes_from_text(text) for text in ("10", "1kB", "5M", "2 GB", "1TiB", "5s")] == [
        *(10, 1024, 5 * 2**20, 2 * 2**30, 2**40),
        None,
    ]


def test_log_lines_are_json(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.add_file(sealed(tmp_path, 0, 20))
    journal.close()
    found = [json.loads(line) for line in (tmp_path / LOG_NAME).read_text().splitlines()]
    assert [line["event"] for line in found] == ["begin", "file"]
    assert found[1]["recorded"] == "0/14"
