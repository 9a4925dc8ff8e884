"""The benchmarks run and report results. The measured times are never checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

pytest.importorskip("rich")

ROOT = Path(__file__).parents[2]
DATA_SETS = ["pgbench.text", "pgbench.bin", "wide.text", "wide.bin", "toast.text", "columns.text", "tiny.text"]
STREAMED = "streamed.text"
IDEAL_THREADS = ["envelope, one call, ideal two threads", "envelope, tuples, one call, ideal two threads"]
BASELINES = ["memory read", "C walk"]
PGDECODE = [
    "envelope",
    "envelope, tuples",
    "envelope, kind and relation",
    "envelope, two threads",
    "envelope, tuples, two threads",
    "envelope, one call",
    "envelope, tuples, one call",
    "envelope, one call, two threads",
    "envelope, tuples, one call, two threads",
    "decode, one message",
]
FORMS = ["unwrap, hexadecimal", "unwrap, base64", "unwrap, XLogData"]
CHANGES = [
    "changes",
    "filter and rows",
    "changes of one table, typed",
    "snapshot",
]  # not for a sample, which has no complete transactions
ROW_SETS = [
    *("pgbench.text, accounts", "pgbench.bin, accounts", "wide.text, rows", "wide.bin, rows"),
    *("toast.text, rows", "columns.text, rows"),
]
TYPED_ROWS = [
    *("typed rows", "typed rows, two threads", "typed rows, one call", "typed rows, one call, two threads"),
    "typed rows, one call, ideal two threads",
]
FILES = "pgbench.text, files"
TYPES = [
    *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "time", "timestamp", "timestamptz"),
    *("uuid", "text", "jsonb", "bytea"),
]
N_ROWS = 200
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the baselines need a C compiler"
)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks from the source tree, like a user."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, encoding="utf-8")


def in_source_tree(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that imports the benchmarks."""
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("benchmarks") / "figures.json"
    done = run("--quick", "--rows", str(N_ROWS), "--json", path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is for terminals
    for name in (*DATA_SETS, STREAMED, *PGDECODE, *ROW_SETS, FILES, *TYPES):
        assert name in done.stdout
    return path


@pytest.fixture
def report(figures: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def test_json_names_machine_and_command(report: dict[str, Any]) -> None:
    assert set(report) == {"command", "effort", "machine", "lines", "skipped", "spark", "unfinished"}
    assert report["spark"] is None  # full runs, or by name
    assert report["unfinished"] == []
    assert report["command"].startswith("python -m benchmarks --quick --rows 200")
    assert report["effort"] == "quick"
    assert {"cpu", "cores", "python", "pyarrow", "pgdecode", "compiler", "date"} <= set(report["machine"])


def test_every_case_is_measured_or_has_a_reason(report: dict[str, Any]) -> None:
    for data_set in DATA_SETS:
        measured = [line["line"] for line in report["lines"] if line["data_set"] == data_set]
        skipped = {skip["line"]: skip["reason"] for skip in report["skipped"] if skip["data_set"] == data_set}
        assert [name for name in measured if name in PGDECODE] == PGDECODE
        others = ["plain Python decoder", "pypgoutput", "pg-logical-replication", "pgwire"]
        expected = [*BASELINES, *IDEAL_THREADS, *PGDECODE, *FORMS, *CHANGES, *others]
        assert sorted([*measured, *skipped]) == sorted(expected)
        assert [name for name in measured if name in FORMS] == (FORMS if data_set == "pgbench.text" else [])
        assert all(skipped.values())


def test_messages_in_streams_are_measured_by_cases_that_keep_their_order(report: dict[str, Any]) -> None:
    measured = [line["line"] for line in report["lines"] if line["data_set"] == STREAMED]
    assert not set(measured) & set(IDEAL_THREADS)
    assert [name for name in measured if name in PGDECODE] == [name for name in PGDECODE if "one message" not in name]


@pytest.mark.parametrize("name", ["pgbench.text", "tiny.text", "streamed.text", "toast.text", "columns.text"])
def test_changes_are_verified_on_every_recording_with_complete_transactions(name: str) -> None:
    script = f"""
from benchmarks import datasets, measure
from benchmarks.cases import all_cases as cases, changes

data = datasets.load({name!r}, len(datasets.recorded({name!r})))
for case in cases.CASES:
    if case.name in {CHANGES!r} and case.missing(data) is None:
        measure.Runner(case, data, measure.QUICK).warm_up()
        print(case.name)
assert changes.committed_rows(data, None) > 100
"""
    done = in_source_tree(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (CHANGES[:-1] if name.startswith("tiny") else CHANGES)


def test_the_command_line_is_measured_with_a_copy_as_baseline(tmp_path: Path) -> None:
    path = tmp_path / "files.json"
    done = run("--quick", "--rows", "40000", "--only", "files", "--json", path)
    assert done.returncode == 0, done.stderr
    lines = {line["line"]: line for line in json.loads(path.read_text())["lines"]}
    for name, copy in (
        ("command line", "Parquet read, write"),
        ("command line, one table", "Parquet read, write, one table"),
    ):
        assert lines[name]["ratios"][copy] > 0
    for name in ("messages", "changes", "one table", "snapshot", "inspect"):
        one, two = (f"command line, {name}, {number}" for number in ("one worker", "two workers"))
        assert list(lines[two]["ratios"]) == [one]
    assert "x one worker" in done.stdout


def test_changes_are_measured_if_the_messages_make_complete_transactions(tmp_path: Path) -> None:
    path = tmp_path / "changes.json"
    done = run("--quick", "--rows", "40000", "--only", "pgbench.text: (changes|snap)", "--json", path)
    assert done.returncode == 0, done.stderr
    lines = {line["line"]: line for line in json.loads(path.read_text())["lines"]}
    assert [line for line in lines if line in CHANGES] == CHANGES
    assert lines["changes of one table, typed"]["ratios"]["filter and rows"] > 0
    assert "of filter and rows" in done.stdout


@needs_compiler
def test_the_rows_of_a_table_are_measured_with_baselines(report: dict[str, Any]) -> None:
    for data_set in ROW_SETS:
        lines = {line["line"]: line for line in report["lines"] if line["data_set"] == data_set}
        baselines = [*BASELINES, "C rows"] if data_set.startswith("wide") else BASELINES
        assert list(lines) == [*baselines, *TYPED_ROWS]
        for name, one in [("typed rows, two threads", "typed rows"), (TYPED_ROWS[-1], "typed rows, one call")]:
            assert one in lines[name]["ratios"]
        assert set(baselines) <= set(lines["typed rows"]["ratios"])


def test_each_type_is_measured_in_both_formats_and_as_a_cast_if_there_is_one(report: dict[str, Any]) -> None:
    for pg_type in TYPES:
        lines = {line["line"]: line for line in report["lines"] if line["data_set"] == pg_type}
        has_cast = pg_type not in ("time", "uuid", "text", "jsonb", "bytea")
        assert list(lines) == ["pyarrow cast"] * has_cast + ["text", "binary"]
        decoded = [lines["text"], lines["binary"]]
        assert all(("pyarrow cast" in line["ratios"]) == has_cast for line in decoded)


def test_results_have_their_figures(report: dict[str, Any]) -> None:
    for line in report["lines"]:
        assert 0 < line["n_rows"] <= N_ROWS
        assert line["n_bytes"] >= line["n_rows"]
        assert len(line["seconds"]) >= 3
        assert min(line["seconds"]) > 0
        assert line["best_messages_per_second"] >= line["messages_per_second"] > 0
        assert line["gigabytes_per_second"] > 0
        assert line["peak_bytes"] is None  # full runs only


@needs_compiler
def test_results_have_a_ratio_to_every_baseline_of_the_run(report: dict[str, Any]) -> None:
    for line in report["lines"]:
        if line["data_set"] in DATA_SETS and line["line"] not in IDEAL_THREADS:
            assert {"memory read", "C walk", "plain Python decoder"} <= set(line["ratios"])
        assert all(ratio > 0 for ratio in line["ratios"].values())


@pytest.mark.parametrize("name", [name for name in DATA_SETS if not name.startswith("columns")])
def test_a_sample_has_all_kinds_of_message_in_their_proportions(name: str) -> None:
    done = in_source_tree(f"""
import collections, json
from benchmarks import datasets

whole = datasets.load({name!r}, 300_000)  # pgbench: six messages in each transaction, and 150 rows for each sampled
parts = [collections.Counter(payload[:1].decode() for payload in data.payloads.to_pylist())
         for data in (whole, whole.sample(2_000))]
print(json.dumps(parts))
""")
    assert done.returncode == 0, done.stderr
    whole, sample = json.loads(done.stdout)
    assert sum(sample.values()) == 2_000
    for kind, count in whole.items():
        assert sample.get(kind, 0) / 2_000 == pytest.approx(count / 300_000, abs=0.03)


def test_slow_cases_have_samples_of_fewer_messages_where_these_are_large() -> None:
    done = in_source_tree("""
from benchmarks import datasets, measure

for name, n_rows in (("pgbench.text", 40_000), ("toast.text", 40_000), ("columns.text", 1_000), ("wide.bin", 50)):
    data = datasets.load(name, n_rows)
    found = measure.sample_of(data, 10_000)
    print(found.n_rows, found.n_bytes)
""")
    assert done.returncode == 0, done.stderr
    pgbench, toast, columns, few = [tuple(map(int, row.split())) for row in done.stdout.splitlines()]
    assert pgbench[0] == 10_000
    assert 1_000 < toast[0] < 3_000
    assert 2_000_000 < toast[1] < 3_000_000
    assert 200 <= columns[0] < 300
    assert few[0] == 50


def test_a_killed_run_leaves_its_measurements(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    done = in_source_tree(f"""
import os
from benchmarks import __main__ as command, measure

def cut_off(data, *others, measured=measure.measure):
    if data.name == "wide.bin":
        os._exit(9)  # as if killed: no cleanup
    return measured(data, *others)

measure.measure = cut_off
command.main(["--quick", "--rows", "50", "--only", "(wide|date).*: (envelope|text)$", "--json", {str(path)!r}])
""")
    assert done.returncode == 9, done.stderr
    assert os.listdir(tmp_path) == ["figures.json"]
    found = json.loads(path.read_text())
    assert {line["data_set"] for line in found["lines"]} == {"wide.text"}
    assert found["unfinished"] == ["wide.bin", "date"]
    shown = run("--load", path)
    assert shown.returncode == 0, shown.stderr
    assert "PARTIAL: the run did not reach wide.bin, date" in shown.stdout


def test_an_earlier_run_is_shown_drawn_and_written_to_a_readme(figures: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    readme, drawing = tmp_path / "README.md", tmp_path / "figures.png"
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    readme.write_text(text, encoding="utf-8")
    for _ in range(2):  # the second time over its own figures
        done = run("--load", figures, "--readme", readme, "--plot", drawing)
        assert done.returncode == 0, done.stderr
    assert drawing.read_bytes().startswith(b"\x89PNG")
    written = readme.read_text(encoding="utf-8")
    assert written.count("**wide.bin**") == written.count("| envelope, tuples |") // 9 == 1
    assert written.partition("\n## Cases")[0].count("| envelope, tuples |") == 1
    between = [part.partition("<!-- summary: end -->")[2].split("<!-- figures: begin")[0] for part in (written, text)]
    assert between[0] == between[1] != ""
    assert written.split("<!-- figures: end -->")[1] == text.split("<!-- figures: end -->")[1]


@needs_compiler
def test_a_chosen_case_brings_its_baselines(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    done = run("--quick", "--rows", "50", "--only", "wide.text: envelope, kind", "--json", path)
    assert done.returncode == 0, done.stderr
    lines = [(line["data_set"], line["line"]) for line in json.loads(path.read_text())["lines"]]
    assert lines == [("wide.text", name) for name in (*BASELINES, "envelope, kind and relation")]


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
def test_a_full_run_measures_memory(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    done = run("--rows", "50", "--only", "pgbench.bin: envelope, tuples, one call", "--json", path)
    assert done.returncode == 0, done.stderr
    assert all(line["peak_bytes"] >= 0 for line in json.loads(path.read_text())["lines"])


def test_a_wrong_result_stops_the_run() -> None:
    script = """
import dataclasses
from benchmarks import datasets, measure
from benchmarks.cases import all_cases as cases, case

data = dataclasses.replace(datasets.load("wide.text", 50), relation_id_sum=1)
for tried in cases.CASES:
    if data.kind in tried.kinds and tried.group != "baseline" and tried.missing(data) is None:
        try:
            measure.Runner(tried, data, measure.QUICK).warm_up()
        except case.WrongResult as problem:
            print(problem)
        else:
            print(tried.name, "was not stopped")
"""
    done = in_source_tree(script)
    assert done.returncode == 0, done.stderr
    problems = done.stdout.splitlines()
    assert len(problems) >= len(PGDECODE)
    assert all("wide.text: sum of relation ids is" in problem for problem in problems)


def test_a_wrong_row_or_value_stops_the_run() -> None:
    script = """
import dataclasses
import pyarrow as pa
from benchmarks import datasets, measure, values
from benchmarks.cases import all_cases as cases, case

rows = datasets.load("wide.bin, rows", 50)
few = dataclasses.replace(cases.typed_rows(rows), payloads=[rows.payloads.slice(1)])
good = values.load_values(next(kind for kind in values.KINDS if kind.name == "date"), 50)
bad = dataclasses.replace(good, expected=good.expected.take(pa.array([1] * 50)))
for check in (
    lambda: cases.verify_rows(rows, few),
    lambda: cases.verify_values(bad, cases.Values(bad, False)),
    lambda: cases.verify_values(bad, cases.Values(bad, True)),
    lambda: cases.verify_values(bad, cases.Cast(bad)),
):
    try:
        check()
    except case.WrongResult as problem:
        print(problem)
    else:
        print("was not stopped")
"""
    done = in_source_tree(script)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert "wide.bin, rows: number of inserts is" in first
    assert len(others) == 3
    assert all("date: number of right values is" in problem for problem in others)


def test_a_wrong_change_or_output_stops_the_run() -> None:
    script = """
import dataclasses
from benchmarks import datasets
from benchmarks.cases import case, changes, workers

data = datasets.load("pgbench.text", 40_000)
few = dataclasses.replace(data, payloads=data.payloads.slice(0, 20_000))
found = workers.WholeRun(data, workers.COMMANDS[0], 2)
other, right = workers.WholeRun(few, workers.COMMANDS[0], 2), found.run
found.run = lambda n: other.run(n) if n == 2 else right(n)
for check in (
    lambda: changes.verify_filter(data, changes.filter_and_rows(few)),
    lambda: changes.verify_snapshot(data, changes.snapshot(few)),
    lambda: workers.verify_one_worker(data, workers.WholeRun(few, workers.COMMANDS[3], 1)),
    lambda: workers.verify_two_workers(data, found),
):
    try:
        check()
    except case.WrongResult as problem:
        print(problem)
    else:
        print("was not stopped")
"""
    done = in_source_tree(script)
    assert done.returncode == 0, done.stderr
    *counts, files = done.stdout.splitlines()
    assert len(counts) == 3
    assert all("pgbench.text: number of rows is" in problem for problem in counts)
    assert files == "pgbench.text: number of equal files is 0, not 8"


def test_only_cases_with_two_threads_have_a_ratio_to_one_thread(figures: Path) -> None:
    script = f"""
from pathlib import Path
from benchmarks import report

rows = map(report.cells, report.read_json(Path({str(figures)!r})).lines)
print(*(row[0] for row in rows if row[report.HEADINGS.index("x one thread")]), sep="\\n")
"""
    done = in_source_tree(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert all(name.endswith("two threads") for name in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--only", "no such case"], "no case matches --only", id="nothing chosen"),
        pytest.param(["--only", "("], "not a regular expression", id="bad pattern"),
        pytest.param(["--rows", "0"], "--rows is at least 1", id="no rows"),
        pytest.param(["--load", "missing.json"], "missing.json", id="missing file"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_cases_on_spark_without_a_floor_are_not_in_all_rounds() -> None:
    pytest.importorskip("pyspark")
    done = in_source_tree("""
from benchmarks import spark

ran = []
names = ("rows: no decoding", "rows", "write")
taken = spark.measured({name: lambda name=name: ran.append(name) for name in names}, 4, 1)
print({name: len(seconds) for name, seconds in taken.items()})
print(*ran, sep=", ")
print(sorted(spark.summary(taken, 10)["rows"]))
""")
    assert done.returncode == 0, done.stderr
    counts, ran, figures = done.stdout.splitlines()
    assert counts == str({"rows: no decoding": 4, "rows": 4, "write": 1})
    there, back = ["rows: no decoding", "rows"], ["rows", "rows: no decoding"]
    # In the first round, and after cases without a floor, cases with a floor run without timing.
    assert ran == ", ".join(["write", *there, *there, "write", *there, *back, *there, *back, *there])
    assert figures == str(["floor_ratio", "floor_spread", "median", "rounds", "rows"])


def test_the_cases_on_spark_run_and_have_a_ratio_to_their_floor(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    out = tmp_path / "spark.json"
    arguments = "--quick --rows 40000 --rounds 2 --json"
    command = [sys.executable, "-m", "benchmarks.spark", *arguments.split(), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["index_bytes"] > 0
    table = "public.pgbench_accounts"
    names = ["changes", table, f"{table} without _old"]
    jobs = [f"decode_files, {what}" for what in ("messages", "changes", table)]
    column = "parse_pgoutput, 3 fields"
    assert set(figures["seconds"]) - {f"{column}: constant fields"} == {
        "scan in the JVM",
        "index",
        *names,
        *(f"{name}: constant rows" for name in names),
        *jobs,
        *(f"{name}: no decoding" for name in jobs),
        *(f"{name}, route dataframe" for name in jobs),
        column,
        "table_changes(...).write.parquet",
        "parse_pgoutput, all fields, write.parquet",
    }
    beside = [name for name, line in figures["lines"].items() if line["floor_ratio"] is not None]
    assert {*names, *jobs} <= set(beside) <= {*names, *jobs, column}
    assert {len(taken) for taken in figures["seconds"].values()} == {2}
    assert done.stdout.count("x without decoding") == len(beside)
