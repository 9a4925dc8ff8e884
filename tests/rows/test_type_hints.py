"""An error of a value names the type that its column may have instead."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from pgdecode import ChangeDecoder, DecodeError, decode, decode_rows
from pgdecode.cli.main import in_shell
from pgdecode.protocol.messages import Relation, Type

BEGIN = bytes.fromhex("420000000000000010000000000000000000000005")
COMMIT = bytes.fromhex("4300000000000000001000000000000000200000000000000000")


def type_message(oid: int, namespace: str, name: str) -> bytes:
    return b"Y" + struct.pack("!I", oid) + namespace.encode() + b"\0" + name.encode() + b"\0"


def relation_message(oid: int) -> bytes:
    return b"R" + struct.pack("!I", 16385) + b"public\0t\0d\0\x01\0v\0" + struct.pack("!Ii", oid, -1)


def insert_message(value: bytes, kind: bytes) -> bytes:
    return b"I" + struct.pack("!I", 16385) + b"N\0\x01" + kind + struct.pack("!I", len(value)) + value


CASES = [
    pytest.param(
        # Source: enums may have any name, also that of an extension's type.
        (16390, "public", "vector"), b"sad", b"t", None, 'types={"public.vector": "enum"}', id="enum called vector"
    ),
    pytest.param(
        (16390, "public", "hstore"), b"sad", b"b", None, 'types={"public.hstore": "enum"}', id="enum called hstore"
    ),
    pytest.param(
        (16391, "public", "_vector"), b"{sad}", b"t", None, 'types={"public.vector": "enum"}', id="array of such enums"
    ),
    pytest.param((790, "", ""), bytes(8), b"b", None, 'types={"money": "money(2)"}', id="binary money"),
    pytest.param(
        (16390, "public", "addr"), b"(x,1,NL)", b"t", {"public.addr": "(s text, z int)"},
        'types={"public.addr": "record"}', id="composite with another number of fields",
    ),
    pytest.param(
        (16391, "public", "_addr"), b'{"(x,1,NL)"}', b"t", {"public.addr": "(s text, z int)"},
        'types={"public.addr": "record"}', id="array of composites",
    ),
    pytest.param(
        (16390, "public", "mood"), b"sad", b"b", {16400: "enum", "=public.other": "enum"},
        'types={16390: "enum"}', id="type that files do not describe",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("described", "value", "kind", "types", "hint"), CASES)
def test_an_error_of_a_value_names_the_type_that_its_column_may_have(
    described: tuple[int, str, str], value: bytes, kind: bytes, types: Mapping[str | int, str] | None, hint: str
) -> None:
    oid, _, name = described
    types_sent = [type_message(*described)] if name else []
    messages = [BEGIN, *types_sent, relation_message(oid), insert_message(value, kind), COMMIT]
    with pytest.raises(DecodeError) as caught:
        ChangeDecoder(types=types).table(messages, "public.t")
    assert str(caught.value).endswith(hint)
    assert caught.value.row == len(messages) - 2
    relation = decode(relation_message(oid))
    assert isinstance(relation, Relation)
    sent = [Type(*described)] if name else []
    with pytest.raises(DecodeError) as caught:
        decode_rows([insert_message(value, kind)], relation, types=types, type_messages=sent)
    assert str(caught.value).endswith(hint)


def test_changes_name_the_type_too() -> None:
    messages = [BEGIN, type_message(16390, "public", "vector"), relation_message(16390), insert_message(b"sad", b"b")]
    with pytest.raises(DecodeError) as caught:
        ChangeDecoder().decode([*messages, COMMIT])
    assert str(caught.value).endswith('if this is not the type of the extension: types={"public.vector": "enum"}')


def test_a_value_of_a_declared_type_has_no_hint_at_another() -> None:
    messages = [BEGIN, type_message(16390, "public", "vector"), relation_message(16390), insert_message(b"x", b"t")]
    with pytest.raises(DecodeError) as caught:
        ChangeDecoder(types={"public.vector": "vector"}).table([*messages, COMMIT], "public.t")
    assert "types=" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ('types={"public.vector": "enum"}', "--types 'public.vector=enum'"),
        ('types={"money": "money(2)"}', "--types 'money=money(2)'"),
        ('types={16390: "record"}', "--types '16390=record'"),
    ],
)
def test_the_command_line_names_its_option(text: str, option: str) -> None:
    assert in_shell(f"column 'v' is bad; {text}") == f"column 'v' is bad; {option}"
