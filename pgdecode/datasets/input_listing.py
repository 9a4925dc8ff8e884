"""Lists the input of a run, without opening files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pgdecode.payloads.text_rows import TEXT_SUFFIXES
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, ObjectPath, real_path, size_of
from pgdecode.storage.object_store import found_object, listed


class Listed(NamedTuple):
    """A file in the listing of the input, which has not been opened. The fields are those of `InputFile`."""

    path: str
    bytes: int
    version: str


Listing = list[tuple[FilePath, Listed]]


def listing_of(source: FilePath, *, may_be_empty: bool = False) -> Listing:
    """List the files of a path with their sizes and times, without opening them.

    Raises
    ------
    PathError
        As in `find_files`; with `may_be_empty`, a folder may have no files.
    """
    paths = find_files(source, may_be_empty=may_be_empty)
    if isinstance(source, ObjectPath):
        return [(path, Listed(str(path), size_of(path), _version(path))) for path in paths]
    real = str(real_path(source))
    if paths == [source]:
        stat = source.stat()
        return [(source, Listed(real, stat.st_size, str(stat.st_mtime_ns)))]
    # Text, because there may be a hundred thousand of them.
    start = 0 if str(source) == "." else len(os.path.join(source, ""))
    found: Listing = []
    for path in paths:
        name = str(path)
        stat = os.stat(name)
        found.append((path, Listed(os.path.join(real, name[start:]), stat.st_size, str(stat.st_mtime_ns))))
    return found


def _version(path: FilePath) -> str:
    return path.e_tag or "" if isinstance(path, ObjectPath) else ""


def find_files(path: FilePath, *, may_be_empty: bool = False) -> Sequence[FilePath]:
    """List a Parquet file, or all `*.parquet` files below a folder in sorted order.

    As in Spark, files and folders whose names begin with `_` or `.` are ignored, except partitions such as `_x=1`.

    Raises
    ------
    PathError
        If the path does not exist, or has no Parquet files and `may_be_empty` is false.
    """
    if isinstance(path, ObjectPath):
        return _find_objects(path, may_be_empty)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PathError(f"{path}: {'not a file or folder' if path.exists() else 'no such file or folder'}")
    found = []
    for folder, below, names in os.walk(path):
        below[:] = [name for name in below if not is_hidden(name)]
        found += [Path(folder, name) for name in names if name.endswith(".parquet") and not is_hidden(name)]
    if not found and not may_be_empty:
        every = (name for _, _, names in os.walk(path) for name in names)
        text = sum(name.lower().endswith(TEXT_SUFFIXES) and not is_hidden(name) for name in every)
        others = f"; it has {text:,} CSV or JSON files, which are read one at a time: name one" if text else ""
        raise PathError(f"{path}: no Parquet file (*.parquet) in this folder{others}")
    # Path compares parts too, but makes them again for each comparison.
    return sorted(found, key=lambda path: path.parts)


def _find_objects(path: ObjectPath, may_be_empty: bool) -> list[ObjectPath]:
    try:
        found = found_object(path)
        if found is not None:
            return [found]
        below = [item for item, _ in listed(path)]
    except FileNotFoundError as error:
        raise PathError(f"{path}: {error.strerror}") from None
    kept = [item for item in below if not any(map(is_hidden, item.below(path).split("/")))]
    kept = [item for item in kept if item.name.endswith(".parquet")]
    if not kept and not may_be_empty:
        raise PathError(f"{path}: {'no Parquet object (*.parquet) below it' if below else 'no such object or prefix'}")
    return sorted(kept, key=lambda item: item.key)


def is_hidden(name: str) -> bool:
    """Whether Spark ignores files and folders with this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
