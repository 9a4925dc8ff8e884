"""User-defined types from pg_type, in the syntax of `types=`."""

from __future__ import annotations

import json

from pgdecode.capture.connection import Connection
from pgdecode.capture.options import quoted_name
from pgdecode.files.file_metadata import UserType, readable

_SCHEMAS = "n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'"

# Composite types are those of CREATE TYPE, and the row types of tables that are the type of some column.
_QUERY = f"""
SELECT t.oid::text, n.nspname, t.typname, t.typtype::text,
    CASE t.typtype WHEN 'd' THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) END,
    (SELECT json_agg(json_build_array(a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)::text,
    (SELECT pg_catalog.format_type(r.rngsubtype, NULL) FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid),
    {{multirange}}
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
WHERE {_SCHEMAS} AND (t.typtype IN ('e', 'd', 'r', 'm') OR t.typtype = 'c' AND (c.relkind = 'c' OR EXISTS (
    SELECT FROM pg_catalog.pg_attribute a WHERE a.atttypid IN (t.oid, t.typarray) AND a.attnum > 0)))
ORDER BY t.oid
"""
_MULTIRANGE = (
    "(SELECT pg_catalog.format_type(r.rngsubtype, NULL) FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid)"
)


def read_user_types(connection: Connection) -> tuple[UserType, ...]:
    """Read all types of a database that are not built in. Types that pgdecode cannot describe are left out."""
    connection.rows("SET search_path = pg_catalog")
    query = _QUERY.format(multirange=_MULTIRANGE if connection.server_version >= 140000 else "NULL")
    found = []
    for oid, namespace, name, kind, base, fields, subtype, of_multirange in connection.rows(query):
        declaration = _declaration(str(kind), base, fields, subtype, of_multirange)
        if declaration is not None:
            found.append(UserType(int(oid or 0), f"{namespace}.{name}", declaration))
    return readable(found)


def _declaration(
    kind: str, base: str | None, fields: str | None, subtype: str | None, of_multirange: str | None
) -> str | None:
    if kind == "e":
        return "enum"
    if kind == "d":
        return base
    if kind == "r":
        return f"range({subtype})"
    if kind == "m":
        return f"multirange({of_multirange})"
    columns = json.loads(fields or "[]")
    return "(" + ", ".join(f"{quoted_name(name)} {type}" for name, type in columns) + ")" if columns else None
