"""Tables with columns that are called like columns that pgdecode adds: which are refused, and what they become."""

from __future__ import annotations

from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder
from pgdecode.changes.table_rows import META, META_BEHIND
from pgdecode.rows.own_names import OWN_NAMES, free_name
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.shell import Shell, written

T = 16385
NAME = f"public.t{T}"
OF_TABLES = {name for name, _ in (*META, *META_BEHIND)} | {"_old"}
OF_SNAPSHOTS = {"_position", "_commit_position", "_commit_timestamp", "_unknown"}


def named(*names: str) -> Slot:
    """A table with these columns, one row that is updated, and one that is deleted."""
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["id", *names], keys=["id"])
    slot.insert(T, "1", *("x" for _ in names))
    slot.insert(T, "2", *("y" for _ in names))
    slot.commit()
    slot.begin(701)
    slot.update(T, "1", *("z" for _ in names))
    slot.delete(T, "2", *(None for _ in names), old_type="K")
    slot.commit()
    return slot


def test_the_names_are_those_of_the_columns_of_tables() -> None:
    assert OWN_NAMES == OF_TABLES


@pytest.mark.parametrize("name", sorted(OF_TABLES | OF_SNAPSHOTS))
def test_only_columns_that_the_output_has_are_refused(name: str) -> None:
    payloads = named(name).payloads
    text = f"the table has a column '{name}', but this is the name of a metadata column: pass name_clash=\"rename\""
    calls: list[tuple[set[str], Any]] = [
        (OF_TABLES, lambda **options: ChangeDecoder(**options).table(payloads, NAME)),
        (OF_SNAPSHOTS, lambda **options: pgdecode.snapshot(payloads, NAME, **options)),
        (OF_SNAPSHOTS | {"_error"}, lambda **options: pgdecode.snapshot(payloads, NAME, mode="PERMISSIVE", **options)),
    ]
    for own, call in calls:
        if name in own:
            with pytest.raises(ValueError, match=text):
                call()
        else:
            assert name in call().schema.names
        names = call(name_clash="rename").schema.names
        # A renamed column of a snapshot is only one that would be there twice.
        assert (f"{name}_" in names) == (name in own)
        assert len(set(names)) == len(names)


def test_renamed_columns_have_their_values() -> None:
    payloads = named("_op", "_old", "a").payloads
    rows = ChangeDecoder(name_clash="rename").table(payloads, NAME).to_pylist()
    assert [(row["_op"], row["id"], row["_op_"], row["_old_"], row["a"]) for row in rows] == [
        ("insert", "1", "x", "x", "x"),
        ("insert", "2", "y", "y", "y"),
        ("update", "1", "z", "z", "z"),
        ("delete", "2", None, None, None),
    ]
    assert rows[3]["_old"] == {"id": "2", "_op_": None, "_old_": None, "a": None}
    (row,) = pgdecode.snapshot(payloads, NAME).to_pylist()
    assert (row["id"], row["_op"], row["_old"], row["a"], row["_unknown"]) == ("1", "z", "z", "z", [])


def test_several_clashes_are_named_together() -> None:
    with pytest.raises(
        ValueError, match="the table has columns '_error', '_op', but these are names of metadata columns"
    ):
        ChangeDecoder().table(named("_op", "_error").payloads, NAME)


def test_a_renamed_column_may_be_a_key_be_unknown_and_have_a_type() -> None:
    slot = Slot()
    slot.begin(700)
    slot.relation(T, ["_op", "_xid"], keys=["_op"], types=[25, 1700])
    slot.update(T, "k", UNCHANGED)
    slot.insert(T, "l", "1.5")
    slot.commit()
    slot.begin(701)
    slot.delete(T, "l", None, old_type="K")
    slot.commit()
    rows = pgdecode.snapshot(slot.payloads, NAME, columns={"_xid": "float8"}).to_pylist()
    assert [(row["_op"], row["_xid"], row["_unknown"]) for row in rows] == [("k", None, ["_xid"])]
    decoder = ChangeDecoder(name_clash="rename", columns={NAME: {"_xid": "float8"}})
    rows = decoder.table(slot.payloads, NAME).to_pylist()
    assert [(row["_op_"], row["_xid_"], row["_unchanged"]) for row in rows] == [
        ("k", None, ["_xid_"]),
        ("l", 1.5, []),
        ("l", None, []),
    ]


def test_a_version_with_a_new_clash_gets_the_same_name() -> None:
    slot = named("a")
    slot.begin(702)
    slot.relation(T, ["id", "a", "_unknown"], keys=["id"])
    slot.insert(T, "3", "x", "new")
    slot.commit()
    (first, second) = pgdecode.snapshot(slot.payloads, NAME, name_clash="rename").to_pylist()
    assert (first["_unknown"], first["_unknown_"]) == (["_unknown_"], None)
    assert (second["_unknown"], second["_unknown_"]) == ([], "new")


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match='name_clash is "error" or "rename", not \'keep\''):
        ChangeDecoder(name_clash="keep")  # type: ignore[arg-type]


def test_the_shell_refuses_or_renames(run: Shell) -> None:
    written("in.parquet", named("_op", "_error").payloads)
    done = run("decode", "in.parquet", "out.jsonl", "--table", NAME)
    assert (done.code, done.err) == (
        2,
        f"pgdecode: --table {NAME}: the table has columns '_error', '_op', but these are names of metadata columns: "
        "pass --name-clash rename to append _ to such a name\n",
    )
    done = run("decode", "in.parquet", "out.jsonl", "--table", NAME, "--name-clash", "rename")
    assert done.code == 0, done.err
    done = run("decode", "in.parquet", "rows.csv", "--snapshot", NAME)
    assert done.code == 0, done.err
    assert free_name("_op") == "_op_"
