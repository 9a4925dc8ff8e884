"""What publications publish: tables, columns, row filters and partitions, as pgoutput decides it.

Only catalogs are read, so the answer is that of the transaction's snapshot. The server's own functions answer for the
present, and lock every published table.

Source: get_rel_sync_entry, pgoutput_column_list_init, pgoutput_row_filter_init, replication/pgoutput/pgoutput.c;
logicalrep_write_rel, replication/logical/proto.c; fetch_remote_table_info, replication/logical/tablesync.c.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import RequestError
from pgdecode.capture.options import quoted_text
from pgdecode.relations.table_names import named_in_public, qualified_name, quoted_name
from pgdecode.types.pgtypes import FIRST_GENERATED_OID


@dataclass(frozen=True)
class PublishedColumn:
    """A column that pgoutput sends.

    Attributes
    ----------
    name : str
    attnum, type_id, type_modifier : int
    is_key : bool
        Whether it is part of the replica identity.
    output : str
        The type's output function, as SQL.
    has_binary : bool
        Whether the type has a binary form. pgoutput sends others as text.
    user_type : tuple of str, optional
        Schema and name in the Type message before the Relation: of a domain, those of its base type.
    """

    name: str
    attnum: int
    type_id: int
    type_modifier: int
    is_key: bool
    output: str
    has_binary: bool
    user_type: tuple[str, str] | None


@dataclass(frozen=True)
class Leaf:
    """A table with rows: the published one, or a partition of it.

    Attributes
    ----------
    oid : int
    namespace, name : str
    filenode : int
        Changes with TRUNCATE and with ALTER TABLE that rewrites the rows. Older snapshots do not see these rows.
    """

    oid: int
    namespace: str
    name: str
    filenode: int

    @property
    def sql(self) -> str:
        """The name as SQL."""
        return f"{quoted_name(self.namespace)}.{quoted_name(self.name)}"


@dataclass(frozen=True)
class PublishedTable:
    """A table whose changes pgoutput sends under its own name.

    Attributes
    ----------
    namespace, name : str
    oid : int
    replica_identity : str
        d(efault), n(othing), f(ull) or i(ndex).
    columns : tuple of PublishedColumn
    row_filter : str, optional
        SQL condition; None if all rows are published.
    leaves : tuple of Leaf
        Several, or none, for a partitioned table that is published under its own name.
    """

    namespace: str
    name: str
    oid: int
    replica_identity: str
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None
    leaves: tuple[Leaf, ...]

    @property
    def full_name(self) -> str:
        """Schema and name as "schema.table"."""
        return qualified_name(self.namespace, self.name)

    @property
    def sql(self) -> str:
        """The name as SQL."""
        return f"{quoted_name(self.namespace)}.{quoted_name(self.name)}"


def published_names(given: Iterable[str], known: Collection[str]) -> list[str]:
    """Find the qualified names of tables that a user names, each once. Names that are not known stay.

    Raises
    ------
    RequestError
        If several tables can be meant.
    """
    try:
        return list(dict.fromkeys(named_in_public(name, known) for name in given))
    except KeyError as error:
        raise RequestError(f"table {error.args[0]}") from None


def published_tables(connection: Connection, publications: Sequence[str]) -> list[PublishedTable]:
    """Read what publications publish, as of the connection's snapshot.

    Raises
    ------
    RequestError
        If a publication does not exist, or publications disagree about the columns of a table.
    """
    names = ", ".join(map(quoted_text, publications))
    found = [
        json.loads(text or "{}")
        for (text,) in connection.rows(
            "SELECT pg_catalog.to_jsonb(p) || pg_catalog.jsonb_build_object('oid', p.oid) "
            f"FROM pg_catalog.pg_publication p WHERE pubname IN ({names}) ORDER BY pubname"
        )
    ]
    missing = sorted(set(publications) - {publication["pubname"] for publication in found})
    if missing:
        raise RequestError(f"publication {missing[0]!r} does not exist in this database")
    members = _members(connection, [int(publication["oid"]) for publication in found])
    relations = _relations(connection)
    published: dict[int, list[dict[str, Any]]] = {}
    leaves: dict[int, list[int]] = {}
    for oid, relation in relations.items():
        root, by = _published_as(relation, relations, found, members)
        if by:
            published[root] = by
            leaves.setdefault(root, [])
            if relation["relkind"] == "r":
                leaves[root].append(oid)
    all_columns = _columns(connection, published)
    tables = []
    for oid, by in published.items():
        relation = relations[oid]
        name = f"{relation['nspname']}.{relation['relname']}"
        entries = [members.get((int(publication["oid"]), oid), {}) for publication in by]
        tables.append(
            PublishedTable(
                relation["nspname"],
                relation["relname"],
                oid,
                relation["relreplident"],
                _published_columns(name, all_columns.get(oid, []), by, entries),
                _row_filter(relation, by, entries, members),
                tuple(_leaf(relations[leaf]) for leaf in sorted(leaves[oid])),
            )
        )
    return sorted(tables, key=lambda table: (table.namespace, table.name))


def _members(connection: Connection, publications: Sequence[int]) -> dict[tuple[int, int], dict[str, Any]]:
    """Read tables and schemas of publications: (publication, table or schema) to column list and row filter."""
    oids = ", ".join(map(str, publications))
    has_lists = connection.server_version >= 150000
    more = ", r.prattrs::text, pg_catalog.pg_get_expr(r.prqual, r.prrelid)" if has_lists else ", NULL, NULL"
    members = {
        (int(publication or 0), int(oid or 0)): {
            "attnums": None if attnums is None else {int(number) for number in attnums.split()},
            "qual": qual,
        }
        for publication, oid, attnums, qual in connection.rows(
            f"SELECT r.prpubid, r.prrelid{more} FROM pg_catalog.pg_publication_rel r WHERE r.prpubid IN ({oids})"
        )
    }
    if has_lists:
        for publication, oid in connection.rows(
            f"SELECT s.pnpubid, s.pnnspid FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid IN ({oids})"
        ):
            members[(int(publication or 0), int(oid or 0))] = {}
    return members


def _relations(connection: Connection) -> dict[int, dict[str, Any]]:
    """Read tables and partitioned tables that can be published, and the parents of partitions."""
    rows = connection.rows(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, c.relnamespace, i.inhparent, c.relfilenode "
        "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_catalog.pg_inherits i ON c.relispartition AND i.inhrelid = c.oid "
        "WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384"
    )
    keys = ["oid", "nspname", "relname", "relkind", "relreplident", "relnamespace", "parent", "relfilenode"]
    numbers = ("oid", "relnamespace", "parent", "relfilenode")
    relations = {}
    for row in rows:
        relation: dict[str, Any] = dict(zip(keys, row, strict=True))
        relation |= {key: int(relation[key] or 0) for key in numbers}
        relations[relation["oid"]] = relation
    return relations


def _published_as(
    relation: dict[str, Any],
    relations: dict[int, dict[str, Any]],
    publications: Sequence[dict[str, Any]],
    members: Collection[tuple[int, int]],
) -> tuple[int, list[dict[str, Any]]]:
    """Find under which table's name a relation's changes are sent, and by which publications.

    publish_via_partition_root sends them under the name of the topmost published ancestor. That of all publications
    counts, and only publications that publish this one.
    """
    chain = [relation]
    while chain[-1]["parent"] in relations:
        chain.append(relations[chain[-1]["parent"]])
    levels: list[tuple[int, dict[str, Any]]] = []
    for publication in publications:
        oid = int(publication["oid"])
        found = [
            level
            for level, item in enumerate(chain)
            if publication["puballtables"] or (oid, item["oid"]) in members or (oid, item["relnamespace"]) in members
        ]
        is_via_root = bool(publication.get("pubviaroot"))
        if found and (relation["relkind"] == "r" or is_via_root):
            levels.append((found[-1] if is_via_root else 0, publication))
    top = max((level for level, _ in levels), default=0)
    return chain[top]["oid"], [publication for level, publication in levels if level == top]


def _columns(connection: Connection, oids: Collection[int]) -> dict[int, list[tuple[str, PublishedColumn]]]:
    """Read the columns of tables, each with the value of attgenerated."""
    if not oids:
        return {}
    version = connection.server_version
    generated = "a.attgenerated" if version >= 120000 else "''"
    n_key = "i.indnkeyatts" if version >= 110000 else "i.indnatts"
    # Until PostgreSQL 16, an invalid primary key of a partitioned table does not count.
    is_valid = "(i.indisvalid OR c.relkind = 'p' AND i.indisprimary)" if version >= 170000 else "i.indisvalid"
    rows = connection.rows(
        f"""WITH RECURSIVE base (oid, base) AS (
            SELECT t.oid, t.oid FROM pg_catalog.pg_type t WHERE t.oid >= {FIRST_GENERATED_OID} AND t.oid IN (
                SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ('{{{_listed(oids)}}}'::oid[]))
            UNION ALL SELECT base.oid, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.base
                WHERE t.typtype = 'd')
        SELECT c.oid, a.attname, a.attnum, a.atttypid, a.atttypmod, {generated},
            c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid
                AND {is_valid} AND i.indisunique AND i.indimmediate AND i.indpred IS NULL
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
                AND a.attnum = ANY ((i.indkey::int2[])[0:{n_key} - 1])),
            o.nspname, p.proname, t.typsend <> 0, b.nspname, b.typname
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid JOIN pg_catalog.pg_proc p ON p.oid = t.typoutput
            JOIN pg_catalog.pg_namespace o ON o.oid = p.pronamespace
            LEFT JOIN (SELECT base.oid, n.nspname, t.typname FROM base JOIN pg_catalog.pg_type t ON t.oid = base.base
                JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'd') b ON b.oid = t.oid
        WHERE c.oid = ANY ('{{{_listed(oids)}}}'::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY c.oid, a.attnum"""
    )
    columns: dict[int, list[tuple[str, PublishedColumn]]] = {}
    for oid, name, attnum, type_id, modifier, kind, is_key, schema, function, has_binary, of_type, type_name in rows:
        column = PublishedColumn(
            str(name),
            int(attnum or 0),
            int(type_id or 0),
            int(modifier or 0),
            is_key == "t",
            f"{quoted_name(str(schema))}.{quoted_name(str(function))}",
            has_binary == "t",
            None if type_name is None else (_namespace(str(of_type)), type_name),
        )
        columns.setdefault(int(oid or 0), []).append((kind or "", column))
    return columns


def _listed(oids: Collection[int]) -> str:
    return ",".join(map(str, sorted(oids)))


def _namespace(name: str) -> str:
    """Return a schema's name as messages have it."""
    return "" if name == "pg_catalog" else name


def _published_columns(
    table: str,
    columns: Sequence[tuple[str, PublishedColumn]],
    publications: Sequence[dict[str, Any]],
    entries: Sequence[dict[str, Any]],
) -> tuple[PublishedColumn, ...]:
    lists = []
    for publication, entry in zip(publications, entries, strict=True):
        attnums = entry.get("attnums")
        if attnums is None or publication["puballtables"]:
            # PostgreSQL 18 can publish generated columns that are stored.
            kinds = ("", publication.get("pubgencols", "n"))
            lists.append(tuple(column for kind, column in columns if kind in kinds))
        else:
            lists.append(tuple(column for kind, column in columns if column.attnum in attnums))
    if len(set(lists)) > 1:
        raise RequestError(
            f"the publications have different column lists for table {table}, which the server refuses to send"
        )
    return lists[0]


def _row_filter(
    relation: dict[str, Any],
    publications: Sequence[dict[str, Any]],
    entries: Sequence[dict[str, Any]],
    members: Collection[tuple[int, int]],
) -> str | None:
    filters = set()
    for publication, entry in zip(publications, entries, strict=True):
        by_schema = (int(publication["oid"]), relation["relnamespace"]) in members
        filters.add(None if publication["puballtables"] or by_schema else entry.get("qual"))
    return None if None in filters else " OR ".join(sorted(f"({item})" for item in filters))


def _leaf(relation: dict[str, Any]) -> Leaf:
    return Leaf(relation["oid"], relation["nspname"], relation["relname"], relation["relfilenode"])
