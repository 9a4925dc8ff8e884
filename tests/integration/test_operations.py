"""The schedules, alerts and the container file of the page on operations, and the format of the metrics."""

from __future__ import annotations

import configparser
import re
import shlex
from typing import Any

import pytest

from pgdecode.cli.lake.sync_command import sync_command
from pgdecode.cli.lake.verify_command import verify_command
from pgdecode.lake.sync_run import Report, TargetReport, metrics_of
from support.docs import markdown

PAGE = (markdown.DOCS / "operations.md").read_text()
COMMANDS = {"sync": sync_command, "verify": verify_command}
# Source: https://prometheus.io/docs/instrumenting/exposition_formats/
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{{LABEL}(?:,{LABEL})*\}})? (-?[0-9.e+-]+)")


def part(marker: str, language: str) -> str:
    [block] = markdown.code_blocks(markdown.between(PAGE, marker), language)
    return block


def words_of_schedules() -> list[list[str]]:
    yaml = pytest.importorskip("yaml")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(part("sync: systemd", "ini"))
    found = [shlex.split(line)[5:] for line in part("sync: cron", "sh").splitlines()]
    found.append(shlex.split(unit["Service"]["ExecStart"].replace("\\\n", " ")))
    stateful, job = yaml.safe_load_all(part("sync: kubernetes", "yaml"))
    for pod in (stateful["spec"]["template"], job["spec"]["jobTemplate"]["spec"]["template"]):
        [container] = pod["spec"]["containers"]
        found.append(["pgdecode", *container["args"]])
        volumes = {item["name"] for item in pod["spec"].get("volumes", ())}
        volumes |= {item["metadata"]["name"] for item in stateful["spec"]["volumeClaimTemplates"]}
        assert {item["name"] for item in container["volumeMounts"]} <= volumes
        if "livenessProbe" in container:
            found.append(container["livenessProbe"]["exec"]["command"])
    return found


def test_the_commands_of_schedules_are_valid() -> None:
    found = words_of_schedules()
    assert [words[1] for words in found] == ["sync", "verify", "sync", "sync", "sync", "verify"]
    for program, command, *words in found:
        assert program.rpartition("/")[2] == "pgdecode"
        COMMANDS[command].make_context(command, words)


def report_with_everything() -> Report:
    report = Report(1.5, 2.0, 10, 1, [], 100, 300, failures=2, error='cannot "read"\nit \\')
    report.slot = {"active": "t", "wal_status": "reserved", "safe_wal_size": "12", "restart_lsn": "0/1"}
    counts = {"upserts": 1, "deletes": 2, "rows": 3, "files_added": 4, "bytes_added": 5, "commit_lsn": 9}
    report.targets = {'delta:a"b\\c': TargetReport({'public."odd\n"': counts}, 9, 1.0, "failed")}
    return report


def test_metrics_have_the_text_format_of_prometheus_and_alerts_use_those_that_exist() -> None:
    yaml = pytest.importorskip("yaml")
    lines = metrics_of(report_with_everything()).split("\n")
    assert lines.pop() == ""
    described: dict[str, set[str]] = {}
    samples = []
    for line in lines:
        if line.startswith("# "):
            kind, name, text = line[2:].split(" ", 2)
            assert kind not in described.setdefault(name, set())
            described[name].add(kind)
            assert (kind, text) == ("TYPE", "gauge") or (kind == "HELP" and "\\" not in text)
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        float(found[2])
        # The lines of a metric follow each other, after those that describe it.
        assert [*described][-1] == found[1]
        assert described[found[1]] == {"HELP", "TYPE"}
        samples.append(line.rpartition(" ")[0])
    assert len(samples) == len({*samples})
    names = {name.removeprefix("pgdecode_sync_") for name in described}
    table = set(re.findall(r"`pgdecode_sync_([a-z_]+)", (markdown.DOCS / "sync.md").read_text()))
    assert names == table
    rules: list[dict[str, Any]] = yaml.safe_load(part("alerts", "yaml"))["groups"][0]["rules"]
    for rule in rules:
        used = re.findall(r"pgdecode_sync_([a-z_]+)", rule["expr"] + rule["annotations"]["summary"])
        assert used
        assert {*used} <= names


def test_the_container_has_the_extras_of_the_package_and_a_user_who_is_not_root() -> None:
    text = (markdown.DOCS / "deploy" / "Containerfile").read_text()
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((markdown.ROOT / "pyproject.toml").read_text())["project"]
    found = re.search(r"\$1\[([a-z,]+)\]", text)
    assert found is not None
    assert {*found[1].split(",")} <= {*project["optional-dependencies"]}
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert 'ENTRYPOINT ["pgdecode"]' in text
    assert "fsGroup: 10001" in PAGE
