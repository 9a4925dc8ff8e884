"""Types as a user writes them: `numeric(12,2)`, `character varying(10)[]`, `(street text, zip int4)`.

Source: PostgreSQL documentation, "Data Types", table 8.1 and "Composite Types"; SimpleTypename, parser/gram.y.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from pgdecode.protocol.errors import did_you_mean
from pgdecode.types.pgtypes import (
    ENUM,
    NAME_BY_OID,
    NAMED,
    RECORD,
    Decoding,
    array_of,
    as_text,
    composite_of,
    multirange_of,
    named,
    range_of,
)

# Before the name of a type in `types`: only other declarations refer to it by this name. Columns have its OID.
BY_OID = "="
MAX_DEPTH = 16  # nested composites and ranges: bounds the recursion of the native codecs

# SQL names of types -> PostgreSQL's own names (the documentation's table 8.1).
SPELLINGS: Mapping[str, str] = {
    "bigint": "int8",
    "bit varying": "varbit",
    "boolean": "bool",
    "char": "bpchar",
    "char varying": "varchar",
    "character": "bpchar",
    "character varying": "varchar",
    "dec": "numeric",
    "decimal": "numeric",
    "double precision": "float8",
    "float": "float8",
    "int": "int4",
    "integer": "int4",
    "national char": "bpchar",
    "national char varying": "varchar",
    "national character": "bpchar",
    "national character varying": "varchar",
    "nchar": "bpchar",
    "nchar varying": "varchar",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}
EXTENSIONS = frozenset({item.name for item in NAMED} | {"hstore", "vector", "halfvec"})
_SCALARS = {name for name in NAME_BY_OID.values() if not name.endswith("[]")}
KNOWN: tuple[str, ...] = tuple(sorted({*SPELLINGS, *_SCALARS, *EXTENSIONS, "enum", "record"}))

# Lowest and highest value of each modifier of a type.
_MODIFIERS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "numeric": ((1, 1000), (-1000, 1000)),
    "float": ((1, 53),),
    **dict.fromkeys(("varchar", "bpchar"), ((1, 10485760),)),
    **dict.fromkeys(("bit", "varbit"), ((1, 83886080),)),
    **dict.fromkeys(("time", "timetz", "timestamp", "timestamptz", "interval"), ((0, 6),)),
    **dict.fromkeys(("vector", "halfvec"), ((1, 16000),)),
    "money": ((0, 10),),
}
_INTERVAL_FIELDS = frozenset({"year", "month", "day", "hour", "minute", "second", "to"})
_TOKENS = re.compile(r'\s*("(?:[^"]|"")+"|[^\W\d][\w$]*|-?\d+|[][(),.]|$)')


class InvalidTypes(ValueError):
    """A type that the caller declares for something that cannot have it."""


def declared(text: str, types: Mapping[str | int, str] | None = None) -> Decoding:
    """Make the decoding of a type that the caller has declared.

    Parameters
    ----------
    text : str
        A type's name with modifiers and `[]`, as in SQL; "enum"; "(name type, ...)" for a composite; "range(type)" or
        "multirange(type)" for a user-defined range; the OID of a type, which is built in or in `types`.
    types : mapping of OID or "schema.type" to such a text, optional
        Meaning of each OID and "schema.type" inside `text`.

    Raises
    ------
    ValueError
        If the text is not a type. The message lists the known names.
    """
    return _Reader(text, dict(types or {}), ()).everything()


def builtin_name(text: str) -> str | None:
    """PostgreSQL's own name, such as "int4[]", of a built-in type or an extension's; None for "schema.type".

    Raises
    ------
    InvalidTypes
        If the name has no schema and is not such a type.
    """
    if "." in text and not text.startswith("pg_catalog."):
        return None
    reader = _Reader(text, {}, ())
    _, name, modifiers = reader.scalar_name()
    dimensions = reader.dimensions()
    if reader.rest() or modifiers or named(name) is None:
        raise InvalidTypes(f'types has the key {text!r}: a user-defined type needs its schema, such as "public.mood"')
    name = without_underscore(name)
    return name + "[]" if dimensions and not name.endswith("[]") else name


def without_underscore(name: str) -> str:
    """Write an array's name in pg_type, such as "_int4", as "int4[]". Other names are returned unchanged."""
    return name[1:] + "[]" if name.startswith("_") else name


class _Reader:
    """Parses one text. `within` are the keys of the user's types that are being resolved around it."""

    def __init__(
        self, text: str, types: Mapping[str | int, str], within: tuple[str | int, ...], depth: int = 0
    ) -> None:
        self.text = text
        self.types = types
        self.within = within
        self.depth = depth
        self.offset = 0

    def everything(self) -> Decoding:
        decoding = self.type()
        if self.rest():
            raise self.wrong(f"{self.rest()!r} is left over")
        return decoding

    def rest(self) -> str:
        return self.text[self.offset :].strip()

    def wrong(self, why: str) -> ValueError:
        return ValueError(f"{self.text!r} is not a valid type: {why}")

    def peek(self) -> str:
        """Return the next token; empty at the end."""
        match = _TOKENS.match(self.text, self.offset)
        if match is None:
            raise self.wrong(f"unexpected {self.rest()[:1]!r}")
        return match[1]

    def take(self, wanted: str = "") -> str:
        """Consume the next token. It must equal `wanted`, if that is given."""
        token = self.peek()
        if wanted and token != wanted:
            raise self.wrong(f"{wanted!r} is missing")
        match = _TOKENS.match(self.text, self.offset)
        self.offset = match.end() if match else self.offset
        return token

    def type(self) -> Decoding:
        """Read a type with its dimensions. Their number does not matter: PostgreSQL has one array type."""
        if self.peek() == "(":
            decoding = self.composite()
        else:
            decoding = self.range() if self.peek().lower() in ("range", "multirange") else self.scalar()
        # An array is declared too, so a domain over an array is accepted.
        return replace(array_of(decoding), declared=True) if self.dimensions() else decoding

    def dimensions(self) -> bool:
        seen = False
        if self.peek().lower() == "array":
            self.take()
            seen = True
        while self.peek() == "[":
            self.take()
            if self.peek().isdecimal():
                self.take()
            self.take("]")
            seen = True
        return seen

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"more than {MAX_DEPTH} types are nested")

    def range(self) -> Decoding:
        """Read a user-defined range or multirange, such as range(float8)."""
        multiple = self.take().lower() == "multirange"
        self.deeper()
        self.take("(")
        decoding = range_of(self.type())
        self.take(")")
        self.depth -= 1
        return multirange_of(decoding) if multiple else decoding

    def composite(self) -> Decoding:
        self.deeper()
        fields: list[tuple[str, Decoding]] = []
        self.take("(")
        while self.peek() != ")":
            if fields:
                self.take(",")
            name = self.identifier()
            fields.append((name, self.type()))
        self.take(")")
        self.depth -= 1
        if not fields or len({name for name, _ in fields}) != len(fields):
            raise self.wrong("it has two fields of the same name" if fields else "it has no fields")
        return composite_of(fields)

    def identifier(self) -> str:
        """Read a name and fold it to lower case, unless it is quoted."""
        token = self.take()
        if token.startswith('"'):
            return token[1:-1].replace('""', '"')
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise self.wrong(f"a name is missing before {token!r}" if token else "it ends where a name is expected")
        return token.lower()

    def modifiers(self) -> list[int]:
        numbers: list[int] = []
        if self.peek() != "(":
            return numbers
        self.take()
        while not numbers or self.peek() == ",":
            if numbers:
                self.take()
            token = self.take()
            if not token.lstrip("-").isdecimal():
                raise self.wrong("its modifier is not a number")
            numbers.append(int(token))
        self.take(")")
        return numbers

    def scalar(self) -> Decoding:
        if self.peek().isdecimal():
            return self.of_oid(int(self.take()))
        schema, name, modifiers = self.scalar_name()
        return self.qualified(schema, name, modifiers) if schema else self.known(name, modifiers)

    def scalar_name(self) -> tuple[str, str, list[int]]:
        """Read the schema (empty without one), PostgreSQL's own name of the type, and the modifiers."""
        start = self.offset
        token = self.peek()
        if token[:1] not in ('"', "_") and not token[:1].isalpha():
            raise self.wrong("a type is missing")
        name = self.identifier()
        if self.peek() == ".":
            self.take()
            return name, self.identifier(), self.modifiers()
        if token.startswith('"'):
            return "", name, self.modifiers()
        self.offset = start
        return "", *self.name_and_modifiers()

    def name_and_modifiers(self) -> tuple[str, list[int]]:
        """Read all words of a name, and modifiers among them as in "timestamp(3) with time zone"."""
        words: list[str] = []
        modifiers: list[int] = []
        while True:
            token = self.peek()
            if token == "(" and words and not modifiers:
                modifiers = self.modifiers()
            elif token and (token[0].isalpha() or token[0] == "_") and token.lower() != "array":
                words.append(self.take().lower())
            else:
                break
        name = " ".join(words)
        if words[:1] == ["interval"] and set(words[1:]) <= _INTERVAL_FIELDS:
            name = "interval"
        if name == "float" and modifiers:
            if modifiers[1:] or not 1 <= modifiers[0] <= 53:
                raise self.wrong("the precision of float is 1 to 53")
            return "float4" if modifiers[0] < 25 else "float8", []
        return SPELLINGS.get(name, name), modifiers

    def qualified(self, schema: str, name: str, modifiers: list[int]) -> Decoding:
        """Make the decoding of a type with a schema: built in, described by `types`, or an extension's."""
        key = f"{schema}.{name}"
        if schema != "pg_catalog" and not modifiers:
            for known in (key, BY_OID + key):
                if known in self.types:
                    return self.described(known)
        if schema == "pg_catalog" or name in EXTENSIONS:
            return self.known(name, modifiers)
        raise self.wrong(
            f'types does not describe {key} as "enum", "(name type, ...)", "range(type)", or a domain\'s base type'
        )

    def of_oid(self, oid: int) -> Decoding:
        """Make the decoding of a type by its OID: described by `types`, or built in."""
        if oid in self.types:
            return self.described(oid)
        if oid not in NAME_BY_OID:
            raise self.wrong(f"types does not describe the type with OID {oid}")
        decoding = named(NAME_BY_OID[oid])
        assert decoding is not None
        return replace(decoding, declared=True)

    def described(self, key: str | int) -> Decoding:
        """Make the decoding of a type that `types` describes."""
        if key in self.within or len(self.within) == MAX_DEPTH:
            raise self.wrong(f"{key} contains itself, or is nested too deeply")
        return _Reader(self.types[key], self.types, (*self.within, key), self.depth).everything()

    def record(self) -> Decoding:
        """Make the decoding of a composite to text. In binary, its fields have a built-in type, or one of `types`."""
        fields = {field.oid: field for field in RECORD.fields}
        for oid in self.types:
            # A composite does not contain itself. In a record in a record, fields have built-in types.
            if isinstance(oid, int) and oid not in self.within and sum(map(self.is_record, self.within)) < 2:
                try:
                    fields[oid] = replace(as_text(self.described(oid)), oid=oid)
                except ValueError:
                    # The field is an unknown type.
                    continue
        return replace(RECORD, fields=tuple(fields[oid] for oid in sorted(fields)), declared=True)

    def is_record(self, key: str | int) -> bool:
        """Whether `types` describes a type as a composite without fields."""
        return self.types[key] == "record"

    def known(self, name: str, modifiers: list[int]) -> Decoding:
        if name == "record" and not modifiers and self.types:
            return self.record()
        limits = _MODIFIERS.get(name, ())
        if len(modifiers) > len(limits):
            raise self.wrong(f"{name} takes {len(limits) or 'no'} modifiers")
        for modifier, (least, most) in zip(modifiers, limits, strict=False):
            if not least <= modifier <= most:
                raise self.wrong(f"a modifier of {name} is {least} to {most}")
        if name == "enum":
            return ENUM
        typmod = -1
        if name == "numeric" and modifiers:
            # As numerictypmodin packs them, utils/adt/numeric.c.
            precision, scale = (*modifiers, 0)[:2]
            typmod = (precision << 16 | scale & 0x7FF) + 4
        if name == "money" and modifiers:
            name = f"money({modifiers[0]})"
        decoding = None if name.endswith("[]") else named(name, typmod)
        if decoding is None:
            raise self.wrong(
                f"no type {name!r}{did_you_mean(name, KNOWN)}; a type is one of PostgreSQL, with [] for an array, a "
                'name "schema.type" of types, "(name type, ...)" for a composite, or "range(type)" for a range type'
            )
        return replace(decoding, declared=True)
