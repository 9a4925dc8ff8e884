"""The page of ten minutes and the schedules of the page on captures work as they are written."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pgdecode.capture import RequestError, demo
from pgdecode.cli.capture_command import capture as capture_command
from support.docs import markdown

PAGE = (markdown.DOCS / "ten-minutes.md").read_text()
DSN = "host=localhost user=postgres"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(sql|sh|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.full
def test_the_lake_table_of_the_page_is_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake")
    from pgdecode.capture.connection import Connection

    try:
        demo.programs()
    except RequestError as error:
        pytest.skip(str(error))
    with demo.server() as dsn, closing(Connection(dsn, settings={"search_path": "public"})) as server:
        # The page ends with what makes it possible to begin again.
        for walk in ("first", "second"):
            (tmp_path / walk).mkdir()
            monkeypatch.chdir(tmp_path / walk)
            names: dict[str, object] = {}
            for language, text in blocks():
                if language == "sql":
                    if "DROP TABLE" in text:
                        rows = server.rows("SELECT id, state, total, note FROM orders ORDER BY id")
                        check_lake(names["lake"], [tuple(row) for row in rows])
                    for statement in text.split(";\n"):
                        if statement.strip():
                            server.rows(statement)
                elif language == "sh":
                    for line in markdown.commands(text.replace(DSN, dsn)):
                        command = [sys.executable, "-m", *shlex.split(line)]
                        done = subprocess.run(command, capture_output=True, text=True)
                        assert done.returncode == 0, done.stderr
                else:
                    exec(compile(text, "ten-minutes.md", "exec"), names)
                    assert capsys.readouterr().out.splitlines() == re.findall(r"^print.*  # (.*)$", text, re.MULTILINE)


def check_lake(lake: Any, expected: list[tuple[str | None, ...]]) -> None:
    rows = lake.to_pyarrow_table().sort_by("id").to_pylist()
    assert [tuple(None if value is None else str(value) for value in row.values()) for row in rows] == expected
    assert len(rows) == 990


def schedules() -> dict[str, list[str]]:
    """The arguments of the command in each schedule."""
    yaml = pytest.importorskip("yaml")
    text = (markdown.DOCS / "capture.md").read_text()
    part = {name: text.partition(f"<!-- {name} -->\n```")[2].partition("```")[0] for name in NAMES}
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(part["systemd"].removeprefix("ini\n"))
    job = yaml.safe_load(part["kubernetes"].removeprefix("yaml\n"))
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return {
        "cron": shlex.split(part["cron"].removeprefix("sh\n"))[5:],
        "systemd": shlex.split(unit["Service"]["ExecStart"].replace("\\\n", " ")),
        "kubernetes": [*container["command"], *container["args"]],
    }


NAMES = ("cron", "systemd", "kubernetes")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_a_schedule_is_valid(name: str) -> None:
    program, command, *arguments = schedules()[name]
    assert (Path(program).name, command) == ("pgdecode", "capture")
    given = capture_command.make_context("capture", arguments).params
    assert (given["slot"], given["publication"]) == ("shop", ("shop",))
    assert given["create_slot"] is False
