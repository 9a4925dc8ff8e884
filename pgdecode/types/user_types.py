"""Types of a database that are not built in, and values of `types=` that have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgdecode.protocol.json_document import load_json
from pgdecode.types.type_parser import BY_OID, declared


@dataclass(frozen=True)
class UserType:
    """A type of a database.

    Attributes
    ----------
    oid : int
    name : str
        "schema.type", as in the stream. After `BY_OID`, columns find the type by its OID only.
    declaration : str
        The type, as a value of `types=`: "enum", "numeric(12,2)", "(x int4, y 16400)", "range(float8)".
    """

    oid: int
    name: str
    declaration: str

    @property
    def key(self) -> str:
        """The name as a key of `types=`."""
        return self.name.removeprefix(BY_OID)


def by_oid(oid: int, name: str, declaration: str) -> UserType:
    """Make a type that columns find by its OID only: another type may have had its name before, or get it later."""
    return UserType(oid, BY_OID + name, declaration)


def referred(item: UserType) -> set[int]:
    """Return the numbers in a declaration, which include the OIDs of the types that it refers to."""
    return {int(number) for number in re.findall(r"\b\d+\b", item.declaration)}


def readable(types: Iterable[UserType]) -> tuple[UserType, ...]:
    """Leave out types whose declaration, or one that it uses, pgdecode cannot parse. They remain unknown types."""
    left = tuple(types)
    while True:
        known = {key: item.declaration for item in left for key in (item.oid, item.name)}
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
    plain: Any = load_json(text)
    try:
        types = tuple(UserType(int(oid), str(name), str(declaration)) for oid, name, declaration in plain)
    except (TypeError, ValueError) as error:
        raise ValueError("the JSON is not a list of types") from error
    return readable(types)


def overridden(types: Iterable[UserType], given: Mapping[str | int, str] | None) -> dict[str | int, str]:
    """Convert types to a value of `types=`. The caller's types, by name or OID, take precedence."""
    chosen = dict(given or {})
    declarations: dict[str | int, str] = {}
    for item in types:
        declaration = chosen.get(item.oid, chosen.get(item.key, item.declaration))
        # The Type message of a domain has the domain's OID but the name of its base type. Arrays are found by their
        # element type. So both the OID and the name are keys.
        declarations[item.oid] = declarations[item.name] = declaration
    return {**declarations, **chosen}


class DescribedTypes(dict[str | int, str]):
    """A value of `types=`: the types that files describe, and the caller's, which take precedence.

    The options of a data set have the caller's alone, because later files may describe other types.

    Attributes
    ----------
    user_types : tuple of UserType
        From files.
    given : mapping or None
        The caller's.
    """

    def __init__(self, user_types: Iterable[UserType], given: Mapping[str | int, str] | None = None) -> None:
        self.user_types = tuple(user_types)
        self.given = given
        super().__init__(overridden(self.user_types, given))

    @classmethod
    def of(cls, types: Mapping[str | int, str] | None) -> DescribedTypes:
        """Convert a value of `types=`."""
        return types if isinstance(types, DescribedTypes) else cls((), types)

    def after(self, before: Iterable[UserType]) -> DescribedTypes:
        """Add the types of earlier files."""
        return DescribedTypes(readable(merged([*before, *self.user_types])), self.given)


def merged(versions: Iterable[UserType]) -> tuple[UserType, ...]:
    """Take the last description of each type. A composite type that has changed is text.

    Values do not tell which attributes they have: a dropped attribute may have had the type of one that was added.
    """
    by_type: dict[int, dict[str, UserType]] = {}
    for item in versions:
        # The last description moves to the end.
        described = by_type.setdefault(item.oid, {})
        described.pop(item.declaration, None)
        described[item.declaration] = item
    found = {oid: [*described.values()] for oid, described in by_type.items()}
    known: dict[str | int, str] = {oid: items[-1].declaration for oid, items in found.items()}
    return tuple(
        replace(items[-1], declaration="record") if _is_altered(items, known) else items[-1] for items in found.values()
    )


def _is_altered(items: Sequence[UserType], known: Mapping[str | int, str]) -> bool:
    """Whether the descriptions of a type are of different composites."""
    if len(items) == 1 or not all(item.declaration.startswith("(") for item in items):
        return any(item.declaration == "record" for item in items)
    try:
        first, *others = [declared(item.declaration, known) for item in items]
    except ValueError:
        return True
    return any(other != first for other in others)
