"""Makes the target of a run: a data set in a local folder or in an object store, or a single local file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.object_folder import ObjectFolder
from pgdecode.datasets.run import Target
from pgdecode.datasets.single_file import SingleFile
from pgdecode.storage.object_path import FilePath, Location, ObjectPath, file_path


def target_at(path: FilePath, *, as_file: bool = False) -> Target:
    """Return the target at a path."""
    if isinstance(path, ObjectPath):
        return ObjectFolder(path)
    return SingleFile(path) if as_file else LocalFolder(path)


def read_manifests(location: Location, storage_options: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Read the manifests of the runs of a data set, in order. They list its files.

    Parameters
    ----------
    location : path or URI
        The folder of the data set. Names of files are relative to it.
    storage_options : mapping, optional
        How to connect to an object store, as in `spark_udfs.decode_files`.

    Raises
    ------
    RunFault
        If it is not a data set, or a manifest is missing or damaged.
    AccessDenied, StoreUnreachable
        If an object store refuses the request, or does not answer.
    """
    return target_at(file_path(location, storage_options)).manifests()
