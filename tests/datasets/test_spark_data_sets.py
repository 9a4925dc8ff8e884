"""`decode_files` and the functions of DataFrames continue a data set as the shell does."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from growing_input import FORMS, captured_file, in_parquet, sequence
from pyspark.sql import DataFrame, SparkSession

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from spark_udfs import changes, decode_files, replication_state, snapshot, table_changes
from support.compare import rows_of
from support.data_sets import local, ordered
from support.docs import markdown
from support.tiers import full, long

pytest_plugins = ["support.spark_session"]

PAYLOADS, ENDS = sequence()
BOUNDS = [0, *ENDS]
OUTPUTS: dict[str, list[str]] = {"messages": [""], "changes": [""], "public.a": [""]}
Words = dict[str, list[str]]
WORDS: Words = {"messages": [], "changes": ["--changes"], "public.a": ["--table", "public.a"]}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(*bounds: int, folder: str = "raw") -> None:
    for start, end in pairwise(bounds):
        captured_file(Path(folder, f"{start:020}.parquet"), PAYLOADS[start:end], start)


def read(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.parquet(str(Path(name).absolute()))  # the JVM has another working directory


def assert_whole(what: list[str], out: str = "out") -> None:
    """Compare with one call of the shell over everything."""
    files(0, len(PAYLOADS), folder="all")
    words = WORDS[what[0]] if len(what) == 1 else [word for name in what for word in ("--table", name)]
    assert main(["decode", "all", "whole", *words]) == 0
    for below in what if len(what) > 1 else [None]:
        assert ordered(local(Path(out)).rows(below)) == ordered(local(Path("whole")).rows(below))


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "form"),
    [
        (["changes"], "captured"),
        (["public.a", "public.b"], "files"),
        long(["messages"], "captured"),
        long(["public.a"], "days"),
        long(["changes"], "files"),
    ],
)
def test_the_same_call_again_decodes_what_has_come_since(spark: SparkSession, what: list[str], form: str) -> None:
    growing = FORMS[form]
    given: Any = what[0] if len(what) == 1 else what
    for number, (start, end) in enumerate(pairwise(BOUNDS), 1):
        growing.add(Path(), PAYLOADS, start, end)
        decode_files(spark, growing.name, "out", what=given)
        assert len(local(Path("out")).checked()) == number
        before = local(Path("out")).contents()
        again = decode_files(spark, growing.name, "out", what=given)
        assert again.rows == 0
        assert local(Path("out")).contents() == before
    decode_files(spark, growing.name, "one", what=given)
    for below in what if len(what) > 1 else [None]:
        assert ordered(local(Path("out")).rows(below)) == ordered(local(Path("one")).rows(below))


@pytest.mark.parametrize("turns", ["lsps", full("slsl"), full("spls")])
@pytest.mark.parametrize("what", ["changes", full("public.a")])
def test_the_shell_spark_and_python_take_turns(spark: SparkSession, turns: str, what: Any) -> None:
    in_python = []
    for turn, (start, end) in zip(turns, pairwise(BOUNDS), strict=True):
        files(start, end)
        if turn == "l":
            assert main(["decode", "raw", "out", *WORDS[what]]) == 0
        elif turn == "s":
            decode_files(spark, "raw", "out", what=what)
        else:
            decoder = ChangeDecoder.load("out")
            positions = range(start, end)
            if what == "changes":
                in_python += rows_of(decoder.decode(PAYLOADS[start:end], positions))
            else:
                in_python += rows_of(decoder.table(PAYLOADS[start:end], what, positions))
            decoder.save("out")
    runs = local(Path("out")).manifests()
    assert [manifest["engine"][0] for manifest in runs] == list(turns)
    position = "position" if what == "changes" else "_position"
    found = [row[position] for row in local(Path("out")).rows()] + [str(row[position]) for row in in_python]
    files(0, len(PAYLOADS), folder="all")
    assert main(["decode", "all", "whole", *WORDS[what]]) == 0
    assert sorted(found) == sorted(row[position] for row in local(Path("whole")).rows())


@pytest.mark.full
def test_the_shell_knows_the_positions_and_options_that_functions_have_saved(spark: SparkSession) -> None:
    files(0, ENDS[0])
    assert main(["decode", "raw", "out", "--changes"]) == 0
    # With holes: no other range tells that these rows were decoded.
    in_parquet(Path("raw/rest.parquet"), PAYLOADS[ENDS[0] :], seq=range(100, 100 + 2 * (len(PAYLOADS) - ENDS[0]), 2))
    replication_state(read(spark, "raw/rest.parquet"), state="out").save("out")
    assert main(["decode", "raw", "out", "--changes"]) == 0
    assert len(local(Path("out")).manifests()) == 2
    assert main(["decode", "raw", "out", "--changes", "--mode", "PERMISSIVE"]) == 2


@pytest.mark.full
def test_the_result_tells_what_this_call_did(spark: SparkSession) -> None:
    results = []
    for start, end in pairwise(BOUNDS):
        files(start, end)
        results.append(decode_files(spark, "raw", "out", what="changes"))
    assert [(item.first_position, item.last_position) for item in results] == [
        (start, end - 1) for start, end in pairwise(BOUNDS)
    ]
    assert [item.rows for item in results] == [manifest["rows"] for manifest in local(Path("out")).manifests()]
    assert results[-1].undecided == 1


def test_decoded_files_may_be_deleted_and_outputs_moved(spark: SparkSession) -> None:
    files(*BOUNDS[:3])
    decode_files(spark, "raw", "out", what="changes")
    shutil.rmtree("raw")
    Path("away").mkdir()
    for name in local(Path("out")).outputs():
        Path("out", name).rename(Path("away", name))
    files(*BOUNDS[2:])
    decode_files(spark, "raw", "out", what="changes")
    assert not set(local(Path("away")).outputs()) & set(local(Path("out")).outputs())
    for name in local(Path("away")).outputs():
        Path("away", name).rename(Path("out", name))
    local(Path("out")).checked()
    assert_whole(["changes"])


@pytest.mark.full
def test_what_does_not_continue_is_refused(spark: SparkSession) -> None:
    files(0, ENDS[0])
    decode_files(spark, "raw", "out", what="changes")
    before = local(Path("out")).contents()

    def refused(text: str, source: str = "raw", what: Any = "changes", **options: Any) -> None:
        with pytest.raises(ValueError, match=text):
            decode_files(spark, source, "out", what=what, **options)
        after = local(Path("out")).contents()
        assert {**after, "_pgdecode/lock": b""} == {**before, "_pgdecode/lock": b""}

    refused("mode.*PERMISSIVE", mode="PERMISSIVE")
    refused("public.a", what="public.a")
    refused("format", format="csv")
    late = captured_file(Path("raw/late.parquet"), PAYLOADS[2 : ENDS[0] + 3], 2)
    refused("late.parquet.*came too late")
    late.unlink()
    files(ENDS[1], ENDS[2])
    refused("missing")
    shutil.rmtree("raw")
    shutil.move("out/_pgdecode", "kept")
    files(ENDS[0], ENDS[1])
    with pytest.raises(ValueError, match=r"out.*_pgdecode"):
        decode_files(spark, "raw", "out", what="changes")
    shutil.move("kept", "out/_pgdecode")
    decode_files(spark, "raw", "out", what="changes")
    files(0, ENDS[0])
    result = decode_files(spark, "raw", "out", what="changes", overwrite=True)
    assert (result.first_position, result.last_position) == (0, ENDS[1] - 1)
    local(Path("out")).checked()


@pytest.mark.full
@pytest.mark.parametrize("form", ["folder", long("json")])
def test_functions_of_dataframes_continue_a_data_set(spark: SparkSession, form: str) -> None:
    files(*BOUNDS[:2])
    assert main(["decode", "raw", "out", "--changes"]) == 0
    expected = ChangeDecoder()
    expected.decode(PAYLOADS[: ENDS[0]], range(ENDS[0]))
    state: Any = "out" if form == "folder" else ChangeDecoder.load("out").state
    in_parquet(Path("day-2.parquet"), PAYLOADS[ENDS[0] :], seq=range(ENDS[0], len(PAYLOADS)))
    rows = read(spark, "day-2.parquet")
    found = changes(rows, state=state).orderBy("commit_position", "position").toArrow()
    wanted = expected.decode(PAYLOADS[ENDS[0] :], range(ENDS[0], len(PAYLOADS)))
    assert found["position"].to_pylist() == wanted["position"].to_pylist()
    table = table_changes(rows, "public.a", state=state).orderBy("_commit_position", "_position").toArrow()
    of_table = [row["position"] for row in rows_of(wanted) if row["relation_name"] == "a"]
    assert table["_position"].to_pylist() == of_table
    assert snapshot(rows, "public.a", state=state).count() > 0
    if form == "folder":
        after = replication_state(rows, state=state)
        after.save("out")
        assert (after.undecided, after.input.last_position) == (1, len(PAYLOADS) - 1)
        runs = local(Path("out")).manifests()
        assert [manifest["engine"] for manifest in runs] == ["local", "spark"]
        files(*BOUNDS)
        # The shell goes on: nothing has come.
        assert main(["decode", "raw", "out", "--changes"]) == 0
        assert len(local(Path("out")).manifests()) == 2
        with pytest.raises(ValueError, match="out"):
            after.save("out")


@pytest.mark.full
def test_every_day_with_functions_of_dataframes(spark: SparkSession) -> None:
    found = []
    for day, (start, end) in enumerate(pairwise([0, ENDS[1], len(PAYLOADS)])):
        in_parquet(Path(f"raw/day={day}/part.parquet"), PAYLOADS[start:end], seq=range(start, end))
        rows = read(spark, f"raw/day={day}")
        state = "state" if day else None
        changes(rows, state=state).write.parquet(str(Path(f"out/day={day}").absolute()))
        replication_state(rows, state=state).save("state")
        found += [
            row
            for path in sorted(Path(f"out/day={day}").glob("part-*"))
            for row in pq.read_table(path, partitioning=None)["position"].to_pylist()
        ]
    wanted = ChangeDecoder().decode(PAYLOADS, range(len(PAYLOADS)))
    assert sorted(found) == sorted(wanted["position"].to_pylist())
    assert len(local(Path("state")).checked()) == 2


@pytest.mark.parametrize("number", [1, full(2)], ids=["files", "functions"])
def test_every_day_as_in_the_documentation(spark: SparkSession, number: int) -> None:
    code = markdown.code_blocks((markdown.ROOT / "docs" / "runs.md").read_text(), "python")[number]
    for day, (start, end) in enumerate(pairwise([0, *ENDS[1:]]), 1):
        in_parquet(Path(f"raw/day={day}/part.parquet"), PAYLOADS[start:end], seq=range(start, end))
    # The JVM has another working directory.
    here = code if number == 1 else code.replace('f"', f'f"{Path.cwd()}/')
    here = here.replace("public.orders", "public.a")
    exec(compile(here, "docs/runs.md", "exec"), {"spark": spark})
    if number == 1:
        files(0, len(PAYLOADS), folder="all")
        assert main(["decode", "all", "whole", "--table", "public.a"]) == 0
        assert ordered(local(Path("out")).rows("public.a")) == ordered(local(Path("whole")).rows())
    else:
        paths = [path for day in (1, 2, 3) for path in Path(f"out/day={day}").glob("part-*")]
        found = [position for path in paths for position in pq.read_table(path)["position"].to_pylist()]
        wanted = ChangeDecoder().decode(PAYLOADS, range(len(PAYLOADS)))
        assert sorted(found) == sorted(wanted["position"].to_pylist())
