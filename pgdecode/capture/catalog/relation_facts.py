"""Numbers, missing values and primary keys of the columns of tables, as the footers of files have them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from pgdecode.capture.connection import Connection
from pgdecode.capture.options import quoted_text
from pgdecode.protocol.messages import Column, Relation
from pgdecode.relations.relation_facts import MOST_FILES, RelationFacts

# attmissingval is an array with one element, whose text has no quotes here. A partitioned table has no rows, and so no
# missing values: its partitions have them.
_QUERY = """
WITH RECURSIVE above (leaf, oid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY ('{{{oids}}}'::pg_catalog.oid[])
    UNION ALL
    SELECT above.leaf, i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
), part (root, oid) AS (
    SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY ('{{{oids}}}'::pg_catalog.oid[])
    UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_catalog.pg_class c ON c.oid = part.oid AND c.relkind = 'p'
        JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
), leaf (root, oid, file) AS (
    SELECT part.root, c.oid, c.relfilenode FROM part JOIN pg_catalog.pg_class c ON c.oid = part.oid
    WHERE c.relkind = 'r'
), missing (root, name, value, n) AS (
    {missing}
)
SELECT c.oid::text, n.nspname, c.relname, c.relreplident::text,
    (SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod, a.attnum, {generated}, m.value, m.n > 1)
        ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a LEFT JOIN missing m ON m.root = c.oid AND m.name = a.attname
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text,
    {published},
    (SELECT i.indkey::text FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
    (SELECT json_agg(json_build_array(leaf.oid::int8, leaf.file::int8)) FROM (
        SELECT oid, file FROM leaf WHERE leaf.root = c.oid ORDER BY oid DESC LIMIT {most}) leaf)::text,
    c.relnatts::text,
    (NOT EXISTS (SELECT FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        CROSS JOIN pg_catalog.pg_replication_slots s
        WHERE p.pubname IN ({names}) AND s.slot_name = {slot} AND age(r.xmin) <= age(s.catalog_xmin)
            AND r.prrelid IN (SELECT oid FROM above WHERE leaf = c.oid)))::int::text,
    (SELECT CASE WHEN age(a.xmin) > age(s.catalog_xmin) THEN '2' ELSE a.xmin::text END
        FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = {slot}
        WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY age(a.xmin) LIMIT 1),
    (SELECT CASE WHEN age(i.xmin) > age(s.catalog_xmin) THEN '2' ELSE i.xmin::text END
        FROM pg_catalog.pg_index i LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = {slot}
        WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY ('{{{oids}}}'::pg_catalog.oid[])
"""
_MISSING = """
    SELECT leaf.root, a.attname, min(pg_catalog.array_to_string(a.attmissingval, '')),
        count(DISTINCT pg_catalog.array_to_string(a.attmissingval, ''))
    FROM leaf JOIN pg_catalog.pg_attribute a ON a.attrelid = leaf.oid
    WHERE a.attnum > 0 AND a.atthasmissing GROUP BY leaf.root, a.attname
"""
_NO_MISSING = "SELECT 0::pg_catalog.oid, ''::pg_catalog.name, ''::text, 0 WHERE false"
# The column list of a partition is that of the published table.
_PUBLISHED = """(SELECT json_agg(DISTINCT a.attname::text) FROM pg_catalog.pg_publication p
        JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_catalog.pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs)
        WHERE p.pubname IN ({names}) AND r.prrelid IN (SELECT oid FROM above WHERE leaf = c.oid))::text"""


def read_facts(
    connection: Connection, relations: Collection[Relation], slot: str, publications: Sequence[str]
) -> tuple[dict[Relation, RelationFacts], dict[int, int], dict[int, int]]:
    """Read what the catalog tells of relations.

    Of a table that none of them describes as it is now, the facts of the present table are returned. Facts of versions
    that were altered again can be derived from them.

    Parameters
    ----------
    connection : Connection
    relations : collection of Relation
        As the server has described them, without an xid.
    slot : str
        While changes from before a publication had its list of columns may still come, it counts as another list.
    publications : sequence of str
        The names of the publications, which may have lists of columns.

    Returns
    -------
    facts : dict of Relation to RelationFacts
    altered : dict of int to int
        By the OIDs of the tables, the xid of the transaction that changed their columns last; 2 (FrozenTransactionId)
        if the slot sends no change from before that.
    keyed : dict of int to int
        The same of the transaction that made the primary key, of tables that have one.
    """
    if not relations:
        return {}, {}, {}
    described: dict[int, list[Relation]] = {}
    for relation in relations:
        described.setdefault(relation.relation_id, []).append(relation)
    found: dict[Relation, RelationFacts] = {}
    altered: dict[int, int] = {}
    keyed: dict[int, int] = {}
    connection.rows("SET search_path = pg_catalog")
    for oid, *about, xid, key_xid in connection.rows(
        facts_query(connection.server_version, described, slot, publications)
    ):
        relations_now = {item: _facts_of(item, about) for item in described[int(oid or 0)]}
        if not any(relations_now.values()):
            present = _present_relation(int(oid or 0), about)
            relations_now[present] = _facts_of(present, about)
        found |= {relation: facts for relation, facts in relations_now.items() if facts is not None}
        altered |= {int(oid or 0): int(xid)} if xid else {}
        keyed |= {int(oid or 0): int(key_xid)} if key_xid else {}
    return found, altered, keyed


def _present_relation(oid: int, about: Sequence[str | None]) -> Relation:
    """Describe a table as it is now, without the flags of its key."""
    namespace, name, identity, listed, *_ = about
    columns = tuple(
        Column(0, column, type_id, modifier)
        for column, type_id, modifier, _, is_generated, *_ in json.loads(listed or "[]")
        if not is_generated
    )
    return Relation(oid, namespace or "", name or "", identity or "", columns)


def facts_query(server_version: int, oids: Collection[int], slot: str, publications: Sequence[str]) -> str:
    """Return the query of `read_facts`."""
    names = ", ".join(map(quoted_text, publications))
    return _QUERY.format(
        oids=",".join(map(str, sorted(oids))),
        missing=_MISSING if server_version >= 110000 else _NO_MISSING,
        generated="a.attgenerated <> ''" if server_version >= 120000 else "false",
        published=_PUBLISHED.format(names=names) if server_version >= 150000 else "NULL",
        most=MOST_FILES,
        names=names,
        slot=quoted_text(slot),
    )


def _facts_of(relation: Relation, about: Sequence[str | None]) -> RelationFacts | None:
    """Make the facts of a relation; None if the table now has other columns, or another name or identity."""
    namespace, name, identity, listed, published, key, storage, n_attributes, is_old_list = about
    columns = json.loads(listed or "[]")
    only = None if published is None else set(json.loads(published))
    by_name = {column: numbers for column, *numbers in columns}
    sent = [item.name for item in relation.columns]
    # Whether generated columns are published depends on the publication and the version.
    plain = [column for column, _, _, _, is_generated, *_ in columns if not is_generated]
    if only is not None:
        plain = [column for column in plain if column in only]
    is_same = (
        (relation.namespace or "pg_catalog", relation.name, relation.replica_identity) == (namespace, name, identity)
        and {*sent} <= by_name.keys()
        and [column for column in sent if not by_name[column][3]] == plain
        and all([item.type_id, item.type_modifier] == by_name[item.name][:2] for item in relation.columns)
    )
    if not is_same:
        return None
    missing = [by_name[column][4] for column in sent]
    # Partitions with different values, and text that is not in the encoding of the connection.
    is_unclear = any(by_name[column][5] or "\ufffd" in (by_name[column][4] or "") for column in sent)
    return RelationFacts(
        tuple(by_name[column][2] for column in sent),
        (None,) * len(sent) if is_unclear else tuple(missing),
        tuple(map(int, (key or "").split())),
        tuple((oid, file) for oid, file in json.loads(storage or "[]") if not is_unclear),
        int(n_attributes or 0),
        is_old_list == "1" and only is None and not any(numbers[3] for numbers in by_name.values()),
    )
