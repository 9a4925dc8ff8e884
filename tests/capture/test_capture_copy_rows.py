"""Rows that tables have already are read as the payloads that the server sends for the same rows when inserted."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Database

import pgdecode
from pgdecode.capture import Capture, RequestError, StoppedError
from pgdecode.capture.copy import PublishedTable, Snapshot, TableRows, table_rows
from pgdecode.capture.options import quoted_text, session_settings
from pgdecode.relations.table_names import qualified_name
from servers.connection import ServerError
from support.tiers import full

DATA = Path(__file__).parents[1] / "data"
FORMS = ("text", "binary")


@contextlib.contextmanager
def snapshot(database: Database, *publications: str, n_readers: int = 1, **more: str) -> Iterator[Snapshot]:
    """Make a snapshot of what the publications publish."""
    encoding = more.pop("encoding", "UTF8")
    found = Snapshot(
        database.server.dsn(database.name, **more), publications or ["p"], n_readers=n_readers, encoding=encoding
    )
    try:
        yield found
    finally:
        found.close()


def copied(database: Database, form: str = "text", *publications: str, **more: str) -> dict[str, list[bytes]]:
    """Payloads of types, relations and rows, by table."""
    with snapshot(database, *publications, **more) as found:
        tables = found.tables()
        assert found.lock(tables) == []
        return {table.full_name: payloads(TableRows(found, table, binary=form == "binary")) for table in tables}


def payloads(rows: TableRows) -> list[bytes]:
    found = [payload for batch in rows for payload in batch.to_pylist()]
    assert len(found) == rows.count
    return [payload for payload in rows.header_payloads() if payload[:1] in b"RY"] + sorted(found)


def sent(database: Database, form: str = "text", *publications: str, encoding: str = "UTF8") -> dict[str, list[bytes]]:
    """The same, as pgoutput sends it for the inserts in the slot."""
    with contextlib.closing(database.server.connect(database.name)) as session:
        for name, value in session_settings(database.server.major * 10000).items():
            session.execute(f"SET {name} TO {quoted_text(value)}")
        session.execute(f"SET client_encoding TO {encoding}")
        options = {"proto_version": "1", "publication_names": ",".join(publications or ["p"])}
        options |= {"binary": "true"} if form == "binary" else {}
        given = ", ".join(quoted_text(item) for pair in options.items() for item in pair)
        rows = session.execute(
            "SELECT encode(data, 'hex') FROM "
            f"pg_catalog.pg_logical_slot_peek_binary_changes('{database.slot}', NULL, NULL, {given})"
        )
    found: dict[str, list[bytes]] = {}
    names: dict[bytes, str] = {}
    types = []
    for payload in (bytes.fromhex(row[0] or "") for row in rows):
        if payload[:1] == b"Y":
            types.append(payload)
        elif payload[:1] == b"R":
            namespace, name = payload[5:].split(b"\0")[:2]
            names[payload[1:5]] = full_name = qualified_name(namespace.decode(), name.decode(encoding))
            rows_before = [row for row in found.get(full_name, []) if row[:1] == b"I"]
            found[full_name] = [*types, payload, *rows_before]
            types = []
        elif payload[:1] == b"I":
            found[names[payload[1:5]]].append(payload)
    return {
        name: [item for item in items if item[:1] != b"I"] + sorted(item for item in items if item[:1] == b"I")
        for name, items in found.items()
    }


def skip_before(database: Database, major: int) -> None:
    if database.server.major < major:
        pytest.skip(f"needs PostgreSQL {major}")


def execute(database: Database, *statements: str) -> None:
    for statement in statements:
        database.execute(statement)


def literals(major: int) -> dict[str, list[str]]:
    """SQL of values of each type that servers have."""
    found: dict[str, list[str]] = {}
    for record in map(json.loads, (DATA / "values.jsonl").read_text().splitlines()):
        if major in record["server_versions"] and not record["type"].startswith("o."):
            found.setdefault(record["type"], []).append(record["sql_literal"])
    return found


SPECIAL = (
    r"E'\b\f\n\r\t\v\\'",
    r"E'\\N'",
    r"E'\\.'",
    r"E'\\.\n'",
    r"E'a\tb\nc\\d'",
    r"E'\x01\x7f'",
    r"E'\\\\N\\t'",
    "''",
    "NULL",
    "repeat('x', 8)",
    r"repeat(E'1234567\\', 40)",
    "'n'",
    "'é€😀'",
    "repeat('long ', 500000)",
)


@pytest.mark.parametrize("form", ["text", full("binary")])
def test_copied_rows_of_all_types_equal_the_inserts_that_the_server_sends(database: Database, form: str) -> None:
    skip_before(database, 14 if form == "binary" else 10)
    for name in ("hstore", "ltree", "cube", "citext", "seg", "isn", "intarray"):
        with contextlib.suppress(ServerError):
            database.execute(f"CREATE EXTENSION {name}")
    execute(
        database,
        "CREATE TYPE mood AS ENUM ('sad', 'it''s fine'); CREATE DOMAIN price AS numeric(10,2)",
        "CREATE DOMAIN moody AS mood; CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN many AS int[]",
    )
    database.create_slot()
    kinds = literals(database.server.major)
    kinds["text"] += SPECIAL
    kinds |= {
        "bool": ["true", "false", "NULL"],
        "char(7)": ["'a'", r"E'\\'", "NULL"],
        "aclitem": ["'postgres=r/postgres'", "NULL"],
        "mood": ["'sad'"],
        "moody": ["'it''s fine'"],
        "price": ["1.5", "NULL"],
        "pair": [r"""(1, E'a"\\b')""", "(NULL, '')"],
        "pair[]": ["ARRAY[(1, 'x')::pair]"],
        "many": ["'{1,2}'"],
        "information_schema.cardinal_number": ["7"],
        "text[]": [r"ARRAY[E'a\n\\', NULL, '']"],
    }
    n_rows = 0
    for number, (kind, values) in enumerate(kinds.items()):
        with contextlib.suppress(ServerError):
            database.execute(f"CREATE TABLE v{number} (x int, n int, v {kind}, y text)")
            database.execute(f"ALTER TABLE v{number} DROP x, DROP y; INSERT INTO v{number} VALUES (-1, NULL)")
            for value in values:
                with contextlib.suppress(ServerError):
                    database.execute(f"INSERT INTO v{number} VALUES ({n_rows}, {value})")
                    n_rows += 1
    assert n_rows > 250
    found, expected = copied(database, form), sent(database, form)
    assert {name: items for name, items in found.items() if name in expected} == expected


# By name: the first version that has it, publications, and SQL. Each table gets rows after the slot is made.
SITUATIONS: dict[str, tuple[int, Sequence[str], Sequence[str], Sequence[str]]] = {
    "replica identities": (
        10,
        ["p"],
        [
            "CREATE TABLE a (x text, k2 int, k1 int, PRIMARY KEY (k1, k2))",
            "CREATE TABLE b (x int PRIMARY KEY, y text); ALTER TABLE b REPLICA IDENTITY FULL",
            "CREATE TABLE c (x int PRIMARY KEY, y text); ALTER TABLE c REPLICA IDENTITY NOTHING",
            "CREATE TABLE d (x int PRIMARY KEY, y int NOT NULL); CREATE UNIQUE INDEX i ON d (y)",
            "ALTER TABLE d REPLICA IDENTITY USING INDEX i",
            "CREATE TABLE e (x int PRIMARY KEY DEFERRABLE, y int); CREATE TABLE f (x int)",
            "CREATE TABLE g (x int NOT NULL, y int NOT NULL); CREATE UNIQUE INDEX j ON g (x)",
            "ALTER TABLE g REPLICA IDENTITY USING INDEX j; DROP INDEX j",
            "CREATE TABLE h (x int GENERATED ALWAYS AS IDENTITY, y serial, z int)",
        ],
        [f"INSERT INTO {name} VALUES (1, 2)" for name in "bcdeg"]
        + ["INSERT INTO a VALUES ('x', 1, 2)", "INSERT INTO f VALUES (1)", "INSERT INTO h (z) VALUES (1), (2)"],
    ),
    "key with other columns in its index": (
        11,
        ["p"],
        ["CREATE TABLE a (x text, k int, z int, PRIMARY KEY (k) INCLUDE (z))"],
        ["INSERT INTO a VALUES ('x', 1, 2)"],
    ),
    "names and no columns": (
        10,
        ["p"],
        [
            'CREATE SCHEMA "a.b"; CREATE TABLE "a.b"."c ""d{}" ("e.f" int, "SELECT" text, "é\\n" int)',
            "CREATE TABLE z (); CREATE TABLE y (gone int)",
        ],
        ['INSERT INTO "a.b"."c ""d{}" VALUES (1, \'x\', 2)']
        + ["INSERT INTO z DEFAULT VALUES"] * 3
        + ["ALTER TABLE y DROP gone", "INSERT INTO y DEFAULT VALUES"],
    ),
    "inherited, unlogged and temporary": (
        10,
        ["p"],
        [
            "CREATE TABLE parent (x int); CREATE TABLE child (y int) INHERITS (parent)",
            "CREATE UNLOGGED TABLE u (x int); CREATE TEMPORARY TABLE tmp (x int); CREATE VIEW w AS TABLE parent",
            "INSERT INTO u VALUES (1); INSERT INTO tmp VALUES (1)",
        ],
        ["INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (2, 3)"],
    ),
    "generated columns": (
        12,
        ["p"],
        ["CREATE TABLE a (x int, y int GENERATED ALWAYS AS (x * 2) STORED, z int)"],
        ["INSERT INTO a (x, z) VALUES (1, 2)"],
    ),
    "partitions": (
        13,
        ["q"],
        [
            "CREATE TABLE root (k int, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k)",
            "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE two (v text, x int, k int NOT NULL); ALTER TABLE two DROP x",
            "ALTER TABLE root ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
            "CREATE PUBLICATION q FOR TABLE root",
        ],
        ["INSERT INTO root SELECT i, 'v' || i FROM generate_series(0, 19) i"],
    ),
    "partitions under the name of the topmost published table": (
        13,
        ["leaf", "middle", "other"],
        [
            "CREATE TABLE root (k int, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k)",
            "CREATE TABLE mid (v text, x int, k int NOT NULL) PARTITION BY RANGE (k); ALTER TABLE mid DROP x",
            "CREATE TABLE one PARTITION OF mid FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE two (x int, k int NOT NULL, v text); ALTER TABLE two DROP x",
            "ALTER TABLE mid ATTACH PARTITION two FOR VALUES FROM (10) TO (20)",
            "ALTER TABLE root ATTACH PARTITION mid FOR VALUES FROM (0) TO (20)",
            "CREATE TABLE three PARTITION OF root FOR VALUES FROM (20) TO (30)",
            "CREATE PUBLICATION leaf FOR TABLE one, three",
            "CREATE PUBLICATION middle FOR TABLE mid WITH (publish_via_partition_root)",
            "CREATE PUBLICATION other FOR TABLE two WITH (publish_via_partition_root)",
        ],
        ["INSERT INTO root SELECT i, 'v' || i FROM generate_series(0, 29) i"],
    ),
    "all tables under the names of roots": (
        13,
        ["roots"],
        [
            "CREATE TABLE root (k int, v text) PARTITION BY LIST (k); CREATE TABLE empty (k int) PARTITION BY LIST (k)",
            "CREATE TABLE mid PARTITION OF root FOR VALUES IN (1, 2) PARTITION BY LIST (k)",
            "CREATE TABLE one PARTITION OF mid FOR VALUES IN (1); CREATE TABLE two PARTITION OF root DEFAULT",
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing",
            "CREATE FOREIGN TABLE away PARTITION OF mid FOR VALUES IN (2) SERVER nowhere",
            "CREATE PUBLICATION roots FOR ALL TABLES WITH (publish_via_partition_root)",
        ],
        ["INSERT INTO root SELECT i, 'v' || i FROM generate_series(3, 9) i; INSERT INTO root VALUES (1, 'x')"],
    ),
    "column lists and row filters": (
        15,
        ["one", "two", "three"],
        [
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE a (x int PRIMARY KEY, secret text, z int, w text)",
            "CREATE TABLE b (x int, y text); CREATE TABLE c (x int); CREATE SCHEMA s; CREATE TABLE s.d (x int)",
            "CREATE PUBLICATION one FOR TABLE a (z, x) WHERE (x < 3 OR w = 'it''s'), b WHERE (x > 3), c WHERE (x = 1)",
            "CREATE PUBLICATION two FOR TABLE a (x, z) WHERE (x > 8), c, b WHERE (y = 'b' AND x IS DISTINCT FROM 1)",
            "CREATE PUBLICATION three FOR TABLE b WHERE (x = 2), TABLES IN SCHEMA s",
        ],
        [
            "INSERT INTO a SELECT i, 's', i, 'w' FROM generate_series(1, 10) i",
            "INSERT INTO a VALUES (20, 's', 2, NULL)",
            "INSERT INTO b VALUES (1, 'b'), (2, 'b'), (3, 'c'), (4, 'c'), (NULL, NULL), (NULL, 'b')",
            "INSERT INTO c VALUES (1), (2); INSERT INTO s.d VALUES (1)",
        ],
    ),
    "row filters of partitions and of their root": (
        15,
        ["r", "l"],
        [
            "CREATE TABLE root (k int, v text) PARTITION BY RANGE (k)",
            "CREATE TABLE one (v text, k int); ALTER TABLE root ATTACH PARTITION one FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE two PARTITION OF root FOR VALUES FROM (10) TO (20)",
            "CREATE PUBLICATION r FOR TABLE root (v) WHERE (k > 5) WITH (publish_via_partition_root)",
            "CREATE PUBLICATION l FOR TABLE one WHERE (k < 2), TABLES IN SCHEMA public",
        ],
        ["INSERT INTO root SELECT i, 'v' || i FROM generate_series(0, 19) i"],
    ),
    "row filter of a partition that is published itself": (
        15,
        ["r", "l"],
        [
            "CREATE TABLE root (k int, v text) PARTITION BY RANGE (k)",
            "CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE two PARTITION OF root FOR VALUES FROM (10) TO (20)",
            "CREATE PUBLICATION r FOR TABLE root; CREATE PUBLICATION l FOR TABLE one WHERE (k < 2)",
        ],
        ["INSERT INTO root SELECT i, 'v' || i FROM generate_series(0, 19) i"],
    ),
    "all tables beside a row filter": (
        15,
        ["p", "f"],
        ["CREATE TABLE a (x int); CREATE PUBLICATION f FOR TABLE a WHERE (x = 1)"],
        ["INSERT INTO a VALUES (1), (2)"],
    ),
    "generated columns that are published": (
        18,
        ["stored"],
        [
            "CREATE TABLE a (x int, y int GENERATED ALWAYS AS (x * 2) STORED, z int GENERATED ALWAYS AS (x * 3))",
            "CREATE TABLE b (x int, y int GENERATED ALWAYS AS (x * 2) STORED, z int)",
            "CREATE PUBLICATION stored FOR TABLE a, b (z, y) WITH (publish_generated_columns = stored)",
        ],
        ["INSERT INTO a (x) VALUES (1)", "INSERT INTO b (x, z) VALUES (1, 2)"],
    ),
    "generated columns in a column list": (
        18,
        ["listed"],
        [
            "CREATE TABLE b (x int, y int GENERATED ALWAYS AS (x * 2) STORED, z int)",
            "CREATE PUBLICATION listed FOR TABLE b (z, y)",
        ],
        ["INSERT INTO b (x, z) VALUES (1, 2)"],
    ),
}


QUICK = (
    "replica identities",
    "names and no columns",
    "partitions under the name of the topmost published table",
    "column lists and row filters",
    "generated columns that are published",
)


@pytest.mark.parametrize("name", [name if name in QUICK else full(name, id=name) for name in SITUATIONS])
def test_copied_rows_are_those_that_publications_publish(database: Database, name: str) -> None:
    major, publications, before, after = SITUATIONS[name]
    skip_before(database, major)
    execute(database, "DROP TABLE t", *before)
    database.create_slot()
    execute(database, *after)
    found, expected = copied(database, "text", *publications), sent(database, "text", *publications)
    # Of a published table, the server sends nothing until it has changes; and it describes partitions too.
    rows = {name: items for name, items in expected.items() if any(item[:1] == b"I" for item in items)}
    assert {name: items for name, items in found.items() if name in rows} == rows
    assert not any(item[:1] == b"I" for name, items in found.items() if name not in rows for item in items)


@pytest.mark.parametrize("encoding", ["SJIS", full("LATIN1"), full("EUC_JP"), full("GB18030"), full("BIG5")])
def test_text_is_copied_in_the_encoding_of_the_capture(database: Database, encoding: str) -> None:
    # In SJIS, GB18030 and BIG5, the second byte of some characters is a backslash.
    text = {"LATIN1": "café", "BIG5": "功許蓋", "GB18030": "誠俓"}.get(encoding, "ソ表能")
    database.execute("CREATE TABLE w (x text, y char(9), b bytea)")
    database.create_slot()
    database.execute(f"INSERT INTO w VALUES (E'{text}\\t\\\\{text}', '{text}', '\\x5c09'), (NULL, '', NULL)")
    for form in FORMS if database.server.major >= 14 else FORMS[:1]:
        found = copied(database, form, encoding=encoding)
        assert found["public.w"] == sent(database, form, encoding=encoding)["public.w"]


def test_a_copy_begins_and_ends_as_a_transaction_at_the_snapshot(database: Database) -> None:
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with snapshot(database) as found:
        database.execute("INSERT INTO t VALUES (3, 'c')")
        [table] = found.tables()
        assert found.lock([table]) == []
        rows = TableRows(found, table)
        messages = [pgdecode.decode(payload) for payload in rows.header_payloads() + rows.footer_payloads()]
        assert [message.tag for message in messages] == ["B", "M", "R", "T", "C"]
        begin, copy, relation, truncate, commit = messages
        assert (begin.xid, begin.final_lsn, commit.commit_lsn, commit.end_lsn, copy.lsn) == (0, *[found.lsn] * 4)
        assert begin.commit_timestamp == commit.commit_timestamp
        assert truncate.relation_ids == (relation.relation_id,)
        assert (copy.flags, copy.prefix) == (1, "pgdecode.copy")
        assert json.loads(copy.content) == {
            "table": "public.t",
            "lsn": pgdecode.lsn_to_text(found.lsn),
            "rows": 2,
            "server_version": found.server_version,
        }
        assert sum(len(batch) for batch in rows) == rows.count == 2


def test_several_connections_read_each_row_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_LEAST_PAGES", 3)
    monkeypatch.setattr(table_rows, "_BATCH_BYTES", 5000)
    database.execute(
        "INSERT INTO t SELECT i, repeat('v', i % 90) FROM generate_series(1, 20000) i; DELETE FROM t WHERE id < 5"
    )
    with snapshot(database, n_readers=3) as found:
        # Rows after the snapshot, in free space and behind the last page.
        database.execute(
            "INSERT INTO t SELECT -i, 'later' FROM generate_series(1, 5000) i; DELETE FROM t WHERE id = 77"
        )
        [table] = found.tables()
        found.lock([table])
        copies = [pgdecode.decode(payload).new[0] for batch in TableRows(found, table) for payload in batch.to_pylist()]
    assert sorted(map(int, copies)) == list(range(5, 20001))


def test_a_copy_that_is_given_up_leaves_no_session(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_BATCH_BYTES", 1000)
    database.execute("INSERT INTO t SELECT i, repeat('v', 90) FROM generate_series(1, 50000) i")
    with snapshot(database, n_readers=2) as found:
        [table] = found.tables()
        found.lock([table])
        for _ in TableRows(found, table):
            break
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgdecode capture'"
    for _ in range(100):
        if database.execute(sessions) == [["0"]]:
            break
        database.execute("SELECT pg_sleep(0.05)")
    assert database.execute(sessions) == [["0"]]
    assert database.execute("SELECT count(*) FROM pg_replication_slots") == [["0"]]


def test_another_number_of_rows_than_the_server_has_counted_is_an_error(database: Database) -> None:
    database.execute("INSERT INTO t VALUES (1, 'a')")
    with snapshot(database) as found:
        [table] = found.tables()
        found.lock([table])
        rows = TableRows(found, table)
        rows.count += 1
        with pytest.raises(StoppedError, match=r"^table public.t: 1 rows were copied, the server has counted 2$"):
            list(rows)


# By the name of a table.
CHANGES = {
    "truncated": "TRUNCATE truncated",
    "rewritten": "ALTER TABLE rewritten ALTER id TYPE bigint",
    "added": "ALTER TABLE added ADD w int",
    "column_dropped": "ALTER TABLE column_dropped DROP v",
    "renamed": "ALTER TABLE renamed RENAME TO other_name",
    "moved": "CREATE SCHEMA s; ALTER TABLE moved SET SCHEMA s",
    "column_renamed": "ALTER TABLE column_renamed RENAME v TO w",
    "dropped": "DROP TABLE dropped",
    "identity": "ALTER TABLE identity REPLICA IDENTITY FULL",
    "unlogged": "ALTER TABLE unlogged SET UNLOGGED",
}


def test_tables_that_were_altered_since_the_snapshot_need_a_new_one(database: Database) -> None:
    for name in (*CHANGES, "other"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'a')")
    with snapshot(database) as found:
        execute(database, *CHANGES.values(), "INSERT INTO other VALUES (2, 'b')")
        tables = found.tables()
        assert found.lock(tables) == [f"public.{name}" for name in sorted(CHANGES)]
        [other] = [table for table in tables if table.name == "other"]
        assert sum(map(len, TableRows(found, other))) == 1
    with snapshot(database) as found:
        database.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t")
        tables = found.tables()
        assert set(found.lock(tables)) == {table.full_name for table in tables} - {"public.t"}


def test_a_table_that_is_locked_cannot_be_altered(database: Database) -> None:
    with snapshot(database) as found:
        found.lock(found.tables())
        with pytest.raises(ServerError, match="lock timeout"):
            database.execute("SET lock_timeout = '10ms'; ALTER TABLE t ADD w int")
        locks = "SELECT count(*) FROM pg_locks WHERE relation >= 16384 AND pid <> pg_backend_pid()"
        # One of the connection for catalogs, and one of the reader, which a lock that waits cannot keep out.
        assert database.execute(locks) == [["2"]]
        # A table has no other locks, of its indexes for example, before and after its rows are read.
        assert list(TableRows(found, found.tables()[0])) == []
        assert database.execute(locks) == [["2"]]


@pytest.mark.full
@pytest.mark.parametrize("is_prepared", [False, True], ids=["open", "prepared"])
def test_a_copy_says_which_transaction_keeps_it_from_locking_a_table(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_prepared: bool
) -> None:
    database.execute("INSERT INTO t VALUES (1, 'a')")
    locked, said = Snapshot.lock, []

    def lock(self: Snapshot, *arguments: Any) -> list[str]:
        # The creation of the slot waits for transactions that have the lock before.
        database.execute("BEGIN; LOCK TABLE t")
        if is_prepared:
            database.execute("PREPARE TRANSACTION 'held'")
        return locked(self, *arguments)

    def warn(text: str) -> None:
        said.append(text)
        if "to lock" in text:
            database.execute("COMMIT PREPARED 'held'" if is_prepared else "COMMIT")

    monkeypatch.setattr(Snapshot, "lock", lock)
    made = Capture(
        database.dsn, tmp_path, slot=database.slot, publication="p", create_slot=True, copy=True, on_warning=warn
    )
    assert [item.rows for item in made.run(until="now").copies] == [1]
    holder = "prepared transaction 'held', database" if is_prepared else r"PID \d+, application '', database"
    waited = f"^the copy: it waits to lock table public.t, for {holder} '{database.name}', open for"
    assert any(re.search(waited, text) for text in said), said


def test_tables_whose_rows_the_role_may_not_read_are_refused_with_the_reason(database: Database) -> None:
    role = f"{database.name}_role"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION; CREATE TABLE u (x int, y int); INSERT INTO u VALUES (1, 2)"
    )
    try:

        def refused() -> str:
            with snapshot(database, user=role) as found, pytest.raises(RequestError) as error:
                found.lock([table for table in found.tables() if table.name == "u"])
            return str(error.value)

        database.execute("REVOKE USAGE ON SCHEMA public FROM public")
        assert refused() == (
            "table public.u cannot be copied: permission denied for schema public; "
            f'GRANT USAGE ON SCHEMA "public" TO {role}; GRANT SELECT ON TABLE "public"."u" TO {role}'
        )
        database.execute("GRANT USAGE ON SCHEMA public TO public")
        kind = "relation" if database.server.major < 11 else "table"
        assert refused() == (
            f"table public.u cannot be copied: permission denied for {kind} u; "
            f'GRANT SELECT ON TABLE "public"."u" TO {role}'
        )
        database.execute(f"GRANT SELECT ON u TO {role}; ALTER TABLE u ENABLE ROW LEVEL SECURITY")
        database.execute("CREATE POLICY hides ON u USING (x > 1)")
        assert refused() == (
            'table public.u cannot be copied: query would be affected by row-level security policy for table "u"; '
            f"ALTER ROLE {role} BYPASSRLS, or capture as the owner of the table"
        )
        database.execute(f"ALTER ROLE {role} BYPASSRLS")
        database.execute(f"ALTER ROLE {role} SET statement_timeout = '1ms'; ALTER ROLE {role} SET row_security = on")
        with snapshot(database, user=role) as found:
            [table] = [table for table in found.tables() if table.name == "u"]
            assert found.lock([table]) == []
            assert sum(map(len, TableRows(found, table))) == 1
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_permission_for_the_published_columns_or_for_the_root_is_enough(database: Database) -> None:
    skip_before(database, 15)
    role = f"{database.name}_role"
    execute(
        database,
        f"CREATE ROLE {role} LOGIN REPLICATION; CREATE TABLE u (x int, secret text); INSERT INTO u VALUES (1, 's')",
        "CREATE TABLE root (k int, v text) PARTITION BY LIST (k); CREATE TABLE one PARTITION OF root FOR VALUES IN (1)",
        "CREATE TABLE two PARTITION OF root FOR VALUES IN (2); INSERT INTO root VALUES (1, 'a'), (2, 'b')",
        "CREATE PUBLICATION q FOR TABLE u (x), root WITH (publish_via_partition_root)",
    )
    try:
        database.execute(f"GRANT SELECT (x) ON u TO {role}; GRANT SELECT ON root TO {role}")
        found = {
            name: [pgdecode.decode(item).new for item in items if item[:1] == b"I"]
            for name, items in copied(database, "text", "q", user=role).items()
        }
        assert found == {"public.u": [(b"1",)], "public.root": [(b"1", b"a"), (b"2", b"b")]}
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_publications_that_disagree_about_columns_are_refused(database: Database) -> None:
    skip_before(database, 15)
    database.execute("CREATE PUBLICATION a FOR TABLE t (id); CREATE PUBLICATION b FOR TABLE t (id, v)")
    with snapshot(database, "a", "b") as found, pytest.raises(RequestError, match="different column lists for table"):
        found.tables()
    with snapshot(database, "c") as found, pytest.raises(RequestError, match="publication 'c' does not exist"):
        found.tables()


def published(tables: Sequence[PublishedTable]) -> list[str]:
    return [table.full_name for table in tables]


def test_a_snapshot_has_the_publications_of_its_lsn(database: Database) -> None:
    database.execute("CREATE TABLE other (x int); CREATE PUBLICATION q FOR TABLE t")
    with snapshot(database, "q") as found:
        database.execute("ALTER PUBLICATION q ADD TABLE other")
        assert published(found.tables()) == ["public.t"]
    with snapshot(database, "q") as found:
        assert published(found.tables()) == ["public.other", "public.t"]
