"""Whether the fuzzer would see it: bugs planted in copies of the sources, each a read of one byte too many."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from fuzz.build import BUILD, COVERAGE, LIBRARY, ROOT, SUFFIX, WRAP, compile_module
from fuzz.running import fuzz

PLANTED = BUILD / "planted"
SECONDS = 60
# As AddressSanitizer says it: until LLVM 15, and since. A value that is one byte too long is not read itself by a walk,
# which then reads what it takes for the next cell, the byte after that one; or finds that it stands behind the end.
OVER_READ = re.compile(
    r"heap-buffer-overflow.*is located [01] bytes (to the right of|after)|fuzz: a fault lies outside its payload",
    re.DOTALL,
)


class Bug(NamedTuple):
    """A line of a source made wrong; `module` is built with it, and `target` must find it."""

    target: str
    module: str
    source: str
    right: str
    wrong: str


BUGS = (
    Bug(
        *("walk", "_native/wire/tuples", "_native/wire/tuples.pxd"),
        right="if cell.length > left - 5 or cell.length > max_value_bytes:",
        wrong="if cell.length > left - 4 or cell.length > max_value_bytes:",
    ),
    Bug(
        *("text", "_native/codecs/text", "_native/memory/utf8.pxd"),
        right="memcpy(&word, text + length - 8, 8)",
        wrong="memcpy(&word, text + length - 7, 8)",
    ),
)


def plant(bug: Bug) -> Path:
    """Build the package with a bug; the folder that it is in."""
    library, sources = PLANTED / "lib", PLANTED / "src"
    for folder in (library, sources):
        shutil.rmtree(folder, ignore_errors=True)
    # Only one module is another: of the others there need be no copies.
    shutil.copytree(LIBRARY, library, copy_function=os.link)
    shutil.copytree(ROOT / "src", sources)
    path = sources / "pgdecode" / bug.source
    text = path.read_text()
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.source} has no single line to plant a bug in: {bug.right}")
    path.write_text(text.replace(bug.right, bug.wrong))
    module = Path("pgdecode") / bug.module
    compile_module((sources / module).with_suffix(".pyx"), library / f"{module}{SUFFIX}", sources, COVERAGE, *WRAP)
    return library


def check_bug(bug: Bug) -> str:
    """Let the fuzzer loose on a planted bug; raises where it does not find it."""
    found = fuzz(bug.target, SECONDS, 0, library=plant(bug), corpora=PLANTED / "corpus")
    if found.input is None or not OVER_READ.search(found.log):
        raise SystemExit(f"{bug.target}: a bug planted in {bug.source} was not found in {SECONDS} s\n{found.log}")
    return f"{bug.target}: a byte read too many, planted in {bug.source}, was found in {found.seconds:.1f} s"
