"""Runs one case, and judges what the command did.

A command passes if its exit code is documented; if a failure prints one line that is no traceback, and leaves all files
as they were; if a success wrote nothing but its outputs; and if the rows that it wrote are those that pyarrow reads
from the input, however this was damaged. A Parquet file that is valid but has fewer rows is a legitimate input.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode
from command_fuzz.command_lines import Line, command_line, command_of
from command_fuzz.damage import damage, files_below
from command_fuzz.fake_server import FakeServer
from command_fuzz.streams import captured
from pgdecode.cli.main import main
from pgdecode.files import payload_files

_CODES = {
    "capture": {0, 2, 3},
    "demo": {0, 2, 3},
    "decode": {0, 1, 2},
    "inspect": {0, 1, 2},
    "cat": {0, 1, 2},
}
_CLASS = re.compile(r"^(\w+\.)*\w*(Error|Exception|Invalid|Fault|Warning)\b(:|$)", re.MULTILINE)
# Parts of the texts of Python's own errors, which say nothing to a user.
_INTERNAL = re.compile(
    "too large to convert|object has no attribute|unsupported operand|index out of range|NoneType|not subscriptable|"
    "unhashable|positional argument|codec can't|embedded null|not supported between|not enough values|too many values|"
    "must be integers or|required argument|has to be|must be str"
)
_WARNING = "pgdecode: warning: "
# Names that a failed command may leave or change: a folder and its lock are made before its content is checked, and a
# log is written without obsolete lines when it is opened.
_LOCKS = ("_lock", "_capture.lock", "_capture.jsonl", "_next.json")
# How many cases are run as processes of their own.
_PROCESS_SHARE = 0.005


@dataclass
class Result:
    """What a case did.

    Attributes
    ----------
    command : str
    code : int or None
        None if an exception left the command.
    damages : list of str
    problem : str
        What is wrong; empty if nothing is.
    place : str
        The innermost place of an exception, to group findings.
    """

    number: int
    words: list[str]
    command: str = ""
    code: int | None = None
    damages: list[str] = field(default_factory=list)
    problem: str = ""
    place: str = ""
    err: str = ""


def run_case(seed: int, number: int, materials: Path) -> Result:
    """Run a case. The result depends on the arguments only, except for sizes and times in texts."""
    rng = random.Random(f"{seed} {number}")
    server = FakeServer(rng) if rng.random() < 0.15 else None
    line = command_line(rng, 1 if server is None else server.port)
    result = Result(number, line.words, command_of(line))
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=materials.parent))
    former = os.getcwd()
    try:
        # Links to the parent of the inputs lead to an empty folder.
        inputs = folder / "inputs"
        inputs.mkdir()
        _copy(line, materials, inputs)
        os.chdir(inputs)
        later = _damage(line, result, rng)
        before = _tree()
        with later(result):
            result.code, result.err, failure = _run(line, rng)
        if failure is not None:
            result.problem, result.place = failure
        else:
            # What is damaged meanwhile is not what the command did.
            unchanged = None if any(text.startswith("later") for text in result.damages) else before
            result.problem = _wrong(line, result, unchanged)
    except Exception as error:
        frames = "".join(traceback.format_exception(error)[-5:])
        result.problem, result.place = f"the fuzz failed: {frames}", f"the fuzz failed: {type(error).__name__}"
    finally:
        os.chdir(former)
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _copy(line: Line, materials: Path, folder: Path) -> None:
    """Copy what the words of a command line may name, and some more."""
    named = {word.partition("/")[0] for word in (*line.words, *line.inputs)} | {"types.parquet", "catalog.json"}
    for path in materials.iterdir():
        if path.name in named or (path.name.startswith(".shop-run") and "shop-run" in named):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)


def _damage(line: Line, result: Result, rng: random.Random) -> Callable[[Result], Any]:
    """Damage some inputs now. Return a context in which another is damaged while the command runs."""
    others = [path for path in files_below(Path()) if "\n" not in path.name]
    for _ in range(rng.choices([0, 1, 2, 4], [25, 55, 15, 5])[0]):
        if line.inputs:
            result.damages.append(damage(_target(line, rng), others, rng))
    n_footers = rng.randrange(3)
    target = _target(line, rng) if line.inputs and rng.random() < 0.06 else None

    @contextmanager
    def later(result: Result) -> Iterator[None]:
        if target is None:
            yield
            return
        as_usual, left = payload_files.read_footer, [n_footers]

        def read_footer(source: Any) -> Any:
            found = as_usual(source)
            if left[0] == 0:
                result.damages.append(f"later: {damage(target, others, rng)}")
            left[0] -= 1
            return found

        with mock.patch.object(payload_files, "read_footer", read_footer):
            yield

    return later


def _target(line: Line, rng: random.Random) -> Path:
    """Choose an input, or a file in it."""
    path = Path(rng.choice(line.inputs).replace("\0", "") or ".")
    if any(len(part) > 255 for part in path.parts):
        return Path("types.parquet")
    # Words may name any folder of this machine. Links in the folder lead to others.
    inside = os.path.normpath(Path.cwd() / path).startswith(f"{Path.cwd()}{os.sep}") and not path.is_symlink()
    if not inside:
        return Path("types.parquet")
    found = files_below(path) if path.is_dir() and rng.random() < 0.9 else []
    return rng.choice(found) if found else path


def _run(line: Line, rng: random.Random) -> tuple[int | None, str, tuple[str, str] | None]:
    """Run a command. Return its code and its errors, and what left it as an exception: a text and a place."""
    if rng.random() < _PROCESS_SHARE and not any("\0" in word for word in line.words):
        command = [sys.executable, "-m", "pgdecode", *line.words]
        done = subprocess.run([os.fsencode(word) for word in command], capture_output=True, timeout=60)
        return done.returncode, done.stderr.decode(errors="replace"), None
    with captured() as streams:
        failure = None
        code: int | None = None
        try:
            code = main(line.words)
        except (SystemExit, Exception) as error:
            place = next(
                (
                    f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                    for frame in reversed(traceback.extract_tb(error.__traceback__))
                    if f"{os.sep}pgdecode{os.sep}" in frame.filename
                ),
                "",
            )
            text = "".join(traceback.format_exception(error)[-6:])
            failure = (f"{type(error).__name__} left the command\n{text}", f"{type(error).__name__} {place}")
    return code, streams[1].getvalue().decode(errors="replace"), failure


def _tree() -> dict[str, str]:
    """Describe all files below the current folder."""
    found = {}
    for folder, folders, names in os.walk("."):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                found[str(path)] = "link " + os.readlink(path)
            elif path.is_file():
                found[str(path)] = hashlib.md5(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = "folder" if path.is_dir() else "other"
    return found


def _wrong(line: Line, result: Result, before: dict[str, str] | None) -> str:
    """Say what is wrong with what a command did; empty if nothing is."""
    code, err = result.code, result.err
    if code not in _CODES.get(result.command, {0, 2}):
        return f"exit code {code}"
    if "Traceback" in err or _CLASS.search(err):
        return "an exception is printed"
    if code and _INTERNAL.search(err):
        return f"an internal text: {_INTERNAL.search(err)[0]}"
    lines = [text for text in err.splitlines() if not text.startswith(_WARNING)]
    if code == 3 and "--status" in line.words and not lines:
        return ""  # the table of a slot that is lost
    if code and len(lines) != 1 and line.words and line.words[0] in _CODES:
        return f"{len(lines)} lines for a failure"
    if code and result.command != "other" and not lines[0].startswith("pgdecode: "):
        return "a failure without the name of the program"
    if before is not None:
        changed = _changed(before, _tree())
        allowed = _allowed(line, code)
        for name in changed:
            if not allowed(name.removeprefix("./")):
                return f"exit code {code}, but {name!r} was changed"
    return _wrong_rows(line) if before is not None and code == 0 and result.command == "decode" else ""


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _allowed(line: Line, code: int | None) -> Callable[[str], bool]:
    """Return whether a command may change a path."""
    words = [*line.outputs, *(word.partition("=")[2] for word in line.words if word.startswith("--"))]
    words += [word for option, word in pairwise(line.words) if option in ("--bad", "--write-catalog")]
    names = [os.path.normpath(name) for name in words if name and "\0" not in name]
    command = line.words[0] if line.words else ""

    def allowed(path: str) -> bool:
        if path.startswith("shop-run/_pgdecode/new"):
            return True  # leftovers, which any run may remove
        if path.rsplit("/", 1)[-1] in _LOCKS:
            return True
        if (code == 0 or command == "capture") and {path, path.split("/")[0]} & set(line.words):
            return True  # an output with an odd name
        if command != "capture" and code != 0:
            return False
        return any(name == "." or path == name or path.startswith(f"{name}/") for name in names)

    return allowed


def _wrong_rows(line: Line) -> str:
    """Compare the rows of an output with what pyarrow and the library make of the input."""
    if not line.is_plain or line.input is None or not line.input.is_parquet or "--snapshot" in line.words:
        return ""
    source, out = Path(line.words[1]), Path(line.words[2])
    if out.suffix not in ("", ".parquet") or line.words.count("--table") > 1 or out.name.endswith("-run"):
        return ""
    inputs = [source] if source.is_file() else sorted(source.rglob("*.parquet"))
    inputs = [path for path in inputs if path.is_file() and not any(part.startswith(("_", ".")) for part in path.parts)]
    of_changes = "--table" in line.words or "--changes" in line.words
    # Messages have no order, so that no other column is read.
    tables = [_read(path, ("seq", "data") if of_changes else ("data",)) for path in inputs]
    written = [path for path in files_below(out) if path.suffix == ".parquet" and "_pgdecode" not in path.parts]
    n_written = sum(pq.read_metadata(path).num_rows for path in written)
    table = line.words[line.words.index("--table") + 1] if "--table" in line.words else None
    n_read = 0
    if not of_changes:
        n_read = sum(found.num_rows for found in tables)
    else:
        decoder = pgdecode.ChangeDecoder()
        if len(tables) > 1:
            # Files are in the order of their positions.
            types = [found.schema.field("seq").type for found in tables if found.schema.names.count("seq") == 1]
            if types != [pa.int64()] * len(tables):
                return ""
            tables = sorted((found for found in tables if len(found)), key=lambda found: found["seq"][0].as_py())
        for found in tables:
            payloads = found["data"].combine_chunks()
            n_read += len(decoder.decode(payloads) if table is None else decoder.table(payloads, table))
    return "" if n_read == n_written else f"{n_written} rows were written, but the input has {n_read}"


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read the columns that a command reads."""
    with pq.ParquetFile(path) as file:
        return file.read([name for name in columns if name in file.schema_arrow.names])
