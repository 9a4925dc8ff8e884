"""Metadata in the footers of payload files: user-defined types, and relations described before the first row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgdecode.files.payload_file import CAPTURE_KEY, FileFault, PayloadFile
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.runs.continuity import IDENTITY
from pgdecode.storage.object_path import FilePath
from pgdecode.storage.parquet_input import read_metadata
from pgdecode.types.type_parser import declared

TYPES_KEY = b"pgdecode.types"
CATALOG_KEY = b"pgdecode.catalog"

# The footer of a `PayloadFile` has been read.
FileWithFooter = FilePath | PayloadFile


@dataclass(frozen=True)
class UserType:
    """A type of a database.

    Attributes
    ----------
    oid : int
    name : str
        "schema.type", as in the stream.
    declaration : str
        The type, as a value of `types=`: "enum", "numeric(12,2)", "(x int4, y int4)", "range(float8)".
    """

    oid: int
    name: str
    declaration: str


def readable(types: Iterable[UserType]) -> tuple[UserType, ...]:
    """Leave out types whose declaration, or one that it uses, pgdecode cannot parse. They remain unknown types."""
    left = tuple(types)
    while True:
        known: dict[str | int, str] = {item.name: item.declaration for item in left}
        kept = tuple(item for item in left if _is_readable(item.declaration, known))
        if len(kept) == len(left):
            return kept
        left = kept


def _is_readable(declaration: str, known: Mapping[str | int, str]) -> bool:
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
        If the JSON is not a list of types.
    """
    found: Any = json.loads(text)
    try:
        types = tuple(UserType(int(oid), str(name), str(declaration)) for oid, name, declaration in found)
    except (TypeError, ValueError) as error:
        raise ValueError("the JSON is not a list of types") from error
    return readable(types)


def overridden(types: Iterable[UserType], given: Mapping[str | int, str] | None) -> dict[str | int, str]:
    """Convert types to a value of `types=`. The caller's types, by name or OID, take precedence."""
    chosen = dict(given or {})
    found: dict[str | int, str] = {}
    for item in types:
        declaration = chosen.get(item.oid, chosen.get(item.name, item.declaration))
        # The Type message of a domain has the domain's OID but the name of its base type. Arrays are found by their
        # element type. So both the OID and the name are keys.
        found[item.oid] = found[item.name] = declaration
    return {**found, **chosen}


def types_of(
    files: Iterable[FileWithFooter], given: Mapping[str | int, str] | None = None
) -> dict[str | int, str] | None:
    """Read the types in the footers of files, as a value of `types=`. The caller's types take precedence.

    Returns None without any types. Otherwise as `user_types_of`.
    """
    found = user_types_of(files)
    return overridden(found, given) if found or given is not None else None


def user_types_of(files: Iterable[FileWithFooter], before: Iterable[UserType] = ()) -> tuple[UserType, ...]:
    """Read the types in the footers of files. If two files have a type, the later one applies.

    Parameters
    ----------
    files : iterable of Path, ObjectPath or PayloadFile
        In order. Files without types are ignored.
    before : iterable of UserType
        Types of earlier files.

    Raises
    ------
    FileFault
        If a footer cannot be read.
    """
    found = {item.oid: item for item in before}
    contents: dict[bytes, None] = {}
    for file in files:
        content = _entry(file, TYPES_KEY)
        if content is not None:
            # Most files have equal types. A repeated value moves to the end, because the later one applies.
            contents.pop(content, None)
            contents[content] = None
    for content in contents:
        try:
            found |= {item.oid: item for item in from_json(content)}
        except ValueError as error:
            raise FileFault(f"types in the footers of the files: {error}") from error
    return readable(found.values())


def source_of(files: Iterable[FileWithFooter]) -> dict[str, Any] | None:
    """Read where files were captured, from the footers that `pgdecode capture` writes; None without any.

    Raises
    ------
    FileFault
        If a footer cannot be read, or two files were captured from different slots.
    """
    found: dict[str, Any] | None = None
    first: FileWithFooter | None = None
    for file in files:
        content = _entry(file, CAPTURE_KEY)
        if content is None:
            continue
        try:
            origin = dict(json.loads(content)["origin"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileFault(f"{file}: description of the capture in the footer: {type(error).__name__}") from error
        if found is not None and any(origin.get(name) != found.get(name) for name in IDENTITY):
            raise FileFault(f"{file}: was captured from another slot or server than {first}")
        found, first = origin, first or file
    return found


def catalog_of(files: Sequence[FileWithFooter]) -> RelationCatalog | None:
    """Read the relations that were described before the first row, from the footer of the first file; None without any.

    Raises
    ------
    FileFault
        If the footer cannot be read.
    """
    content = _entry(files[0], CATALOG_KEY) if files else None
    if content is None:
        return None
    try:
        catalog = RelationCatalog.from_json(content)
    except (ValueError, KeyError, TypeError) as error:
        raise FileFault(f"{files[0]}: relations in the footer: {error}") from error
    return catalog if len(catalog) else None


def _entry(file: FileWithFooter, key: bytes) -> bytes | None:
    if isinstance(file, PayloadFile):
        return file.entries.get(key)
    try:
        metadata = read_metadata(file).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise FileFault(f"{file}: not a Parquet file") from error
    content: bytes | None = metadata.get(key)
    return content
