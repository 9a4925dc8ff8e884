"""Targets by their URIs: parquet:, duckdb:, ducklake:, delta: and iceberg:."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from pgdecode.datasets.errors import RunError
from pgdecode.lake.target import Target
from pgdecode.protocol.errors import did_you_mean
from pgdecode.storage.errors import PathError

# By the beginning of the URI: the module with the function `open_target`, and the extra that has its libraries.
_FORMATS = {
    "parquet": ("parquet_format", None),
    "delta": ("delta", "delta"),
    "iceberg": ("iceberg", "iceberg"),
    "duckdb": ("duckdb.database", "duckdb"),
    "ducklake": ("duckdb.database", "duckdb"),
}
SCHEMES = (*_FORMATS,)
_FORMS = "parquet:FOLDER, delta:FOLDER, iceberg:CATALOG/NAMESPACE, duckdb:FILE or ducklake:CATALOG"


def lake_target(target: str | Target, *, storage_options: Mapping[str, str] | None = None) -> Target:
    """Make a target by its URI.

    Parameters
    ----------
    target : str
        - "parquet:FOLDER": a folder or a URI of an object store. Each table is a folder of Parquet files.
        - "delta:FOLDER": each table is a Delta table, in a folder of its own.
        - "iceberg:CATALOG" or "iceberg:CATALOG/NAMESPACE": a catalog of pyiceberg; "iceberg:./FOLDER": one in a folder.
        - "duckdb:FILE" and "ducklake:CATALOG"

        A `Target` is returned as it is.
    storage_options : mapping, optional
        How to connect to an object store, such as {"region": "eu-west-1"}; for DuckDB, options of ATTACH.

    Raises
    ------
    PathError
        If it is no such URI.
    TypeError
        If it is neither text nor a `Target`.
    RunError
        If the libraries of the format are not installed.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise TypeError(f"target is a str such as 'parquet:FOLDER', or a Target, not {type(target).__name__}")
    scheme, colon, location = target.partition(":")
    if scheme not in _FORMATS or not colon or not location:
        known = did_you_mean(scheme, [*_FORMATS]) if colon and scheme not in _FORMATS else ""
        raise PathError(f"target is {_FORMS}; not {scheme[:40] + colon!r}{known}")
    module, extra = _FORMATS[scheme]
    try:
        found = importlib.import_module(f"pgdecode.lake.{module}").open_target(target, storage_options)
    except ImportError as error:
        if extra is None or (error.name or "").startswith("pgdecode"):
            raise
        raise RunError(
            f"target {scheme}: needs a package that is not installed: pip install 'pgdecode[{extra}]'"
        ) from None
    assert isinstance(found, Target)
    return found
