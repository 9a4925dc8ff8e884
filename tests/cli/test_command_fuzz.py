"""Random command lines over damaged files and folders: a documented exit code and one line, whatever the input.

`make command-fuzz` runs many more cases.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from command_fuzz.materials import write_materials
from command_fuzz.trial import run_case
from support.tiers import full

SEED = 1


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command-fuzz") / "materials"
    write_materials(folder)
    return folder


@pytest.mark.parametrize("cases", [range(40), full(range(40, 120))], ids=str)
def test_no_command_line_leaves_a_traceback_or_half_an_output(
    materials: Path, monkeypatch: pytest.MonkeyPatch, cases: range
) -> None:
    # A process takes as long as a hundred cases; other tests start them.
    monkeypatch.setattr("command_fuzz.trial._PROCESS_SHARE", 0.0)
    found = [result for result in (run_case(SEED, number, materials) for number in cases) if result.problem]
    assert not found, "\n\n".join(f"case {item.number}: {item.words}, {item.damages}: {item.problem}" for item in found)
