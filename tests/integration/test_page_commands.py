"""The snippets of the pages that need a server run as they are written, twice, and leave the tables of the server."""

from __future__ import annotations

import re
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pgdecode.capture import RequestError, demo
from support.docs import markdown
from support.shell import Shell

pytestmark = pytest.mark.full

# Pages whose snippets follow each other in one folder, with one slot.
FOLDERS = [("index.md",), ("capture.md",), ("initial-copy.md", "apply.md", "targets.md"), ("sync.md", "verify.md")]


def snippets(page: str) -> list[tuple[str, str]]:
    text = (markdown.DOCS / page).read_text()
    return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def with_dsn(text: str, dsn: str) -> str:
    return re.sub(r'"host=db dbname=shop[^"]*"', f'"{dsn}"', text)


def test_the_snippets_of_pages_about_servers_run_twice(
    run: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    from pgdecode.capture.connection import Connection

    try:
        demo.programs()
    except RequestError as error:
        pytest.skip(str(error))
    with demo.server() as dsn, closing(Connection(dsn)) as server:
        demo.open_shop(dsn)
        demo.run_shop(dsn)
        for number, pages in enumerate(FOLDERS):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "tests").symlink_to(markdown.ROOT / "tests")
            monkeypatch.chdir(folder)
            for _ in range(2):
                run_pages(pages, dsn, run)
            server.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            server.rows("DROP PUBLICATION IF EXISTS pgdecode")


def run_pages(pages: tuple[str, ...], dsn: str, run: Shell) -> None:
    for page in pages:
        names: dict[str, Any] = {}
        for language, text in snippets(page):
            if language == "python":
                exec(compile(with_dsn(text, dsn), page, "exec"), names)
                continue
            for line in markdown.commands(with_dsn(text, dsn)):
                words = shlex.split(line)[1:]
                # The page of the demonstration has the first command too. The others are for a slot that was lost.
                if words != ["demo"] and not {"--drop-slot", "--accept-gap"} & {*words}:
                    done = run(*words)
                    assert done.code == 0, (page, line, done.err)


def test_the_snippets_of_the_demonstration_run(run: Shell) -> None:
    pytest.importorskip("duckdb")
    try:
        demo.programs()
    except RequestError as error:
        pytest.skip(str(error))
    text = (markdown.DOCS / "demo.md").read_text()
    for line in markdown.commands("".join(markdown.code_blocks(text, "sh"))):
        done = run(*shlex.split(line)[1:])
        assert done.code == 0, (line, done.err)
        if line == "pgdecode demo raw-demo":
            shown = " ".join(done.out.split())
            for part in markdown.between(text, "demo").splitlines()[1:-1]:
                assert " ".join(part.split()).removesuffix(" ...").strip(".") in shown
