"""The code of the pages under docs/ runs, and the recipes of the cookbook give what the server has."""

from __future__ import annotations

import gzip
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
import spark_udfs
from support import captures
from support.docs import markdown

ROOT = markdown.ROOT
DOCS = markdown.DOCS
RECIPES = markdown.code_blocks((DOCS / "cookbook.md").read_text(), "python")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the captures where a clone has them."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", ["concepts.md", "python.md", "errors.md"])
def test_the_snippets_of_a_page_run_one_after_the_other(
    page: str, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    snippets = markdown.code_blocks((DOCS / page).read_text(), "python")
    assert snippets
    for number, code in enumerate(snippets):
        exec(compile(code, f"{page} {number}", "exec"), names)
        printed = capsys.readouterr().out
        assert bool(printed) == ("print(" in code)
        assert printed != "[]\n"


def shell_lines() -> list[str]:
    return [
        line for block in markdown.code_blocks((DOCS / "shell.md").read_text(), "sh") for line in block.splitlines()
    ]


@pytest.mark.full
@pytest.mark.parametrize("line", shell_lines())
def test_a_command_line_runs(line: str, clone: Path) -> None:
    done = subprocess.run([sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout or "decode " in line


def recipe(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(RECIPES[number], f"cookbook {number}", "exec"), names)
    return names


# -- merge -----------------------------------------------------------------------------------------------------------


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def server_keys(capture: str, table: str, key: str) -> list[str]:
    state = json.loads(gzip.decompress((captures.DATA / f"{capture}.state.json.gz").read_bytes()))[table]
    return sorted(row[state["columns"].index(key)] for row in state["rows"])


def test_the_merged_table_is_the_servers(clone: Path) -> None:
    pytest.importorskip("deltalake")
    merged = recipe(0)["orders"].to_pyarrow_table().to_pylist()
    assert sorted(str(row["id"]) for row in merged) == server_keys("16.shop", "public.orders", "id")
    state = json.loads(gzip.decompress((captures.DATA / "16.shop.state.json.gz").read_bytes()))["public.orders"]
    at = {name: state["columns"].index(name) for name in ("id", "state", "total", "note", "ref")}
    expected = [[row[place] for place in at.values()] for row in state["rows"]]
    assert sorted([str(row[name]) for name in at] for row in merged) == sorted(expected)


@pytest.mark.parametrize(("table", "key"), [("public.a", "id"), ("public.d", "id"), ("public.full_", "id")])
def test_a_merge_moves_keys_keeps_toast_and_deletes(table: str, key: str, clone: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    names = recipe(0)
    capture = pq.read_table(captures.DATA / "16.txns.v1.parquet")
    whole = pgdecode.ChangeDecoder().table(capture["data"], table, capture["seq"])
    commits = list(dict.fromkeys(whole["_commit_position"].to_pylist()))
    schema = pa.schema([field.remove_metadata() for field in whole.schema if not field.name.startswith("_")])
    # Each commit merged alone, and in batches of three: after each batch as `snapshot` of all payloads so far.
    for step in sorted({1, 3, len(commits)}):
        target = deltalake.DeltaTable.create(f"lake/{table}-{step}", schema)
        for start in range(0, len(commits), step):
            batch = commits[start : start + step]
            names["merge"](target, whole.filter(pa.compute.is_in(whole["_commit_position"], pa.array(batch))), key)
            target.update_incremental()
            n = capture["seq"].to_pylist().index(batch[-1]) + 1
            expected = pgdecode.snapshot(capture["data"][:n], table, capture["seq"][:n])
            found = target.to_pyarrow_table().to_pylist()
            kept = [{name: row.get(name) for name in schema.names if name in expected.schema.names} for row in found]
            assert in_order(kept) == in_order(expected.select(list(kept[0]) if kept else []).to_pylist())


# -- the other recipes -----------------------------------------------------------------------------------------------


def test_the_audit_trail_has_what_test_decoding_printed(clone: Path) -> None:
    trail = recipe(1)["trail"]
    recorded = gzip.decompress((captures.DATA / "16.shop.test_decoding.txt.gz").read_bytes()).decode()
    lines = re.findall(r"table public\.orders: (\w+): .*?id\[bigint\]:2 ", recorded)
    assert [change["_op"].upper() for change in trail] == lines
    assert len(trail) > 0


def test_dead_letters_have_the_payload_and_the_rest_goes_on(clone: Path) -> None:
    names = recipe(2)
    (letter,) = pq.read_table("dead.parquet").to_pylist()
    assert (letter["seq"], letter["error"].split()[0]) == (70, "TRUNCATED")
    assert letter["data"] == names["damaged"][70]
    capture = pq.read_table(captures.DATA / "16.shop.v1.parquet")
    whole = pgdecode.ChangeDecoder().decode(capture["data"], capture["seq"])
    assert len(names["changes"]) == whole.num_rows - 1


def test_the_schema_history_names_what_was_added_and_dropped(clone: Path) -> None:
    history = recipe(3)["history"]
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
