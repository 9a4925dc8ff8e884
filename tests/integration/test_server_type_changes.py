"""`snapshot` over ALTER COLUMN ... TYPE, on a live server: its tables, and what its casts make of values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from servers import type_changes
from servers.connection import Connection
from servers.server import Server, find_server, running
from servers.type_changes import ALTERATIONS, IDENTITIES, Alteration
from support.tiers import full

PROGRAMS = find_server()
# One of each kind: as it was sent, printed otherwise, trimmed, not certain, computed.
QUICK = {
    *("int4 TYPE int8", "int4 TYPE text", "int4 TYPE numeric(10,2)", "char(5) TYPE text", "timestamptz TYPE timestamp"),
    *("text TYPE int4 USING c::int4 * 10", "int4 TYPE text USING 'k' || c::text"),
}

pytestmark = pytest.mark.skipif(
    PROGRAMS is None,
    reason="no PostgreSQL server with test_decoding was found; PGDECODE_TEST_PGBIN names the folder of its programs",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert PROGRAMS is not None
    with running(PROGRAMS) as started:
        yield started


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
