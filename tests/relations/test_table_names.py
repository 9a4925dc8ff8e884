"""Names of tables with dots and quotes: each pair of schema and name has a text of its own, as in PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from pgdecode.relations.table_names import joined_name, named, normal_name, qualified_name
from support.generators.slot import Slot
from support.shell import Shell, written

T = 16385

# Written by PostgreSQL 16: SELECT format('%I.%I', schema, name), without quotes that only capitals and spaces need.
NAMES = [
    ("public", "orders", "public.orders"),
    ("public", "Event Log", "public.Event Log"),
    ("a.b", "c", '"a.b".c'),
    ("a", "b.c", 'a."b.c"'),
    ("a.b", "c.d", '"a.b"."c.d"'),
    ("public", 'we"ird', 'public."we""ird"'),
    ('"', '".', '""""."""."'),
]
parts = st.text('ab.". ', min_size=1, max_size=6)


@pytest.mark.parametrize(("schema", "name", "text"), NAMES)
def test_a_name_is_quoted_where_a_dot_or_a_quote_is_part_of_it(schema: str, name: str, text: str) -> None:
    assert qualified_name(schema, name) == text
    assert normal_name(text) == text
    assert joined_name(text) == f"{schema}.{name}"


@given(parts, parts, parts, parts)
def test_different_tables_have_different_texts(schema: str, name: str, other: str, other_name: str) -> None:
    text, other_text = qualified_name(schema, name), qualified_name(other, other_name)
    assert (text == other_text) == ((schema, name) == (other, other_name))
    assert named(text, [text, other_text]) == normal_name(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"public"."orders"', "public.orders"),
        ('public."orders"', "public.orders"),
        ('"a.b"."c"', '"a.b".c'),
        ("a.b.c", "a.b.c"),
        ("orders", "orders"),
        ('public.we"ird', 'public.we"ird'),
        ("", ""),
    ],
)
def test_quotes_that_are_not_necessary_are_left_out(text: str, expected: str) -> None:
    assert normal_name(text) == expected


# -- two tables whose names are the same once schema and name are joined ----------------------------------------------


def two_tables() -> Slot:
    """`"a.b".c` has one row, `a."b.c"` has none. PostgreSQL allows dots in names."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", "v"], keys=["id"], namespace="a.b", name="c")
    slot.insert(T, "1", "x")
    slot.commit()
    slot.begin(701)
    slot.relation(T + 1, ["id", "w"], keys=["id"], namespace="a", name="b.c")
    slot.insert(T + 1, "1", "3")
    slot.delete(T + 1, "1", None)
    slot.commit()
    return slot


FIRST, SECOND = '"a.b".c', 'a."b.c"'
AMBIGUOUS = """'a.b.c' is ambiguous: write "a.b".c or a."b.c\""""


def test_tables_with_one_joined_name_are_told_apart_in_python() -> None:
    payloads = two_tables().payloads
    catalog = RelationCatalog.from_messages(payloads)
    assert catalog.names == (FIRST, SECOND)
    for name, relation_id, ops in ((FIRST, T, ["insert"]), (SECOND, T + 1, ["insert", "delete"])):
        assert catalog[name].relation_id == relation_id
        assert ChangeDecoder().table(payloads, name)["_op"].to_pylist() == ops
        decoder = ChangeDecoder(columns={name: {"nothing": "text"}})
        with pytest.raises(ValueError, match="has no such column"):
            decoder.table(payloads, name)
        other = SECOND if name == FIRST else FIRST
        assert len(decoder.table(payloads, other)) == (2 if other == SECOND else 1)
    assert pgdecode.snapshot(payloads, FIRST)["v"].to_pylist() == ["x"]
    assert len(pgdecode.snapshot(payloads, SECOND)) == 0


def test_an_ambiguous_name_is_an_error_with_both_texts() -> None:
    payloads = two_tables().payloads
    decoder = ChangeDecoder()
    # At first, only one table is known.
    assert decoder.table(payloads[:4], "a.b.c")["v"].to_pylist() == ["x"]
    calls: list[Any] = [
        lambda: decoder.table(payloads[4:], "a.b.c"),
        lambda: pgdecode.snapshot(payloads, "a.b.c"),
        lambda: RelationCatalog.from_messages(payloads)["a.b.c"],
        lambda: ChangeDecoder(columns={"a.b.c": {"id": "int4"}}).table(payloads, FIRST),
    ]
    for call in calls:
        with pytest.raises(KeyError) as caught:
            call()
        assert caught.value.args == (AMBIGUOUS,)
    assert decoder.table(payloads[4:], SECOND)["_op"].to_pylist() == ["insert", "delete"]


@pytest.mark.parametrize("what", ["--table", "--snapshot"])
@pytest.mark.parametrize("batch_rows", [2, 1000])
def test_tables_with_one_joined_name_are_told_apart_in_the_shell(run: Shell, what: str, batch_rows: int) -> None:
    written("in.parquet", two_tables().payloads)
    words = ["--batch-rows", str(batch_rows), "--format", "jsonl"]
    done = run("decode", "in.parquet", "out", what, FIRST, what, SECOND, what, '"a.b"."c"', *words)
    assert done.code == 0, done.err
    lines = {path.parent.name: len(path.read_text().splitlines()) for path in Path("out").glob("*/*.jsonl")}
    assert lines == {FIRST: 1, SECOND: 2 if what == "--table" else 0}
    done = run("decode", "in.parquet", "other", what, "a.b.c", *words)
    assert (done.code, done.err) == (2, f"pgdecode: {what} a.b.c: {AMBIGUOUS}\n")
    assert not Path("other").exists()


def test_an_odd_name_may_be_written_without_quotes_if_it_is_the_only_one(run: Shell) -> None:
    slot = Slot()
    slot.begin(700)
    for number, (schema, name) in enumerate([("a.b", "c"), ("public", "Event Log"), ("public", 'we"ird')]):
        slot.relation(T + number, ["id"], namespace=schema, name=name)
        slot.insert(T + number, str(number))
    slot.commit()
    written("in.parquet", slot.payloads)
    for number, texts in enumerate((["a.b.c", FIRST], ["public.Event Log", 'public."Event Log"'], ['public.we"ird'])):
        for text in texts:
            assert ChangeDecoder().table(slot.payloads, text)["id"].to_pylist() == [str(number)]
            done = run("decode", "in.parquet", "out.jsonl", "--table", text, "--overwrite")
            assert done.code == 0, done.err


def test_inspect_and_the_tables_of_a_terminal_write_names_with_quotes(run: Shell) -> None:
    written("in.parquet", two_tables().payloads)
    text = run("inspect", "in.parquet").out
    assert FIRST in text
    assert SECOND in text
