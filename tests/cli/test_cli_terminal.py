"""What `--show` and `cat` print on a terminal, which a person reads: tables instead of JSON lines."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.capture import CaptureResult
from pgdecode.capture.recorder import CopyProgress
from pgdecode.cli.capture_command import live_progress
from pgdecode.cli.terminal import plain_warnings
from pgdecode.protocol import messages as m
from pgdecode.types.user_types import by_oid, to_json
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.shell import SHOP, Shell, on_terminal, repeated, written

T = 16385


def test_show_prints_a_table_for_each_output_with_data_columns_first(run: Shell) -> None:
    text = on_terminal("decode", SHOP, "out", "--table", "public.orders", "--table", "public.products", "--show", "2")
    orders = text.index("public.orders: first 2 rows")
    header, _, first = text[orders:].splitlines()[1:4]
    assert header.split()[:6] == ["id", "customer_id", "state", "total", "placed", "_op"]
    assert first.split()[:4] == ["1", "1", "new", "639.51"]
    assert re.search(r"^\d more: note, ref, ", text[orders:], re.MULTILINE)
    assert "public.products: first 2 rows" in text[orders:]


def test_show_names_all_rows_if_there_are_no_more(run: Shell) -> None:
    assert "out.parquet: all rows" in on_terminal("decode", SHOP, "out.parquet", "--show", "2000")


def test_nulls_and_empty_strings_and_unchanged_values_are_visible(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v", "w"])
    slot.insert(T, "1", None, "")
    slot.update(T, "1", UNCHANGED, "x")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    lines = on_terminal("decode", path, "out.parquet", "--table", f"public.t{T}", "--show", "9").splitlines()
    assert [line.split()[:4] for line in lines if line.startswith(" 1 ")] == [
        ["1", "NULL", '""', "insert"],
        ["1", "unchanged", "x", "update"],
    ]


def test_null_of_sql_differs_from_null_in_a_value_and_from_texts(run: Shell) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "v"], types=[23, 3802], keys=["id"])
    for number, value in enumerate((None, "null", '"null"')):
        slot.insert(T, str(number), value)
    slot.relation(T, ["id", "v"], types=[23, 25], keys=["id"])
    for number, value in enumerate((None, "null", "NULL", "unchanged", "")):
        slot.insert(T, str(number), value)
    slot.commit()
    path = written("in.parquet", slot.payloads)
    lines = run("cat", path, "--changes", "--no-json").out.splitlines()[2:]
    shown = ["NULL", "null", '"null"', "NULL", "null", '"NULL"', '"unchanged"', '""']
    assert [line.split("v ")[1].strip() for line in lines] == shown


def test_types_have_the_names_that_sql_has(run: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Type message has the base type of a domain, and "_mood" for an array. Footers of a capture have the names."""
    monkeypatch.setenv("COLUMNS", "200")
    oids = {16385: "_mood", 16386: "mood", 16394: "varchar"}
    slot = Slot()
    slot.begin(7)
    for oid, name in oids.items():
        slot.send(m.Type(type_id=oid, namespace="" if name == "varchar" else "public", name=name))
    slot.relation(T, ["id", "ms", "m", "i"], types=[23, *oids], keys=["id"])
    slot.commit()
    table = pa.table({"data": pa.array(slot.payloads, pa.binary())})
    pq.write_table(table, "sent.parquet")
    described = [by_oid(16394, "public.iban", "varchar(34)"), by_oid(16385, "public.mood[]", "16386[]")]
    described.append(by_oid(16386, "public.mood", "enum"))
    pq.write_table(table.replace_schema_metadata({b"pgdecode.types": to_json(described)}), "described.parquet")
    for name, columns, domain in (
        ("sent", "id* int4, ms mood[], m mood, i varchar", "domain over pg_catalog.varchar"),
        ("described", "id* int4, ms mood[], m mood, i iban", "public.iban"),
    ):
        path = Path(f"{name}.parquet")
        text = run("inspect", path).out
        assert f"    {columns}\n" in text
        assert re.search(rf"^{domain} +16394$", text, re.MULTILINE)
        relation = run("cat", path, "--no-json", "--kind", "type,relation").out.splitlines()[-1]
        assert f"name public.t{T}  columns {columns}  r" in relation
        assert f"seen with {columns.replace('*', '')}\n" in run("inspect", path, "--schema-changes").out


@pytest.mark.full
def test_cat_prints_messages_as_rows_of_a_table(run: Shell) -> None:
    header, _, begin, relation = on_terminal("cat", SHOP, "--limit", "2").splitlines()
    assert header.split() == ["kind", "fields"]
    assert begin.split()[:3] == ["begin", "xid", "102116"]
    assert relation.startswith("relation   relation_id 19182  name public.products  columns sku* text, title text, ")
    assert relation.endswith("…")


def test_cat_shows_first_what_an_update_has_changed(run: Shell) -> None:
    lines = on_terminal("cat", SHOP, "--changes", "--kind", "update", "--limit", "30").splitlines()
    assert any(re.match(r"update +public\.orders +102123 +state new → paid, id 3", line) for line in lines)


@pytest.mark.full
def test_cat_prints_json_on_a_terminal_on_request(run: Shell) -> None:
    (line,) = on_terminal("cat", SHOP, "--json", "--limit", "1").splitlines()
    assert json.loads(line) == run("cat", SHOP, "--limit", "1").objects[0]


def test_tables_are_printed_without_a_terminal_on_request(run: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    text = run("cat", SHOP, "--no-json", "--limit", "2").out
    assert text.splitlines()[0].split() == ["kind", "fields"]
    assert max(map(len, text.splitlines())) == 70
    shown = run("decode", SHOP, "out", "--table", "public.orders", "--show", "2", "--no-json").out
    assert shown.splitlines()[0] == "public.orders: first 2 rows"
    assert shown.splitlines()[3].split()[:4] == ["1", "1", "new", "639.51"]
    assert run("decode", SHOP, "out.jsonl", "--table", "public.orders", "--show", "2").objects[0]["id"] == 1


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--changes",)])
def test_control_characters_are_escaped(run: Shell, options: tuple[str, ...]) -> None:
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id"])
    slot.insert(T, "\x1b[31m\n")
    slot.commit()
    path = written("in.parquet", slot.payloads)
    assert "\x1b[31m" not in on_terminal("cat", path, *options, with_colours=True).replace("\x1b[31merror", "")


@pytest.mark.full
def test_progress_in_rows_of_the_input_appears_after_a_second(run: Shell) -> None:
    path = repeated(SHOP, 3000, 10**6, Path())
    text = on_terminal("decode", path, "out.parquet")
    rows = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of 3,159,000 rows +[\d,]+ rows/s", text)]
    assert rows
    assert rows == sorted(rows)
    assert "rows/s" not in on_terminal("decode", SHOP, "again.parquet")


def test_a_name_with_an_unknown_ending_is_refused(run: Shell) -> None:
    done = run("decode", SHOP, "out.parq")
    assert (done.code, done.err) == (
        2,
        "pgdecode: OUT ends in .parq: a file ends in .parquet, .jsonl, .csv; a folder has no such ending "
        "(see pgdecode decode --help)\n",
    )
    assert run("decode", SHOP, "2026.11.23").code == 0


def test_a_table_with_a_similar_name_is_suggested(run: Shell) -> None:
    for name in ("orders", "shop.orders", "public.order"):
        assert "(did you mean public.orders?)" in run("decode", SHOP, "out", "--table", name).err


def test_an_unknown_name_gets_the_most_similar_one(run: Shell) -> None:
    for arguments, near in (
        (("decode", SHOP, "out.parquet", "--fields", "kid"), "kind"),
        (("cat", SHOP, "--kind", "insrt"), "insert"),
        (("cat", SHOP, "--changes", "--kind", "updat"), "update"),
        (("decode", SHOP, "out.parquet", "--payload", "dat"), "data"),
        (("decode", SHOP, "out.parquet", "--changes", "--position", "sek"), "seq"),
        (("decode", SHOP, "out.parquet", "--table", "public.orders", "--types", "public.state=enm"), "enum"),
    ):
        done = run(*arguments)
        assert done.code == 2
        assert f"(did you mean {near}?)" in done.err


def test_fields_of_messages_are_refused_for_a_table(run: Shell) -> None:
    done = run("decode", SHOP, "out.parquet", "--table", "public.orders", "--fields", "id")
    assert (done.code, done.err) == (2, "pgdecode: --fields is for messages (see pgdecode decode --help)\n")


def test_options_are_in_groups(run: Shell) -> None:
    lines = run("decode", "--help").out.splitlines()
    headings = [line.removesuffix(":") for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert headings[:3] == ["What to write", "Input", "Messages"]
    assert "Options" not in headings
    assert lines.index("Bad messages:") < next(at for at, line in enumerate(lines) if line.startswith("  --bad FILE"))


def test_a_capture_without_a_terminal_logs_a_line_every_minute(capfd: pytest.CaptureFixture[str]) -> None:
    with live_progress() as show:
        # The second capture of a sync counts from the beginning.
        for seconds, n in ((0.1, 10), (59, 100), (60, 120), (61, 130), (120.5, 200), (0.1, 5), (70, 75)):
            show(CaptureResult(received_messages=n, received_bytes=n * 10**6, seconds=seconds, files=1, recorded=255))
        copying = CopyProgress("public.a", 3, 4, 1.0, 1, 2)
        show(CaptureResult(received_messages=80, seconds=131, copying=copying))
    lines = capfd.readouterr().err.splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in lines] == [
        "120 messages, 2/s, 2.0 MB/s; 1 file, recorded up to 0/FF, lag unknown",
        "200 messages, 1/s, 1.3 MB/s; 1 file, recorded up to 0/FF, lag unknown",
        "75 messages, 1/s, 1.1 MB/s; 1 file, recorded up to 0/FF, lag unknown",
        "copying public.a (1 of 2): 3 of 4 rows, 3/s, 0:00:00 left",
    ]


def test_warnings_of_the_library_are_one_line_and_others_are_as_usual() -> None:
    with plain_warnings():
        own, other = (warnings.formatwarning("text", kind, "x.py", 7) for kind in (RuntimeWarning, FutureWarning))
    assert own == "pgdecode: warning: text\n"
    assert other.startswith("x.py:7: FutureWarning: text")
    assert warnings.formatwarning("text", RuntimeWarning, "x.py", 7).startswith("x.py:7: RuntimeWarning")
