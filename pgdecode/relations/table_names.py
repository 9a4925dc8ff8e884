"""Names of tables as text: "schema.table", with quotes as in PostgreSQL where a dot or quote is part of a name.

Source: PostgreSQL documentation, "Identifiers and Key Words".
"""

from __future__ import annotations

import re
from collections.abc import Collection

# A name in quotes, in which a quote is written twice, or a name without dots and quotes.
_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_QUALIFIED = re.compile(rf"{_PART}\.{_PART}", re.DOTALL)


def qualified_name(namespace: str, name: str) -> str:
    """Write a schema and a name so that each pair has a text of its own.

    Examples
    --------
    >>> qualified_name("public", "Event Log"), qualified_name("a.b", "c"), qualified_name("a", "b.c")
    ('public.Event Log', '"a.b".c', 'a."b.c"')
    """
    return f"{_quoted(namespace)}.{_quoted(name)}"


def quoted_name(name: str) -> str:
    """Quote an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _quoted(part: str) -> str:
    return quoted_name(part) if "." in part or '"' in part else part


def name_parts(text: str) -> tuple[str, str] | None:
    """Read a schema and a name as PostgreSQL writes them; None for other texts."""
    match = _QUALIFIED.fullmatch(text)
    if match is None:
        return None
    quoted_schema, schema, quoted_name, name = match.groups()
    return schema or quoted_schema.replace('""', '"'), name or quoted_name.replace('""', '"')


def normal_name(text: str) -> str:
    """Leave out quotes that are not necessary: "public"."orders" is public.orders. Other texts are not changed."""
    parts = name_parts(text)
    return text if parts is None else qualified_name(*parts)


def joined_name(qualified: str) -> str:
    """Return the text of a qualified name without quotes. Several tables may have the same."""
    parts = name_parts(qualified)
    return qualified if parts is None else ".".join(parts)


def named(text: str, known: Collection[str]) -> str:
    """Find which qualified name a text means. Quotes may be left out if only one table can be meant.

    Parameters
    ----------
    text : str
    known : collection of str
        Qualified names.

    Returns
    -------
    str
        One of `known`, or the text in its normal form.

    Raises
    ------
    KeyError
        If several tables can be meant.
    """
    found = normal_name(text)
    if found in known:
        return found
    like = sorted(name for name in known if '"' in name and joined_name(name) == text)
    if len(like) > 1:
        raise KeyError(f"{text!r} is ambiguous: write {' or '.join(like)}")
    return like[0] if like else found


def named_in_public(text: str, known: Collection[str]) -> str:
    """Find which qualified name a text means, as `named`. A name without a schema is in the schema public."""
    return named(text if "." in text else f"public.{text}", known)
