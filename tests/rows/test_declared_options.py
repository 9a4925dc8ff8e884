"""One declaration of each option: the signatures, the command line, the data source and the manifest derive from it."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields
from typing import Any, Unpack, get_type_hints

import click
import pytest

from pgdecode import Limits
from pgdecode.cli.commands import command_named
from pgdecode.protocol.options import AsOfKeywords, declared_options, options_of
from pgdecode.rows.options import (
    DEFAULTS,
    DecoderKeywords,
    FileKeywords,
    Options,
    TableFrameKeywords,
    option_types,
    with_options,
)


def test_each_option_has_one_type_in_its_declaration_and_in_signatures() -> None:
    of_snapshots = get_type_hints(AsOfKeywords)
    assert {**get_type_hints(DecoderKeywords), **of_snapshots} == option_types()
    of_files = {**get_type_hints(FileKeywords)}
    assert of_files.pop("max_value_bytes") is int
    assert {**of_files, **of_snapshots} == {
        name: kind for name, kind in option_types().items() if name not in ("limits", "strict_flags")
    }


def test_each_option_has_a_help_text_that_is_a_sentence() -> None:
    for name, item in declared_options(Options).items():
        assert item.help[0].isupper() or item.help.startswith("client_encoding"), name
        assert item.help.endswith("."), name


def test_the_command_line_has_the_options_with_their_defaults_and_help() -> None:
    flags = {item.name: item for item in command_named("decode").params if isinstance(item, click.Option)}
    for name, item in declared_options(Options).items():
        assert (name in flags) == item.is_of_commands, name
        if item.is_of_commands:
            assert (flags[name].help or "").removesuffix(" Repeatable.") == item.help
            assert flags[name].multiple or flags[name].is_flag or flags[name].default == DEFAULTS[name]


def test_the_manifest_has_the_options_that_change_what_rows_mean() -> None:
    options = Options(types={1: "int4"}, renames={"public.t": [("a", "b", 7)]}, limits=Limits(max_columns=3))
    found = options_of(options)
    assert set(found) == set(option_types()) - {"limits", "strict_flags"}
    assert found["types"] == {1: "int4"}
    assert found["renames"] == {"public.t": [["a", "b", 7]]}
    assert found["mode"] == "FAILFAST"


def test_options_of_a_function_of_one_table_name_the_table() -> None:
    options = Options.of({"columns": {"a": "int4"}, "renames": [("a", "b", 7)], "max_value_bytes": 9}, "public.t")
    assert options.columns == {"public.t": {"a": "int4"}}
    assert options.renames == {"public.t": [("a", "b", 7)]}
    assert options.limits == Limits(max_value_bytes=9)
    assert Options.of({}, "public.t") == Options()


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="mode is"):
        Options.of({"mode": "failfast"})
    with pytest.raises(ValueError, match="name_clash is"):
        Options.of({"name_clash": "keep"})


def test_options_are_sent_to_workers() -> None:
    options = Options(mode="PERMISSIVE", types={"public.price": "int4"})
    assert pickle.loads(pickle.dumps(options)) == copy.copy(options) == options


@with_options()
def function(table: str, *, payload: str = "data", **options: Unpack[TableFrameKeywords]) -> dict[str, Any]:
    """A function of a table."""
    return {"table": table, "payload": payload, **options}


def test_a_signature_lists_the_options_with_their_defaults() -> None:
    found = inspect.signature(function).parameters
    assert [*found][:2] == ["table", "payload"]
    assert set(found) == {"table", "payload", *get_type_hints(TableFrameKeywords)}
    for item in fields(Options):
        if item.name in found:
            assert found[item.name].default == item.default
    assert found["max_value_bytes"].default == Limits().max_value_bytes
    assert function("t", mode="PERMISSIVE") == {"table": "t", "payload": "data", "mode": "PERMISSIVE"}
    assert function(table="t", payload="raw")["payload"] == "raw"


def test_an_unknown_option_is_an_error_that_names_the_nearest() -> None:
    given: dict[str, Any] = {"drop_duplicate": True}
    with pytest.raises(TypeError, match=r"^function\(\) has no option 'drop_duplicate' \(did you mean drop_duplicates"):
        function("t", **given)


def test_a_signature_can_have_the_options_as_one_group() -> None:
    def grouped(**options: Unpack[TableFrameKeywords]) -> None:
        """A function."""

    decorated = with_options(is_listed=False)(grouped)
    assert [*inspect.signature(decorated).parameters] == ["options"]
    given: dict[str, Any] = {"modes": "PERMISSIVE"}
    with pytest.raises(TypeError, match="has no option 'modes'"):
        decorated(**given)
