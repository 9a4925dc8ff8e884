"""Places that Spark reads and writes: paths of this machine, and URIs of any file system that Hadoop knows."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from pgdecode.files.atomic_output import remove

Location = str | os.PathLike[str]

# One letter and a colon is a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GLOB = re.compile(r"([\\{}\[\]*?])")


def is_path(location: Location) -> bool:
    """Tell a path of this machine from a URI, which a `Path` never is."""
    return isinstance(location, os.PathLike) or not _SCHEME.match(location)


def as_uri(location: Location) -> str:
    """Name a place for Hadoop, which unescapes nothing and may have another default file system than this machine's."""
    return f"file:{os.path.abspath(location)}" if is_path(location) else os.fspath(location)


def as_pattern(location: Location) -> str:
    """Name a place for Spark's reader, which would take some characters of a path for wildcards."""
    return _GLOB.sub(r"\\\1", as_uri(location)) if is_path(location) else os.fspath(location)


def as_location(uri: str) -> str:
    """Give the path that Spark escaped to a URI, or the URI if it is not of this machine."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri


def as_path(uri: str) -> Path:
    """Give the path that `staged` gave as a URI; Hadoop escapes nothing in it."""
    return Path(uri.removeprefix("file:"))


@contextmanager
def staged(spark: SparkSession, target: Location) -> Iterator[str]:
    """Give a folder beside the target, which takes the target's name in the end; on any exception it is removed.

    As `pgdecode.files.atomic_output.staged`, but wherever Spark can write.

    Raises
    ------
    FileExistsError
        If the target exists, at the beginning or in the end.
    """
    if is_path(target):
        # Not by way of the JVM, which takes some milliseconds for each step.
        with _staged_here(Path(os.path.abspath(target))) as folder:
            yield as_uri(folder)
        return
    files, path = _hadoop(spark, as_uri(target))
    if files.exists(path):
        raise FileExistsError(f"{target}: exists already")
    # Not by Path.suffix, which takes what is before a colon in the name for a scheme.
    _, hidden = _hadoop(spark, f"{path.toString()}.{uuid.uuid4().hex}.partial")
    try:
        yield hidden.toString()
        # Into a folder that came to be in the meantime, this one would be moved.
        if files.exists(path) or not files.rename(hidden, path):
            raise FileExistsError(f"{target}: cannot be named so; has it come to exist?")
    finally:
        files.delete(hidden, True)


@contextmanager
def _staged_here(target: Path) -> Iterator[Path]:
    hidden = target.with_name(f"{target.name}.{uuid.uuid4().hex}.partial")
    if os.path.lexists(target):
        raise FileExistsError(f"{target}: exists already")
    try:
        yield hidden
        # It would take the place of an empty folder.
        if os.path.lexists(target):
            raise FileExistsError(f"{target}: cannot be named so; has it come to exist?")
        hidden.rename(target)
    finally:
        remove(hidden)


def change_suffix(spark: SparkSession, folder: str, former: str, suffix: str) -> None:
    """Rename the files of a folder that end in `former`."""
    files, path = _hadoop(spark, folder)
    for status in files.listStatus(path):
        name = status.getPath().getName()
        if name.endswith(former):
            files.rename(status.getPath(), _hadoop(spark, f"{folder}/{name.removesuffix(former)}{suffix}")[1])


def _hadoop(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Hadoop's file system of a URI, and its path there."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path
