"""The code of the pages under docs/ runs, and the recipes of the cookbook give what the server has."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

import pgdecode
import spark_udfs
from support import captures
from support.docs import markdown
from support.shell import Shell

ROOT = markdown.ROOT
DOCS = markdown.DOCS


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the captures where a clone has them."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", ["index.md", "install.md", "concepts.md", "python.md", "errors.md"])
def test_the_snippets_of_a_page_run_one_after_the_other_and_twice(
    page: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snippets = markdown.code_blocks((DOCS / page).read_text(), "python")
    assert snippets
    for _ in range(2):
        names: dict[str, Any] = {}
        for number, code in enumerate(snippets):
            exec(compile(code, f"{page} {number}", "exec"), names)
            printed = capsys.readouterr().out
            assert bool(printed) == ("print(" in code)
            assert printed != "[]\n"
            if page == "index.md":
                assert re.findall(r"^print.*  # (.*)$", code, re.MULTILINE) == printed.splitlines()


@pytest.mark.full
def test_the_command_lines_of_the_shell_run_twice(run: Shell, clone: Path) -> None:
    for _ in range(2):
        for line in markdown.commands("".join(markdown.code_blocks((DOCS / "shell.md").read_text(), "sh"))):
            done = run(*shlex.split(line)[1:])
            assert done.code == 0, (line, done.err)
            assert done.out or "decode " in line


def test_lines_of_samples_fit_beside_the_navigation() -> None:
    # 90 letters fit at 1280 pixels. A line of cron cannot be divided.
    for path in sorted(DOCS.glob("*.md")):
        code = re.findall(r"^```\w.*?\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
        lines = [line for block in code for line in block.splitlines() if " * * * /opt/" not in line]
        assert [line for line in lines if len(line) > 90] == [], path


def recipe(title: str) -> dict[str, Any]:
    """Run the recipe of the cookbook with a title, and return its variables."""
    if title not in ("Dead letters", "Schema history"):
        pytest.importorskip("deltalake" if title.startswith("Merge") else "duckdb")
    section = (DOCS / "cookbook.md").read_text().split(f"\n## {title}\n")[1].partition("\n## ")[0]
    [code] = markdown.code_blocks(section, "python")
    names: dict[str, Any] = {}
    exec(compile(code, title, "exec"), names)
    return names


# -- merge -----------------------------------------------------------------------------------------------------------


def rows_of_the_server(table: str, *names: str) -> list[tuple[str, ...]]:
    state = json.loads(gzip.decompress((captures.DATA / "16.shop.state.json.gz").read_bytes()))[f"public.{table}"]
    places = [state["columns"].index(name) for name in names]
    return sorted(tuple(str(row[place]) for place in places) for row in state["rows"])


def test_the_merged_table_is_the_servers(clone: Path) -> None:
    result = recipe("Merge changes into a table")["result"].tables["public.products"]
    deltalake = pytest.importorskip("deltalake")
    merged = deltalake.DeltaTable("lake/public.products").to_pyarrow_table().to_pylist()
    names = ("sku", "title", "price", "added")
    assert sorted(tuple(str(row[name]) for name in names) for row in merged) == rows_of_the_server("products", *names)
    # The second call has a part of the changes.
    assert 0 < result.upserts < result.rows


# -- the other recipes -----------------------------------------------------------------------------------------------


def test_the_audit_trail_has_what_test_decoding_printed(clone: Path) -> None:
    trail = recipe("Audit trail of a row")["trail"]
    recorded = gzip.decompress((captures.DATA / "16.shop.test_decoding.txt.gz").read_bytes()).decode()
    lines = re.findall(r"table public\.orders: (\w+): .*?id\[bigint\]:2 ", recorded)
    assert [op.upper() for _, _, op, _, _ in trail] == lines
    assert len(trail) > 0


ORDERS = rows_of_the_server("orders", "id", "state", "total")


def test_the_last_versions_of_a_dimension_are_the_rows_of_the_server_and_others_those_of_then(clone: Path) -> None:
    names = recipe("Slowly changing dimension, and a table as of a time")
    last = [row for row in names["history"].to_pylist() if row["valid_to"] is None]
    assert sorted((str(row["id"]), row["state"], str(row["total"])) for row in last) == ORDERS
    capture = names["capture"]
    expected = pgdecode.snapshot(capture.payloads, "public.orders", capture.positions, as_of=names["time"])
    assert 0 < len(expected) < len(last)
    rows = sorted(tuple(row.values()) for row in expected.select(["id", "state", "total"]).to_pylist())
    assert names["as_of"] == rows


def test_events_like_those_of_debezium_leave_the_rows_of_the_server(clone: Path) -> None:
    rows: dict[int, dict[str, Any]] = {}
    kinds = set()
    for event in recipe("Rows like those of Debezium")["events"].to_pylist():
        kinds.add(event["op"])
        if event["before"]:
            assert repr(rows.pop(event["before"]["id"])) == repr(event["before"])
        rows[event["after"]["id"]] = event["after"]
    assert kinds == {"c", "u"}
    assert sorted((str(r["id"]), r["state"], str(r["total"])) for r in rows.values()) == ORDERS


def test_an_iceberg_changelog_leaves_the_rows_of_the_server(clone: Path) -> None:
    rows: Counter[tuple[str, ...]] = Counter()
    changelog = recipe("Rows like those of an Iceberg changelog")["changelog"].to_pylist()
    for row in changelog:
        added = row["_change_type"] in ("INSERT", "UPDATE_AFTER")
        rows[str(row["id"]), row["state"], str(row["total"])] += 1 if added else -1
        assert min(rows.values()) >= 0
    assert sorted(rows.elements()) == ORDERS
    assert [row["_change_ordinal"] for row in changelog] == sorted(row["_change_ordinal"] for row in changelog)


def test_dead_letters_have_the_payload_and_the_rest_goes_on(clone: Path) -> None:
    names = recipe("Dead letters")
    (letter,) = pq.read_table("dead.parquet").to_pylist()
    assert (letter["seq"], letter["error"].split()[0]) == (70, "TRUNCATED")
    assert letter["data"] == names["damaged"][70]
    capture = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    whole = pgdecode.ChangeDecoder().decode(capture["data"], capture["seq"])
    assert len(names["changes"]) == whole.num_rows - 1


def test_the_schema_history_names_what_was_added_and_dropped(clone: Path) -> None:
    history = recipe("Schema history")["history"]
    assert [(added, dropped) for _, added, dropped, _, _ in history[1:]] == [(["phone"], []), ([], ["prefs"])]
    assert history[0][4] == ["id"]


def test_parameters_that_share_an_item_have_their_own_defaults() -> None:
    pytest.importorskip("griffe")
    import griffe

    from support.docs import parameters

    code = '''
def decode(df: int, unwrap: str = "auto", encoding: str = "UTF8", datestyle: str = "ISO, MDY"):
    """Decode.

    Parameters
    ----------
    df, unwrap
        As in `changes`.
    encoding, datestyle : str
        Settings of the session.
    """
'''
    with griffe.temporary_visited_module(code, docstring_parser="numpy") as module:
        parameters.SharedItems().on_package(pkg=module)
        docstring = module["decode"].docstring
        assert docstring
        items = next(section.value for section in docstring.parsed if section.kind.value == "parameters")
    assert [(item.name, item.annotation and str(item.annotation), item.value) for item in items] == [
        ("df, unwrap", None, None),
        ("encoding", "str", "'UTF8'"),
        ("datestyle", "str", "'ISO, MDY'"),
    ]


@pytest.mark.full
@pytest.mark.parametrize("package", [pgdecode, spark_udfs], ids=lambda package: package.__name__)
def test_every_parameter_is_described_on_the_reference_pages(package: ModuleType) -> None:
    griffe = pytest.importorskip("griffe")
    from support.docs import parameters

    loaded = griffe.load(package.__name__, search_paths=[ROOT], docstring_parser="numpy", resolve_aliases=True)
    parameters.SharedItems().on_package(pkg=loaded)
    functions = [name for name in package.__all__ if inspect.isfunction(getattr(package, name))]
    assert functions
    for name in functions:
        function = loaded[name].final_target
        kinds = ("parameters", "other parameters")
        sections = [item for item in function.docstring.parsed if item.kind.value in kinds]
        described = {
            one for section in sections for item in section.value for one in item.name.replace("*", "").split(", ")
        }
        if described:
            assert described == set(inspect.signature(getattr(package, name)).parameters), name
