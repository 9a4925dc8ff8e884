"""Types of a database that are not built in, as the footers of files have them."""

from __future__ import annotations

import json
from collections.abc import Collection

from pgdecode.capture.connection import Connection
from pgdecode.capture.options import quoted_text
from pgdecode.relations.table_names import quoted_name
from pgdecode.types.pgtypes import FIRST_GENERATED_OID, MONEY_ARRAY_OID, MONEY_OID
from pgdecode.types.type_parser import EXTENSIONS
from pgdecode.types.user_types import UserType, by_oid, readable, referred

# Types in the declaration of another type: by OID, unless the OID is the same on every server. A name may change.
_REFERENCE = f"""CASE WHEN {{oid}} >= {FIRST_GENERATED_OID} OR {{oid}} IN ({MONEY_OID}, {MONEY_ARRAY_OID})
    THEN {{oid}}::text ELSE pg_catalog.format_type({{oid}}, {{typmod}}) END"""

# Elements, base types, attributes and bounds are found by indexes, so the number of tables does not matter.
_QUERY = f"""
WITH RECURSIVE used (oid) AS (
    SELECT pg_catalog.unnest('{{{{{{oids}}}}}}'::oid[])
    UNION
    SELECT part.oid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
        SELECT t.typelem
        UNION ALL SELECT t.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
        {{of_multirange}}
    ) part (oid) WHERE part.oid >= {FIRST_GENERATED_OID}
)
SELECT t.oid::text, n.nspname, CASE WHEN e.oid IS NULL THEN t.typname ELSE e.typname END,
    CASE WHEN e.oid IS NULL THEN t.typtype::text ELSE 'array' END,
    CASE WHEN e.oid IS NOT NULL THEN e.oid::text
        WHEN t.typtype = 'd' THEN {_REFERENCE.format(oid="t.typbasetype", typmod="t.typtypmod")}
        WHEN t.typtype = 'r' THEN (SELECT {_REFERENCE.format(oid="r.rngsubtype", typmod="NULL")}
            FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
        WHEN t.typtype = 'm' THEN {{multirange}} END,
    CASE WHEN t.typtype = 'c' THEN (
        SELECT json_agg(json_build_array(a.attname, {_REFERENCE.format(oid="a.atttypid", typmod="a.atttypmod")})
            ORDER BY a.attnum) FILTER (WHERE NOT a.attisdropped)
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)::text END,
    CASE WHEN t.typtype = 'c' THEN {{altered}} END
FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
ORDER BY t.oid
"""
_MULTIRANGE = (
    f"(SELECT {_REFERENCE.format(oid='r.rngsubtype', typmod='NULL')} "
    "FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid)"
)
_OF_MULTIRANGE = "UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid"

# Whether attributes were added, dropped or altered by a transaction whose changes the slot may still send: the slot
# keeps the catalogs from its catalog_xmin on. CREATE TYPE writes all attributes at once; for a table, the primary key
# is a later command of the same transaction.
_ALTERED = """(
    SELECT count(DISTINCT (a.xmin::text, CASE c.relkind WHEN 'c' THEN a.cmin::text END)) > 1
        AND bool_or(age(a.xmin) <= age(s.catalog_xmin))
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    CROSS JOIN pg_catalog.pg_replication_slots s
    WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND s.slot_name = {slot})::int::text"""


def read_user_types(connection: Connection, oids: Collection[int], slot: str) -> tuple[UserType, ...]:
    """Read types of a database that are not built in. Types that pgdecode cannot describe are left out.

    Parameters
    ----------
    connection : Connection
    oids : collection of int
        The types of columns. Those that they consist of are read too.
    slot : str
        A composite type that was altered by a transaction that this slot may still send is "record": its values may
        have other fields than the type has now.
    """
    connection.rows("SET search_path = pg_catalog")
    # The planner expects many types, and would read whole catalogs.
    for method in ("seqscan", "hashjoin", "mergejoin"):
        connection.rows(f"SET enable_{method} = off")
    types = []
    for oid, namespace, name, kind, base, fields, is_altered in connection.rows(
        types_query(connection.server_version, oids, slot)
    ):
        declaration = _declaration(str(kind), str(name), base, fields, is_altered == "1")
        if declaration is not None:
            brackets = "[]" if kind == "array" else ""
            types.append(by_oid(int(oid or 0), f"{namespace}.{name}{brackets}", declaration))
    return readable(types)


def types_query(server_version: int, oids: Collection[int], slot: str) -> str:
    """Return the query of `read_user_types`."""
    has_multiranges = server_version >= 140000
    return _QUERY.format(
        oids=",".join(map(str, sorted(oids))),
        of_multirange=_OF_MULTIRANGE if has_multiranges else "",
        multirange=_MULTIRANGE if has_multiranges else "NULL",
        altered=_ALTERED.format(slot=quoted_text(slot)),
    )


def read_types(connection: Connection, oids: Collection[int], slot: str) -> tuple[UserType, ...]:
    """Read the types of columns whose meaning depends on the database: `read_user_types`, and `read_money`."""
    types = read_user_types(connection, oids, slot)
    references = {oid for item in types for oid in referred(item)} | {*oids}
    return types if references.isdisjoint((MONEY_OID, MONEY_ARRAY_OID)) else (*types, *read_money(connection))


def read_money(connection: Connection) -> tuple[UserType, ...]:
    """Read the number of fraction digits of money, which its binary form does not have."""
    digits = connection.value("SELECT pg_catalog.scale(1::pg_catalog.money::numeric)")
    return (
        by_oid(MONEY_OID, "money", f"money({digits})"),
        by_oid(MONEY_ARRAY_OID, "money[]", f"{MONEY_OID}[]"),
    )


def _declaration(kind: str, name: str, base: str | None, fields: str | None, is_altered: bool) -> str | None:
    if kind == "e":
        return "enum"
    if kind == "d":
        return base
    if kind == "array":
        return f"{base}[]"
    if kind == "r":
        return f"range({base})"
    if kind == "m":
        return f"multirange({base})"
    if kind == "b" and name in EXTENSIONS:
        return quoted_name(name)
    if kind != "c":
        return None
    if is_altered:
        return "record"
    columns = json.loads(fields or "[]")
    return "(" + ", ".join(f"{quoted_name(name)} {type}" for name, type in columns) + ")" if columns else None
