"""Locations that Spark reads and writes: local paths, and URIs of file systems that Hadoop supports."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from pgdecode.runs import atomic_output
from pgdecode.storage.errors import PathError, TargetExists
from spark_udfs.runtime.jvm import hadoop_path, is_connect

Location = str | os.PathLike[str]

# A single letter before a colon is a drive, not a scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_GLOB = re.compile(r"([\\{}\[\]*?])")


def is_path(location: Location) -> bool:
    """Whether a location is a local path, not a URI. A `Path` is always a path."""
    return isinstance(location, os.PathLike) or not _SCHEME.match(location)


def as_uri(location: Location) -> str:
    """Return a URI for Hadoop. It is not escaped. A path gets the scheme `file`, which may not be Hadoop's default."""
    return f"file:{os.path.abspath(location)}" if is_path(location) else os.fspath(location)


def as_pattern(location: Location) -> str:
    """Return a location for Spark's reader. Characters of a path that Spark treats as wildcards are escaped."""
    return _GLOB.sub(r"\\\1", as_uri(location)) if is_path(location) else os.fspath(location)


def as_location(uri: str) -> str:
    """Return the local path of a URI that Spark has escaped, or the URI if it is not a local one."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri


def as_path(uri: str) -> Path:
    """Return the local path of a URI from `staged`, which is not escaped."""
    return Path(uri.removeprefix("file:"))


@contextmanager
def staged(spark: SparkSession, target: Location, *, overwrite: bool = False) -> Iterator[str]:
    """Yield a temporary folder beside the target, and rename it to the target at the end. Remove it on any exception.

    Like `pgdecode.runs.atomic_output.staged`, but for all file systems that Spark can write.

    Raises
    ------
    TargetExists
        If the target exists, at the beginning or at the end, and is not to be overwritten.
    RunError
        If another process is writing the target, which is a path.
    DiskFull, ReadOnlyStorage, AccessDenied
        If the target, which is a path, cannot be written.
    PathError
        If the session is one of Spark Connect, and the target is a URI of another file system.
    """
    uri = as_uri(target)
    if is_path(target) or (is_connect(spark) and uri.startswith("file:")):
        # Without the JVM, which needs some milliseconds for each step.
        with atomic_output.staged(as_path(uri), overwrite=overwrite) as folder:
            yield as_uri(folder)
        return
    if is_connect(spark):
        raise PathError(f"{target}: is a URI, which Spark Connect cannot rename: use a path that all machines share")
    files, path = hadoop_path(spark, uri)
    if files.exists(path) and not overwrite:
        raise TargetExists(f"{target}: exists already")
    # Hadoop's Path.suffix would treat a name's part before a colon as a scheme.
    _, hidden = hadoop_path(spark, f"{path.toString()}.{uuid.uuid4().hex}.partial")
    try:
        yield hidden.toString()
        if overwrite:
            files.delete(path, True)
        # If another process has created the target, `rename` would move this folder into it.
        if files.exists(path) or not files.rename(hidden, path):
            raise TargetExists(f"{target}: cannot be renamed to this; was it created meanwhile?")
    finally:
        files.delete(hidden, True)


def change_suffix(spark: SparkSession, folder: str, former: str, suffix: str) -> None:
    """Rename the files of a folder that end in `former`."""
    if folder.startswith("file:"):
        for file in as_path(folder).iterdir():
            if file.name.endswith(former):
                file.rename(file.with_name(f"{file.name.removesuffix(former)}{suffix}"))
        return
    files, path = hadoop_path(spark, folder)
    for status in files.listStatus(path):
        name = status.getPath().getName()
        if name.endswith(former):
            files.rename(status.getPath(), hadoop_path(spark, f"{folder}/{name.removesuffix(former)}{suffix}")[1])
