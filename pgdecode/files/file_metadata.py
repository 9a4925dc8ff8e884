"""What the footer of a payload file says of the database: user-defined types, and relations before the first row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.files.payload_files import FileFault
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.types.type_parser import declared

TYPES_KEY = b"pgdecode.types"
CATALOG_KEY = b"pgdecode.rows.row_schema"


@dataclass(frozen=True)
class UserType:
    """A type of a database.

    Attributes
    ----------
    oid : int
    name : str
        "schema.type", as the stream names it.
    declaration : str
        As a value of `types=`: "enum", "numeric(12,2)", "(x int4, y int4)", "range(float8)".
    """

    oid: int
    name: str
    declaration: str


def readable(types: Iterable[UserType]) -> tuple[UserType, ...]:
    """Leave out types that are made of what pgdecode cannot read: they stay as if nothing were said of them."""
    left = tuple(types)
    while True:
        known: dict[str | int, str] = {item.name: item.declaration for item in left}
        kept = tuple(item for item in left if _isreadable(item.declaration, known))
        if len(kept) == len(left):
            return kept
        left = kept


def _isreadable(declaration: str, known: Mapping[str | int, str]) -> bool:
    try:
        declared(declaration, known)
    except ValueError:
        return False
    return True


def to_json(types: Iterable[UserType]) -> str:
    """Write types as JSON."""
    return json.dumps([[item.oid, item.name, item.declaration] for item in types])


def from_json(text: str | bytes) -> tuple[UserType, ...]:
    """Read types that `to_json` wrote.

    Raises
    ------
    ValueError
        If it is something else.
    """
    found: Any = json.loads(text)
    try:
        types = tuple(UserType(int(oid), str(name), str(declaration)) for oid, name, declaration in found)
    except (TypeError, ValueError) as error:
        raise ValueError("no list of types in JSON") from error
    return readable(types)


def overridden(types: Iterable[UserType], given: Mapping[str | int, str] | None) -> dict[str | int, str]:
    """Give types as `types=` takes them; what the caller says of a type, by its name or its OID, comes first."""
    chosen = dict(given or {})
    found: dict[str | int, str] = {}
    for item in types:
        declaration = chosen.get(item.oid, chosen.get(item.name, item.declaration))
        # A domain's message has the OID of the domain with the name of its base type; an array has that of its
        # element's type. So both are keys.
        found[item.oid] = found[item.name] = declaration
    return {**found, **chosen}


def types_of(paths: Iterable[Path], given: Mapping[str | int, str] | None = None) -> dict[str | int, str] | None:
    """Give what the footers of files say of types as `types=` takes it; of a type that two describe, the later one.

    Parameters
    ----------
    paths : iterable of Path
        In order; files that say nothing are passed over.
    given : mapping, optional
        What the caller says of types, which comes first.

    Returns
    -------
    dict, or None if nobody says anything

    Raises
    ------
    FileFault
        If a footer cannot be read.
    """
    found: dict[int, UserType] = {}
    contents: dict[bytes, None] = {}
    for path in paths:
        content = _entry(path, TYPES_KEY)
        if content is not None:
            # Files mostly repeat each other, and the later one decides.
            contents.pop(content, None)
            contents[content] = None
    for content in contents:
        try:
            found |= {item.oid: item for item in from_json(content)}
        except ValueError as error:
            raise FileFault(f"what the footers say of types: {error}") from error
    if not found:
        return None if given is None else dict(given)
    return overridden(readable(found.values()), given)


def catalog_of(paths: Sequence[Path]) -> RelationCatalog | None:
    """Give the relations that the first of files, in order, says were described before its first row, if it does.

    Raises
    ------
    FileFault
        If the footer cannot be read.
    """
    content = _entry(paths[0], CATALOG_KEY) if paths else None
    if content is None:
        return None
    try:
        catalog = RelationCatalog.from_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise FileFault(f"{paths[0]}: what the footer says of relations: {error}") from error
    return catalog if len(catalog) else None


def _entry(path: Path, key: bytes) -> bytes | None:
    try:
        metadata = pq.read_metadata(path.absolute()).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise FileFault(f"{path}: not a Parquet file") from error
    content: bytes | None = metadata.get(key)
    return content
