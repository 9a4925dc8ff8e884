"""No error, log line or repr of an error holds data of a payload: values, keys, contents, prefixes, GIDs, origins.

Names of tables and columns may be reported, escaped and cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from support.generators.encoder import encode
from support.generators.planted import PLANTED, SECRET, leaks, relation, sequence, spoilt, texts_of
from support.generators.slot import Slot
from support.shell import Shell, written
from support.tiers import full

each_message = pytest.mark.parametrize("name", list(PLANTED))

# The secret is none of these, but for text.
TYPES = (23, 1700, 16, 1082, 1114, 1184, 1083, 1266, 1186, 701, 2950, 17, 869, 1007, 3904, 4451, 3802, 3614, 600, 25)


def said(decode: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What is said of bad payloads: by the exception, or in the column of errors."""
    try:
        found = decode(*arguments, **options)
    except Exception as error:
        return texts_of(error)
    if not isinstance(found, pa.RecordBatch):
        return ""
    (column,) = {"error", "_error", "_unknown"} & set(found.schema.names)
    return "\n".join(str(text) for text in found.column(column).to_pylist() if text)


def test_the_forms_that_are_looked_for_are_those_that_a_text_would_have() -> None:
    raw = SECRET.encode()
    for text in (SECRET, repr(raw), raw.hex(), raw.hex(" "), str(list(raw)), repr(bytearray(raw))):
        assert leaks(f"row 1: {text} is bad"), text
    for lead in range(4):
        assert leaks(
            json.dumps(
                pgdecode.relations.catalog.json.dumps(__import__("base64").b64encode(b"x" * lead + raw).decode())
            )
        )
    assert leaks("row 17, offset 23: column 'price' needs 412 bytes, 9 left") == []


@pytest.mark.parametrize("step", [7, full(1)])
@each_message
def test_no_error_of_a_message_holds_its_data(name: str, step: int) -> None:
    for payload in spoilt(PLANTED[name])[::step]:
        for in_stream in (False, True):
            assert leaks(said(pgdecode.decode, payload, in_stream=in_stream)) == []
        for mode in ("FAILFAST", "PERMISSIVE"):
            for state in (False, True, None, "auto"):
                batch = [PLANTED[name], payload]
                assert leaks(said(pgdecode.decode_messages, batch, in_stream=state, mode=mode)) == []


@pytest.mark.parametrize("type_id", TYPES)
def test_no_error_of_a_value_holds_it(type_id: int) -> None:
    described = relation(type_id, type_id, type_id)
    for name in ("insert", "full update"):
        payloads = [PLANTED[name], *spoilt(PLANTED[name])[::11]]
        for mode in ("FAILFAST", "PERMISSIVE"):
            for how in ("error", "text"):
                for payload in payloads:
                    text = said(pgdecode.decode_rows, [payload], described, mode=mode, unrepresentable=how)
                    assert leaks(text) == []
                text = said(pgdecode.decode_rows, payloads, described, mode=mode, encoding="LATIN1")
                assert leaks(text) == []


def everything(payloads: list[bytes]) -> list[str]:
    """What all decoders of sequences say of payloads, in all modes."""
    found = []
    for mode in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
        found.append(said(ChangeDecoder(mode=mode, include_uncommitted=True).decode, payloads))
        found.append(said(ChangeDecoder(mode=mode).table, payloads, "s.t"))
        found.append(said(pgdecode.snapshot, payloads, "s.t", mode=mode))
        decoder = ChangeDecoder(mode=mode)
        found.append(said(decoder.decode, payloads[:-2]))
        found.append(said(decoder.undecided))
        found.append(said(decoder.undecided, "s.t"))
        found.append(repr(decoder))
    found.append(said(RelationCatalog.from_messages, payloads))
    return found


@pytest.mark.full
@pytest.mark.parametrize("type_id", [25, 23])
def test_no_error_of_a_sequence_holds_its_data(type_id: int) -> None:
    whole = sequence(type_id)
    texts = everything(whole)
    for at in range(len(whole)):
        texts += everything(whole[:at] + whole[at + 1 :])
        for payload in (whole[at][:-1], b"Z" + whole[at]):
            texts += everything([*whole[:at], payload, *whole[at + 1 :]])
    assert sum(bool(text) for text in texts) > 100
    assert [text for text in texts if leaks(text)] == []


def test_no_error_of_a_bad_state_holds_its_data() -> None:
    decoder = ChangeDecoder()
    whole = sequence(25)
    decoder.decode(whole[: whole.index(PLANTED["prepare"]) + 1])
    state = json.loads(json.dumps(decoder.state))
    assert leaks(json.dumps(state))  # the payloads of what is not decided are in the state
    said_of = []

    def walk(node: Any, put: Callable[[Any], None]) -> None:
        for wrong in (None, SECRET, [SECRET], {SECRET: SECRET}, -1, 2**70, 1.5):
            put(wrong)
            said_of.append(said(ChangeDecoder, state=state))
            put(node)
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in list(children):
            walk(child, lambda value, node=node, key=key: node.__setitem__(key, value))

    for key in list(state):
        walk(state[key], lambda value, key=key: state.__setitem__(key, value))
    assert sum(bool(text) for text in said_of) > 100
    assert [text for text in said_of if leaks(text)] == []


def test_no_error_of_arguments_that_are_no_payloads_holds_them() -> None:
    wrong: list[Any] = [
        *([SECRET], SECRET, [SECRET.encode(), SECRET], [SECRET.encode(), 5], [[SECRET]], {SECRET: 1}, [{SECRET: 1}]),
        *(pa.array([SECRET]), pa.array([[SECRET]]), pa.chunked_array([[SECRET]]), pa.array([{"a": SECRET}])),
    ]
    for payloads in wrong:
        takers: list[Callable[..., Any]] = [pgdecode.decode, pgdecode.decode_messages, ChangeDecoder().decode]
        for decode in (*takers, RelationCatalog.from_messages):
            assert leaks(said(decode, payloads)) == []
        assert leaks(said(pgdecode.decode_rows, payloads, relation(25, 25, 25))) == []


# -- names -----------------------------------------------------------------------------------------------------------


def test_names_are_escaped_and_cut() -> None:
    name = "a\n\x1b[31m\u202e" + "x" * 200
    described = relation(23, 23, 23, names=(name, "b", "c"))
    slot = Slot()
    slot.begin(700)
    slot.payloads += [encode(described), PLANTED["insert"]]
    slot.commit()
    for text in (
        said(pgdecode.decode_rows, [PLANTED["insert"]], described),
        said(pgdecode.decode_rows, [PLANTED["insert"]], described, mode="PERMISSIVE"),
        said(ChangeDecoder(mode="PERMISSIVE").table, slot.payloads, "s.t"),
    ):
        assert text
        first = next(line for line in text.splitlines() if "column" in line)
        assert first.isprintable()
        assert "x" * 40 in first
        assert "x" * 64 not in first
        assert len(first) < 256


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("at", [2, 3, 5, 6, -4])
def test_no_command_says_what_payloads_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], at: int
) -> None:
    monkeypatch.chdir(tmp_path)
    payloads = sequence(23)
    payloads[at] = payloads[at][:-1]
    path = written("raw.parquet", payloads, seq=range(len(payloads)))
    run = Shell(capfd)
    report = run("inspect", path)
    texts = [report.out, report.err, run("cat", path).err, run("cat", path, "--changes").err]
    whats: list[tuple[str, ...]] = [(), ("--changes",), ("--table", "s.t"), ("--snapshot", "s.t")]
    for number, (mode, what) in enumerate(product(("FAILFAST", "PERMISSIVE", "DROPMALFORMED"), whats)):
        done = run("decode", path, f"out{number}", "--mode", mode, *what)
        texts += [done.out, done.err]
    assert sum("row " in text for text in texts) >= 3
    assert [text for text in texts if leaks(text)] == []
