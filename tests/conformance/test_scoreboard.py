"""The scoreboard of decoders: pgdecode answers every case, and the page has the suite's present number of cases."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from support import clone

FOLDER = Path(__file__).parent
spec = importlib.util.spec_from_file_location("scoreboard", FOLDER / "scoreboard.py")
assert spec is not None
assert spec.loader is not None
scoreboard = importlib.util.module_from_spec(spec)
sys.modules["scoreboard"] = scoreboard
spec.loader.exec_module(scoreboard)


def test_pgdecode_answers_every_case() -> None:
    found = scoreboard.score(scoreboard.pgdecode_answer)
    assert found.right == found.of
    assert (found.silently_wrong, found.hangs) == (0, 0)
    page = clone.path_of("docs/scoreboard.md").read_text()
    (row,) = re.findall(r"^\| \[pgdecode\].*$", page, re.MULTILINE)
    assert [int(n) for n in re.findall(r"of (\d+)", row)] == [found.of[group] for group in GROUPS], "make scoreboard"


GROUPS = ("valid", "bad", "valid, later", "bad, later")
