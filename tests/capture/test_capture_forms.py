"""Text and binary captures of the same changes: the same schemas and rows, by every way to decode them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Database

import pgdecode
from pgdecode.capture import Capture, PluginOptions

pytest_plugins = ["support.spark_session"]

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "odd", yes'); CREATE DOMAIN price AS numeric(12,2);
CREATE DOMAIN net AS price; CREATE DOMAIN feeling AS mood; CREATE DOMAIN moods AS mood[];
CREATE TYPE addr AS (street text, zip int, m mood, p price); CREATE TYPE nested AS (a addr, l addr[], d date);
CREATE TYPE span AS RANGE (subtype = float8); CREATE TYPE moods_between AS RANGE (subtype = mood);
CREATE DOMAIN number AS oid
"""
# Each column with its type and a value in SQL.
COLUMNS = {
    "e": ("mood", "'it''s \"odd\", yes'"),
    "ea": ("mood[]", "'{sad,NULL,\"it''s \\\"odd\\\", yes\"}'"),
    "d": ("price", "1.5"),
    "da": ("price[]", "'{1,NULL,2.25}'"),
    "n": ("net", "3"),
    "f": ("feeling", "'ok'"),
    "fa": ("feeling[]", "'{ok}'"),
    "ms": ("moods", "'{sad}'"),
    "a": ("addr", "ROW('x, \"y\"', 1, 'sad', 2)"),
    "aa": ("addr[]", "ARRAY[ROW('x', 1, 'ok', NULL)::addr, NULL]"),
    "ne": ("nested", "ROW(ROW('x', NULL, 'sad', 1), ARRAY[ROW('', 2, NULL, 2)::addr], '2024-02-29')"),
    "s": ("span", "'[1,2.5)'"),
    "sa": ("span[]", "'{empty,\"[,3]\"}'"),
    "mr": ("moods_between", "'[sad,ok]'"),
    "mm": ("span_multirange", "'{[1,2),[3,4)}'"),
    "m": ("money", "-12.5"),
    "ma": ("money[]", "'{1,NULL,2.25}'"),
    "o": ("oid", "4000000000"),
    "od": ("number", "16384"),
    "ov": ("oidvector", "'1 2'"),
    "i": ("interval[]", "'{1 year 2 days 3s}'"),
    "b": ("bytea", "'\\x0102'"),
    "j": ("jsonb", "'{\"a\": 1}'"),
}
EXTENSIONS = {
    "citext": {"ci": ("citext", "'CiT'"), "cia": ("citext[]", "'{A,b}'"), "tag": ("label", "'Tag'")},
    "hstore": {"h": ("hstore", "'a=>1,b=>NULL'"), "ha": ("hstore[]", "'{\"a=>1\"}'")},
}
# The text of an OID alias type is a name, its binary form the OID.
ALIASES = {"rc": ("regclass", "'t'"), "rt": ("regtype[]", "'{mood}'"), "rr": ("regrole", "'postgres'")}
FORMS = ("text", "binary")


@pytest.fixture
def folders(database: Database, tmp_path: Path) -> dict[str, Path]:
    """A copy and a capture of the same changes with text and one with binary tuples, each in two runs."""
    if database.server.major < 14:
        pytest.skip("older servers have no binary tuples")
    columns = {**COLUMNS, **ALIASES}
    for name, more in EXTENSIONS.items():
        if database.execute(f"SELECT 1 FROM pg_available_extensions WHERE name = '{name}'"):
            database.execute(f"CREATE EXTENSION {name}")
            columns |= more
    if "tag" in columns:
        database.execute("CREATE DOMAIN label AS citext")
    database.execute(TYPES)
    described = ", ".join(f"{name} {type}" for name, (type, _) in columns.items())
    values = ", ".join(f"{value}" for _, value in columns.values())
    runs = (
        f"CREATE TABLE c (id int PRIMARY KEY, {described}); INSERT INTO c VALUES (1, {values}); "
        "INSERT INTO c (id) VALUES (2)",
        f"INSERT INTO c VALUES (3, {values}); UPDATE c SET id = 4, d = 7 WHERE id = 1; DELETE FROM c WHERE id = 2",
    )
    for sql in runs:
        for statement in sql.split("; "):
            database.execute(statement)
        for form in FORMS:
            slot, options = f"{database.name}_{form}", PluginOptions(binary=form == "binary")
            more: dict[str, Any] = {"create_slot": True, "copy": True} if sql is runs[0] else {}
            capture = Capture(database.dsn, tmp_path / form, slot=slot, publication="p", options=options, **more)
            capture.run(until="now")
    return {form: tmp_path / form for form in FORMS}


def by_shell(what: str) -> Callable[[Path, Any], pa.Table]:
    def decoded(raw: Path, _: Any) -> pa.Table:
        out = raw.with_suffix(f".{what}.parquet")
        name = [] if what == "changes" else ["public.c"]
        command = [sys.executable, "-m", "pgdecode", "decode", str(raw), str(out), f"--{what}", *name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return pq.read_table(out)

    return decoded


def by_decoder(raw: Path, _: Any) -> pa.Table:
    capture = pgdecode.read_capture(raw)
    decoder = pgdecode.ChangeDecoder(**capture.options)
    return pa.Table.from_batches([decoder.table(capture.payloads, "public.c", capture.positions)])


def by_snapshot(raw: Path, _: Any) -> pa.Table:
    capture = pgdecode.read_capture(raw)
    return pgdecode.snapshot(capture.payloads, "public.c", capture.positions, **capture.options)


def by_decode_files(raw: Path, spark: Any) -> pa.Table:
    import spark_udfs

    spark_udfs.decode_files(spark, raw, raw.with_suffix(".job"), what="public.c")
    return pq.read_table(raw.with_suffix(".job")).sort_by("_position")


def by_data_source(raw: Path, spark: Any) -> pa.Table:
    import spark_udfs

    spark_udfs.register(spark)
    reader = spark.read.format("pgoutput").options(what="public.c")
    return reader.load(str(raw)).orderBy("_position").toArrow()


def by_frames(raw: Path, spark: Any) -> pa.Table:
    import spark_udfs

    capture = spark_udfs.read_capture(spark, raw)
    return spark_udfs.table_changes(capture.df, "public.c", **capture.options).orderBy("_position").toArrow()


IN_PYTHON = {"table": by_decoder, "snapshot": by_snapshot}
OTHERS = {
    "table": [by_shell("table"), by_decode_files, by_data_source, by_frames],
    "snapshot": [by_shell("snapshot")],
    "changes": [by_shell("changes")],
}


def comparable(row: dict[str, Any]) -> str:
    """A row without what differs: the place and time of the copy, names and OIDs, and the currency of text."""
    kept = {
        name: value
        for name, value in row.items()
        if name not in ALIASES and name.lstrip("_") not in ("commit_timestamp", "commit_lsn")
    }
    if isinstance(kept.get("_old"), dict):
        kept["_old"] = {name: value for name, value in kept["_old"].items() if name not in ALIASES}
    for name in ("old", "new"):
        if kept.get(name) is not None:
            kept[name] = {key: text for key, text in kept[name] if key not in ALIASES}
            kept[name] |= {key: kept[name][key].replace("$", "") for key in ("m", "ma") if kept[name].get(key)}
    return repr(kept)


def check(folders: dict[str, Path], route: Callable[[Path, Any], pa.Table], spark: Any = None) -> pa.Table:
    text, binary = (route(folders[form], spark) for form in FORMS)
    assert binary.schema.equals(text.schema, check_metadata=True)
    assert [*map(comparable, binary.to_pylist())] == [*map(comparable, text.to_pylist())]
    return binary


@pytest.mark.full
def test_text_and_binary_give_the_schema_and_the_rows_of_the_server(
    database: Database, folders: dict[str, Path]
) -> None:
    table, rows = (check(folders, route) for route in IN_PYTHON.values())
    assert table["_op"].to_pylist() == ["truncate", "insert", "insert", "insert", "update", "delete"]
    [[expected]] = database.execute(
        "SELECT json_agg(json_build_object('id', id, 'e', e, 'd', d, 'ms', ms, 'zip', (a).zip, "
        "'up', upper(s), 'm', m::numeric, 'o', o::text::int8) ORDER BY id)::text FROM c"
    )
    assert [
        {
            **{name: row[name] for name in ("id", "e", "ms", "o")},
            **{name: float(row[name]) for name in ("d", "m")},
            "zip": row["a"]["zip"],
            "up": row["s"]["upper"],
        }
        for row in rows.sort_by("id").to_pylist()
    ] == json.loads(expected or "")


@pytest.mark.full
@pytest.mark.long
def test_every_other_way_gives_the_same_from_text_and_binary(folders: dict[str, Path], spark: Any) -> None:
    for what, routes in OTHERS.items():
        names = IN_PYTHON[what](folders["text"], None).schema.names if what in IN_PYTHON else None
        for route in routes:
            found = check(folders, route, spark)
            assert names in (None, found.schema.names)
