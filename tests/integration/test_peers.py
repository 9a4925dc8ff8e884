"""Other decoders agree with pgdecode before they are timed, and the pages show what was measured."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import clone

ROOT = clone.path_of("benchmarks").parent
command = pytest.importorskip("benchmarks.peers.__main__", exc_type=ImportError)

from benchmarks import datasets  # noqa: E402
from benchmarks.cases import case, decoders  # noqa: E402
from benchmarks.peers import programs  # noqa: E402
from benchmarks.peers.programs import PEERS, Peer  # noqa: E402


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_decoder_that_is_built_agrees_on_messages_columns_and_bytes(peer: Peer) -> None:
    if peer.missing:
        pytest.skip(peer.missing)
    names = ["wide.text", "streamed.text"] if peer.follows_streams else ["wide.text"]
    for name in names:
        decoders.verify_answers(datasets.load(name, 200), peer)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param({"refused": "no"}, "number of messages is 0, not 50", id="no message"),
        pytest.param({"kind": "insert"}, "number of new columns is 0, not", id="no columns"),
        pytest.param({"kind": "insert", "new": [None]}, "number of new columns is", id="other columns"),
    ],
)
def test_a_decoder_that_disagrees_is_not_timed(
    wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def __init__(self, words: list[str], seconds: float) -> None: ...

        def __call__(self, payload: bytes, **known: bool) -> dict[str, Any]:
            return wrong

        def close(self) -> None: ...

    monkeypatch.setattr(decoders, "Answers", Wrong)
    with pytest.raises(case.WrongResult, match=message):
        decoders.verify_answers(datasets.load("wide.text", 50), PEERS[0])


def test_what_cannot_be_built_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "BUILD", tmp_path)
    monkeypatch.setattr(programs.shutil, "which", lambda name: None if name == "go" else name)
    monkeypatch.setattr(
        programs.subprocess, "run", lambda command, cwd: subprocess.CompletedProcess(command, command[0] == "cargo")
    )
    programs.install()
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Rust: `cargo build --quiet` failed, so not elefant-client, pg_walstream, pgoutput",
        "Go: go is not installed, so not pglogrepl",
        "Node: pgwire, pg-logical-replication",
    ]


def test_pages_and_chart_show_the_figures_of_the_last_run() -> None:
    figures = json.loads((ROOT / "benchmarks" / "peers.json").read_text())
    assert command.table(figures) in (ROOT / "docs" / "performance.md").read_text()
    board = (ROOT / "docs" / "scoreboard.md").read_text()
    for peer in PEERS:
        assert f"| [{peer.name}]({peer.repository}) | {peer.language} |" in board
        assert peer.name in {bar["name"] for bar in figures["bars"]}
