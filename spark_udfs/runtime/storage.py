"""Locations that Spark reads and writes: local paths, and URIs of file systems that Hadoop supports."""

from __future__ import annotations

import os
import re

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
