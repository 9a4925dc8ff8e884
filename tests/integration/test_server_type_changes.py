"""Tables after ALTER TABLE, on a live server: types that change, what casts make of values, and renames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pgdecode import ChangeDecoder, RelationCatalog, snapshot
from servers import type_changes
from servers.connection import Connection
from servers.server import Server
from servers.type_changes import ALTERATIONS, IDENTITIES, Alteration
from support.oracles import replay
from support.tiers import full

# One of each kind: as it was sent, printed otherwise, trimmed, not certain, computed.
QUICK = {
    *("int4 TYPE int8", "char(5) TYPE text", "text TYPE int4 USING c::int4 * 10"),
}


@pytest.fixture(scope="module")
def connection(server: Server) -> Iterator[Connection]:
    with contextlib.closing(server.connect()) as connected:
        type_changes.prepare(connected)
        yield connected


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize(
    "alteration",
    [
        (pytest.param if str(item) in QUICK else full)(item, id=f"{item}, {number}")
        for number, item in enumerate(ALTERATIONS)
    ],
)
def test_rows_are_those_of_the_server_or_say_what_is_unknown(
    server: Server, connection: Connection, alteration: Alteration, identity: str
) -> None:
    history = type_changes.record(server, connection, alteration, identity)
    if history is None:
        pytest.skip("the server refuses this")
    assert list(type_changes.problems(history)) == []


@pytest.mark.full
def test_the_declared_casts_are_those_of_the_server(server: Server, connection: Connection) -> None:
    assert type_changes.wrong_casts(server, connection) == []


@pytest.mark.parametrize(
    ("alteration", "identity", "outcome"),
    [
        pytest.param(Alteration("int4", "numeric(10,2)", values=("1", "2", "3")), "key", "known", id="key"),
        pytest.param(Alteration("char(5)", "text"), "full", "known", id="whole row"),
        pytest.param(Alteration("varchar(10)", "varchar(20)"), "other", "known", id="values that stay"),
        pytest.param(Alteration("int4", "int8"), "other", "unknown", id="values that may be computed"),
        pytest.param(Alteration("text", "int4", "c::int4", ("1", "2", "3")), "full", "unknown", id="not certain"),
        pytest.param(Alteration("text", "int4", "c::int4", ("1", "2", "3")), "key", "error", id="key not certain"),
        pytest.param(Alteration("int4", "text", "'k' || c", ("1", "2", "3")), "key", "error", id="key computed"),
    ],
)
def test_what_is_certain_is_known(
    server: Server, connection: Connection, alteration: Alteration, identity: str, outcome: str
) -> None:
    history = type_changes.record(server, connection, alteration, identity)
    assert history is not None
    assert list(type_changes.problems(history)) == []
    assert type_changes.outcome(history) == outcome


# -- renames ---------------------------------------------------------------------------------------------------------

SWAP = "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME x TO b"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize(
    ("alter", "renames"),
    [
        pytest.param("ALTER TABLE t RENAME a TO x", [], id="before others"),
        pytest.param(
            "ALTER TABLE t RENAME id TO k; ALTER TABLE t RENAME a TO id", [], id="key, whose name another gets"
        ),
        pytest.param("ALTER TABLE t RENAME a TO x; ALTER TABLE t ADD c int", [], id="and one is added"),
        pytest.param("ALTER TABLE t RENAME z TO y", [("z", "y")], id="the last one"),
        pytest.param(SWAP, [("a", "b"), ("b", "a")], id="two swap their names"),
        pytest.param("ALTER TABLE t DROP a; ALTER TABLE t RENAME b TO a", [("b", "a")], id="one takes a dropped name"),
        pytest.param(
            "ALTER TABLE t ADD k bigint; UPDATE t SET k = id + 100; ALTER TABLE t DROP id; "
            "ALTER TABLE t RENAME k TO id; ALTER TABLE t ADD PRIMARY KEY (id)",
            [("k", "id")],
            id="a new key, without downtime",
        ),
    ],
)
def test_rows_after_a_rename_are_those_of_the_server(
    server: Server, connection: Connection, alter: str, renames: list[tuple[str, str]], identity: str
) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text, z text); CREATE PUBLICATION p FOR TABLE t")
    try:
        connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
        connection.execute("SELECT pg_create_logical_replication_slot('renames', 'pgoutput')")
        connection.execute("INSERT INTO t SELECT g, 'a' || g, 'b' || g, 'z' || g FROM generate_series(1, 4) g")
        for statement in alter.split("; "):
            connection.execute(statement)
        column = "k" if "id TO k" in alter else "id"
        first, second, *_ = (row[0] for row in connection.execute(f"SELECT {column} FROM t ORDER BY {column}"))
        if "DROP a" not in alter:
            connection.execute(f"UPDATE t SET b = 'changed' WHERE {column} = {first}")
        connection.execute(f"DELETE FROM t WHERE {column} = {second}")
        sent = type_changes.read(
            server,
            "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('renames', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'p')",
        )
        names = [
            str(row[0])
            for row in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped "
                "ORDER BY attnum"
            )
        ]
        rows = connection.execute("SELECT * FROM t")
    finally:
        connection.execute("SELECT pg_drop_replication_slot('renames'); DROP PUBLICATION p; DROP TABLE t")
    payloads = [bytes.fromhex(row[0] or "") for row in sent]
    catalog = RelationCatalog.from_messages(payloads)
    last = catalog["public.t"]
    types: dict[str | int, str] = {item.type_id: "text" for version in catalog for item in version.columns}
    stated = [(old, new, last.position) for old, new in renames]
    found = snapshot(payloads, "public.t", types=types, renames=stated)
    unknown = {name for listed in found["_unknown"].to_pylist() for name in listed}
    assert unknown <= {"c"}
    ours = [[replay.UNKNOWN if name in unknown else row[name] for name in names] for row in found.to_pylist()]
    assert len(ours) == len(rows)
    assert replay.unmatched(ours, rows) == 0
    table = ChangeDecoder(types=types, renames={"public.t": stated}).table(payloads, "public.t")
    inserts = [row for row in table.to_pylist() if row["_op"] == "insert"]
    known = [name for name in names if name not in ("c", "id", "k") or name == column == "k"]
    expected = {tuple(str(row[names.index(name)]) for name in known) for row in rows}
    changed = {item for item in expected if "changed" in item}
    assert expected - changed <= {tuple(str(row[name]) for name in known) for row in inserts}
