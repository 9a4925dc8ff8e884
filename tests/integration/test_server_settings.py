"""Settings and types against a running server, where one is installed: text under a setting is what binary says.

Nothing is recorded here: dates and timestamps come from generate_series over all that a server has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import live
import pyarrow as pa
import pytest

import pgdecode
from pgdecode import Relation, Type
from pgdecode.files.change_text import flat_table, table_lines
from pgdecode.types.encodings import CODECS
from support.tiers import full

BIN = live.programs()
pytestmark = pytest.mark.skipif(BIN is None, reason="no PostgreSQL server is installed (PGDECODE_TEST_PGBIN names one)")

TABLES = """
create type mood as enum ('sad', 'happy');
create type place as (street text, born date, at timestamptz);
create domain price as numeric(12,2);
create table moments (d date, t timestamp, z timestamptz, r tsrange, ds date[], p place, i interval);
create table texts (id int primary key, t text, a text[], m mood, ms mood[], c price, b bytea, n numeric, f float8);
create publication p for all tables;
select pg_create_logical_replication_slot('moments', 'pgoutput');
insert into moments
    select d, t, t, tsrange(t, t + '1 day'), array[d, null, d], row('"x", y', d, t)::place, interval '1 us' * x * x * x
        + make_interval(months => (x % 97 - 48), days => (x % 13 - 6))
    from (select x, date '4713-01-02 BC' + x * 35250 d,
          timestamp '4713-01-02 BC' + x * interval '17900.987654321 days' t from generate_series(0, 6080) x) s;
insert into moments values ('infinity', '-infinity', 'infinity'), ('4714-11-24 BC', '4714-11-24 BC', '4714-11-25 BC'),
    ('5874897-12-31', '294247-01-10 04:00:54.775807', '0001-12-31 23:59:59.999999 BC');
select pg_create_logical_replication_slot('texts', 'pgoutput');
insert into texts select x, 'ä\\{}"é' || x, array['é,' || x, null, ''], 'happy', '{sad,NULL}', x / 7.0,
    set_byte('\\x0000'::bytea, 1, x % 256), (x - 500) / 3.0::numeric, 1e300::float8 / (x + 1)
    from generate_series(0, 999) x;
"""
SAID = {"public.mood": "enum", "public.place": "(street text, born date, at timestamptz)"}


@pytest.fixture(scope="module")
def server() -> Iterator[live.Server]:
    assert BIN is not None
    with live.running(BIN) as found:
        found.rows(TABLES)
        yield found


def table(payloads: list[bytes], **options: Any) -> pa.RecordBatch:
    """The inserts into the first table among payloads as typed columns."""
    messages = [pgdecode.decode(payload) for payload in payloads if payload[:1] in b"RY"]
    relation = next(message for message in messages if isinstance(message, Relation))
    types = [message for message in messages if isinstance(message, Type)]
    head = b"I" + relation.relation_id.to_bytes(4, "big")
    inserts = [payload for payload in payloads if payload.startswith(head)]
    options = {"types": SAID, "unrepresentable": "null", **options}
    batch = pgdecode.decode_rows(inserts, relation, type_messages=types, **options)
    batch.validate(full=True)
    return batch


STYLES = ["SQL, DMY", "Postgres, YMD"]
STYLES += [full(style) for style in ("ISO, DMY", "SQL, MDY", "Postgres, MDY", "Postgres, DMY", "German, DMY")]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("zone", [full("UTC"), full("Etc/GMT+12"), "<+05:45>-05:45"])
def test_dates_of_all_ages_are_the_same_in_every_style(server: live.Server, style: str, zone: str) -> None:
    wanted = table(server.payloads("moments", binary=True))
    payloads = server.payloads("moments", binary=False, datestyle=style, timezone=zone)
    found = table(payloads, datestyle=style)
    assert found.num_rows == 6084
    assert [name for name in wanted.schema.names if not found[name].equals(wanted[name])] == []


@pytest.mark.parametrize("style", ["postgres", "postgres_verbose", "iso_8601", "sql_standard"])
def test_intervals_are_told_from_their_text_in_every_style(server: live.Server, style: str) -> None:
    wanted = table(server.payloads("moments", binary=True))
    assert table(server.payloads("moments", binary=False, intervalstyle=style))["i"].equals(wanted["i"])


def test_a_style_that_is_not_declared_is_a_fault(server: live.Server) -> None:
    with pytest.raises(pgdecode.UndeclaredSetting, match=r"column 'd'.*DateStyle"):
        table(server.payloads("moments", binary=False, datestyle="German"))


@pytest.mark.parametrize("encoding", ["LATIN1", "LATIN9", "WIN1252", "EUC_JIS_2004", "GB18030"])
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_text_is_the_same_under_every_client_encoding(server: live.Server, encoding: str, binary: bool) -> None:
    assert encoding in CODECS
    wanted = table(server.payloads("texts", binary=False))
    assert wanted["t"][0].as_py() == 'ä\\{}"é0'
    payloads = server.payloads("texts", binary=binary, client_encoding=encoding, bytea_output="escape")
    assert table(payloads, encoding=encoding).equals(wanted)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_numerics_as_float8_are_what_the_server_makes_of_them(server: live.Server, binary: bool) -> None:
    wanted = [float(row) for row in server.rows("select n::float8 from texts order by id")]
    found = table(server.payloads("texts", binary=binary), columns={"n": "float8"})
    assert found["n"].to_pylist() == wanted


def test_text_of_any_column_is_what_the_server_prints(server: live.Server) -> None:
    columns = dict.fromkeys(("d", "t", "z", "r", "ds", "i"), "text")
    text = table(server.payloads("moments", binary=False), columns=columns)
    assert (
        table(server.payloads("moments", binary=True), columns=columns)
        .select(list(columns))
        .equals(text.select(list(columns)))
    )


# The era is not in the patterns of `to_char`, because that writes AD too.
ERA = "case when {0} < '0001-01-01' then ' BC' else '' end"
DATE = "{0}::text"  # `to_char` does not have all dates
MOMENT = f"""to_char({{0}}, 'YYYY-MM-DD"T"HH24:MI:SS.US') || {ERA}"""
IN_UTC = MOMENT.replace("US')", "US') || 'Z'").replace("{0}", "({0} at time zone 'UTC')")


def members(row: Any, *path: str | int) -> Any:
    """A value inside the objects and lists of a row."""
    for name in path:
        row = None if row is None else row[name]
    return row


@pytest.mark.parametrize(
    ("path", "column", "form"),
    [
        pytest.param(["d"], "d", DATE, id="date"),
        pytest.param(["t"], "t", MOMENT, id="timestamp"),
        pytest.param(["z"], "z", IN_UTC, id="timestamptz"),
        pytest.param(["r", "lower"], "lower(r)", MOMENT, id="bound of a range"),
        pytest.param(["ds", 2], "ds[3]", DATE, id="element of an array"),
        pytest.param(["p", "born"], "(p).born", DATE, id="date of a struct"),
        pytest.param(["p", "at"], "(p).at", IN_UTC, id="timestamptz of a struct"),
    ],
)
def test_dates_of_all_ages_are_written_as_the_server_does(
    server: live.Server, path: list[str | int], column: str, form: str
) -> None:
    batch = table(server.payloads("moments", binary=True))
    found = [members(json.loads(line), *path) for line in table_lines(batch).to_pylist()]
    wanted = f"case when isfinite({column}) then {form.format(column)} end"
    assert found == [row or None for row in server.rows(f"select {wanted} from moments order by ctid")]
    if len(path) == 1:
        assert flat_table(batch)[str(path[0])].to_pylist() == found
        # The server reads what was written, and finds the same value.
        texts = ", ".join(f"('{text}')" for text in found if text is not None)
        kind = {"d": "date", "t": "timestamp", "z": "timestamptz"}[column]
        same = f"""
            select count(*) from (select row_number() over () n, column1::{kind} v from (values {texts}) s) a
            join (select row_number() over (order by ctid) n, {column} v from moments where isfinite({column})) b
            using (n) where a.v = b.v
        """
        assert server.rows(same) == [str(sum(text is not None for text in found))]
