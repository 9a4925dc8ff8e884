"""Gaps that a capture accepted: every reader says so, and decodes over them only on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.target import read_manifests
from pgdecode.files.file_metadata import accepted_gaps, gaps_of, notes_of
from pgdecode.files.payload_file import FileFault
from pgdecode.files.payload_files import payload_files
from support.captured_files import GAP, captured
from support.shell import Shell


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Three files, with a gap before the second one."""
    return captured(tmp_path / "raw", [{}, {"gaps": [GAP]}, {}])


def test_gaps_are_read_from_footers(raw: Path) -> None:
    [gap] = gaps_of(payload_files(raw, "data"))
    assert (gap.start, gap.end, gap.reason) == (0x20, 0x1A0, GAP["reason"])
    name = f"{4:020}.parquet"
    assert str(gap) == f"{raw / name}: the changes from 0/20 to 0/1A0 are missing before it"
    assert gap.as_dict(raw) == {"file": name, "from": "0/20", "to": "0/1A0", "reason": GAP["reason"]}


def test_changes_that_the_server_lost_are_described_as_such(tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{}, {"gaps": [{**GAP, "from": "0/1A0", "to": "0/20"}]}])
    [gap] = gaps_of(payload_files(raw, "data"))
    assert str(gap).endswith("the server lost the changes from 0/20 to 0/1A0, which earlier files have")


def test_the_first_of_several_gaps_is_named(tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{"gaps": [GAP, GAP]}, {"gaps": [GAP]}])
    with pytest.raises(RunError, match=rf"^{raw}/0+\.parquet: the changes .* before it \(and 2 more\); its capture"):
        accepted_gaps(payload_files(raw, "data"), accept_gap=False)
    assert len(accepted_gaps(payload_files(raw, "data"), accept_gap=True)) == 3


@pytest.mark.parametrize(
    "footer",
    [
        {"gaps": 7},
        {"gaps": {"from": "0/1"}},
        {"gaps": [7]},
        {"gaps": ["x"]},
        {"gaps": [{}]},
        {"gaps": [{**GAP, "from": None}]},
        {"gaps": [{**GAP, "to": "x"}]},
        {"beginning": 7},
        {"beginning": {}},
        {"beginning": {"slot_was_read": True, "lsn": "x"}},
    ],
)
def test_a_damaged_footer_is_a_fault_of_its_file(tmp_path: Path, footer: dict[str, Any]) -> None:
    raw = captured(tmp_path / "raw", [footer])
    with pytest.raises(FileFault, match=r"0\.parquet: the description of gaps in the footer is damaged$"):
        notes_of(payload_files(raw, "data"))


OUTPUTS = {
    "messages": [],
    "changes": ["--changes"],
    "table": ["--table", "p.t"],
    "snapshot": ["--snapshot", "p.t"],
}


@pytest.mark.parametrize("what", OUTPUTS)
@pytest.mark.parametrize("as_folder", [True, False])
def test_decode_refuses_a_gap_and_warns_of_one_that_is_accepted(
    run: Shell, raw: Path, what: str, *, as_folder: bool
) -> None:
    # Source: https://github.com/dbtrail/dbtrail/issues/765
    out = "out" if as_folder or what == "messages" else "out.parquet"
    refused = run("decode", str(raw), out, *OUTPUTS[what])
    path = raw / f"{4:020}.parquet"
    assert refused.code == 2
    assert refused.err == (
        f"pgdecode: {path}: the changes from 0/20 to 0/1A0 are missing before it; its capture accepted that. Copy the "
        "tables again, unless that was done since, and decode what there is with --accept-gap\n"
    )
    assert not Path(out).exists()
    done = run("decode", str(raw), out, *OUTPUTS[what], "--accept-gap")
    assert done.code == 0
    assert done.err.splitlines()[0] == (
        f"pgdecode: warning: {path}: the changes from 0/20 to 0/1A0 are missing before it"
    )
    if as_folder and what in ("changes", "table"):
        [listed] = read_manifests(out)[-1].input.gaps
        assert listed == {"file": path.name, "from": "0/20", "to": "0/1A0", "reason": GAP["reason"]}


def test_a_gap_between_runs_is_refused_too(run: Shell, raw: Path) -> None:
    later = raw.with_name("later")
    later.mkdir()
    for path in sorted(raw.iterdir())[1:]:
        path.rename(later / path.name)
    assert run("decode", str(raw), "out", "--changes").code == 0
    refused = run("decode", str(later), "out", "--changes")
    assert refused.code == 2
    assert "--accept-gap" in refused.err
    assert run("decode", str(later), "out", "--changes", "--accept-gap").code == 0


def test_files_without_gaps_are_not_affected(run: Shell, tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{"beginning": {"lsn": "0/5", "slot_was_read": False}}, {}])
    done = run("decode", str(raw), "out", "--changes", "--accept-gap")
    assert (done.code, "warning" in done.err) == (0, False)
    assert "note" not in run("inspect", str(raw)).out


def test_inspect_reports_gaps(run: Shell, raw: Path) -> None:
    found = json.loads(run("inspect", str(raw), "--json").out)
    name = f"{4:020}.parquet"
    assert found["gaps"] == [{"file": name, "from": "0/20", "to": "0/1A0", "reason": GAP["reason"]}]
    done = run("inspect", str(raw))
    assert done.code == 0
    assert "the changes from 0/20 to 0/1A0 are missing before it" in done.out.replace("\n", " ")


@pytest.mark.parametrize("arguments", [[], ["--changes"]])
def test_cat_warns_of_gaps(run: Shell, raw: Path, arguments: list[str]) -> None:
    done = run("cat", str(raw), *arguments)
    assert done.code == 0
    assert "0/20 to 0/1A0 are missing" in done.err


def test_a_folder_that_begins_within_a_used_slot_is_a_note(run: Shell, tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{"beginning": {"lsn": "0/5", "slot_was_read": True}}, {}])
    done = run("decode", str(raw), "out", "--changes")
    assert done.code == 0
    assert "begins at 0/5, in a slot that was read or advanced before" in done.err
    assert json.loads(run("inspect", str(raw), "--json").out)["gaps"] == []
    assert "begins at 0/5" in run("inspect", str(raw)).out
