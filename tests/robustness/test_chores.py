"""Chores of the Makefile that take long: each starts with its options, and its parts run on little data."""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from complexity_shapes import SHAPES

from support.each import each

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="an sdist has no benchmarks")
MAKEFILE = (ROOT / "Makefile").read_text()
VALUES = {**dict(re.findall(r"^(\w+) \?= (\S+)$", MAKEFILE, re.MULTILINE)), "PYTHON": "python", "CURDIR": "."}
TOOLS = {"setup.py", "ruff", "mkdocs", "mypy"}


def commands() -> list[list[str]]:
    """Return the command lines of the Makefile that run Python, with the variables before `python`."""
    lines = [re.sub(r"\$\((\w+)\)", lambda name: VALUES.get(name[1], name[0]), line) for line in MAKEFILE.splitlines()]
    found = [re.split(r"  # | \|\| |;", line)[0] for line in lines if line.startswith("\t") and "$(" not in line]
    return [words for line in found if "python" in (words := shlex.split(line.rstrip("\\")))]


def after_python(words: list[str]) -> list[str]:
    return [word for word in words[words.index("python") + 1 :] if word != "-m"]


class StartedError(Exception):
    """The command line is valid."""


# A test before this one may have imported the module, which then runs a second time.
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
@each("words", [words for words in commands() if after_python(words)[0] not in {*TOOLS, "pytest"}], ids=" ".join)
def test_each_program_of_the_makefile_takes_the_options_that_it_gives(words: list[str]) -> None:
    given = after_python(words)
    folders = [word.split("=")[1] for word in words if word.startswith("PYTHONPATH=")]
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *arguments: list[str]) -> None:
        parse(parser, *arguments)
        raise StartedError

    with pytest.MonkeyPatch.context() as patch:
        for folder in ".".join(folders).split(":"):
            patch.syspath_prepend(ROOT / folder)
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", given)
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
        if "argparse" in run(given[0], "imported"):
            with pytest.raises(StartedError):
                run(given[0], "__main__")


def run(program: str, name: str) -> dict[str, object]:
    """Run a file or a module under a name, and return its globals."""
    return (
        runpy.run_path(program, None, name) if program.endswith(".py") else runpy.run_module(program, None, name, True)
    )


def test_the_tests_that_the_makefile_names_exist() -> None:
    named = re.findall(r"(?<=[\s=:])tests/[\w./]+", MAKEFILE)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.full
@each("name", SHAPES)
def test_each_shape_of_hostile_data_is_decoded(name: str) -> None:
    run, n_bytes = SHAPES[name](4096)
    run()
    assert n_bytes


@pytest.mark.full
def test_the_soak_decodes_its_recording_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import soak

    monkeypatch.setattr(sys, "argv", ["soak.py", "--messages", "80000"])
    monkeypatch.setattr(soak, "MOST_GROWTH", 1 << 40)  # memory grows at the start of each process
    assert soak.main() == 0


@pytest.mark.full
def test_a_second_editable_install_compiles_nothing_unless_a_source_has_changed(tmp_path: Path) -> None:
    pytest.importorskip("Cython", reason="Cython is only installed for development")
    source = tmp_path / "src" / "pgdecode" / "_native" / "one.pyx"
    compiled = tmp_path / "pgdecode" / "_native"
    for folder in (source.parent, compiled):
        folder.mkdir(parents=True)
    (tmp_path / "setup.py").write_bytes((ROOT / "setup.py").read_bytes())
    source.write_text("cdef int one = 1\n")
    for name in ("one", "_cyutility"):
        (compiled / name).with_suffix(sysconfig.get_config_var("EXT_SUFFIX")).touch()

    def is_compiled(changed: int) -> bool:
        """Run a command of `pip install -e`, after the source was changed so many seconds ago."""
        for path in (source, tmp_path / "setup.py"):
            os.utime(path, (time.time() - changed,) * 2)
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "egg_info"], cwd=tmp_path, check=True, capture_output=True
        )
        return not (tmp_path / "build" / "cython").exists()

    assert is_compiled(60)
    assert not is_compiled(-60)
