"""The conformance suite, tests/conformance: the package and the tests' own plain decoders give what it says."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import ChangeDecoder, DecodeError, Limits
from pgdecode.types.pgtypes import as_text
from pgdecode.types.type_parser import declared
from support.change_rows import with_errors
from support.compare import rows_of
from support.each import each
from support.generators.encoder import encode
from support.oracles import reference, reference_changes
from support.values import decode_values

FOLDER = Path(__file__).parent
Case = dict[str, Any]

MESSAGES = ("framing", "lengths", "tags", "states", "strings")
SEQUENCES = ("streams", "catalogue", "sessions")
VALUES = ("values",)
REPEATED = re.compile(r"\(([0-9a-f]*)\*(\d+)\)")


def unpacked(payload: str) -> bytes:
    """Bytes of a payload: hexadecimal digits, (digits*n) for n times the same."""
    return bytes.fromhex(REPEATED.sub(lambda match: match[1] * int(match[2]), payload))


def cases(*names: str) -> list[Any]:
    found = [json.loads(line) for name in names for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    return [pytest.param(case, id=f"{case['id']} {case['says'][:60]}") for case in found]


def digits(item: Any) -> Any:
    """A message's value in JSON's own types: bytes as hexadecimal digits."""
    if isinstance(item, bytes):
        return item.hex()
    return [digits(part) for part in item] if isinstance(item, list) else item


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: digits(value) for name, value in row.items() if value is not None}


def fault_of(decode: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(DecodeError) as caught:
        decode()
    return {"code": caught.value.code, "offset": caught.value.offset}


def reported(error: str) -> dict[str, Any]:
    """Code and offset of a text of the `error` column."""
    code, _, offset = error.partition(":")[0].partition(" at offset ")
    return {"code": code, "offset": int(offset)}


def test_every_case_has_a_name_of_its_own_and_there_are_enough_of_them() -> None:
    every = [param.values[0] for param in cases(*MESSAGES, *SEQUENCES, *VALUES)]
    assert len({case["id"] for case in every}) == len(every) > 250
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == {*MESSAGES, *SEQUENCES, *VALUES}
    about = (FOLDER / "README.md").read_text()
    assert about.splitlines()[2].startswith(f"{len(every)} cases ")
    codes = {
        case["fault"] if isinstance(case["fault"], str) else case["fault"]["code"] for case in every if "fault" in case
    }
    codes |= {fault["code"] for case in every for fault in case.get("faults", [])}
    assert {code for code in codes if code not in about} == set()


# -- messages --------------------------------------------------------------------------------------------------------


@each("case", cases(*MESSAGES))
def test_a_message_is_decoded_as_the_suite_says(case: Case) -> None:
    payload, in_stream = unpacked(case["payload"]), case["in_stream"]
    strict = case.get("strict_flags", True)
    asked = {"in_stream": in_stream, "strict_flags": strict, "empty": "error"}
    (row,) = rows_of(pgdecode.decode_messages([payload], mode="PERMISSIVE", **asked))
    if "message" in case:
        assert plain(row) == case["message"]
        if case["message"].get("timestamp", 0) > -62_135_596_800_000_000:  # the year 1, Python's first
            message = pgdecode.decode(payload, in_stream=in_stream, strict_flags=strict)
            assert message.kind == case["message"]["kind"]
        (again,) = rows_of(pgdecode.decode_messages([payload], **asked))
        assert again == row
        return
    assert plain(row) == {"error": row["error"]}
    assert reported(row["error"]) == case["fault"]
    assert fault_of(lambda: pgdecode.decode(payload, in_stream=in_stream, strict_flags=strict)) == case["fault"]
    assert fault_of(lambda: pgdecode.decode_messages([payload], **asked)) == case["fault"]


@each("case", [param for param in cases(*MESSAGES) if param.values[0].get("strict_flags", True)])
def test_the_plain_decoder_reads_a_message_as_the_suite_says(case: Case) -> None:
    payload, in_stream = unpacked(case["payload"]), case["in_stream"]
    if "message" in case:
        assert plain(reference.decode_payload(payload, in_stream)) == case["message"]
        return
    with pytest.raises(reference.Malformed) as caught:
        reference.decode_payload(payload, in_stream)
    assert {"code": caught.value.code, "offset": caught.value.offset} == case["fault"]


# -- sequences -------------------------------------------------------------------------------------------------------


def payloads_of(case: Case) -> list[bytes]:
    return [unpacked(payload) for payload in case["payloads"]]


def decoder_of(case: Case, mode: str) -> ChangeDecoder:
    limits = Limits(max_relations=case["max_relations"]) if "max_relations" in case else Limits()
    asked = {name: case[name] for name in ("include_uncommitted", "drop_duplicates", "start", "empty") if name in case}
    return ChangeDecoder(mode=mode, limits=limits, **asked)


def decoded(case: Case, decoder: ChangeDecoder, cut: int | None = None) -> list[dict[str, Any]]:
    """The rows of a sequence, in one call or two; a further one begins where a reconnect is announced."""
    payloads = payloads_of(case)
    places = case.get("reconnects", [])
    bounds = sorted({0, len(payloads), *places, *([] if cut is None else [cut])})
    rows = []
    for first, end in pairwise(bounds):
        if first in places:
            decoder.reconnected()
        rows += with_errors(decoder.decode(payloads[first:end], range(first, end)))
    return rows


def as_said(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Changes without the time of their commit, which the suite leaves out."""
    return [{key: value for key, value in row.items() if key not in ("commit_timestamp", "error")} for row in rows]


with_changes = [param for param in cases(*SEQUENCES) if "changes" in param.values[0]]


@each("case", with_changes)
def test_a_sequence_has_the_changes_and_the_faults_that_the_suite_says(case: Case) -> None:
    decoder = decoder_of(case, "PERMISSIVE")
    rows = decoded(case, decoder)
    faults = [{"position": row["position"], **reported(row["error"])} for row in rows if row["error"]]
    assert sorted(faults, key=lambda fault: fault["position"]) == case["faults"]
    assert as_said([row for row in rows if not row["error"]]) == case["changes"]
    assert as_said(with_errors(decoder.undecided())) == case.get("undecided", [])
    for name in ("skipped", "empty_payloads"):
        assert name not in case or getattr(decoder, name) == case[name]
    if case["faults"]:
        fault = fault_of(lambda: decoded(case, decoder_of(case, "FAILFAST")))
        assert fault in [{key: reported[key] for key in ("code", "offset")} for reported in case["faults"]]
    else:
        assert as_said(decoded(case, decoder_of(case, "FAILFAST"))) == case["changes"]


@pytest.mark.full
@each("case", with_changes)
def test_a_sequence_cut_anywhere_has_the_changes_that_the_suite_says(case: Case) -> None:
    for cut in range(1, len(case["payloads"])):
        rows = decoded(case, decoder_of(case, "PERMISSIVE"), cut)
        assert sorted(as_said([row for row in rows if not row["error"]]), key=place) == sorted(
            case["changes"], key=place
        )


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["position"], row["relation_id"]


@pytest.mark.parametrize("case", [param for param in cases(*SEQUENCES) if "streamed" in param.values[0]])
def test_messages_carry_an_xid_where_the_suite_says(case: Case) -> None:
    rows = rows_of(pgdecode.decode_messages(payloads_of(case), mode="PERMISSIVE"))
    assert [row["error"] for row in rows] == [None] * len(rows)
    own = [row["xid"] is not None and row["kind"] in PREFIXED for row in rows]
    assert own == case["streamed"]
    if "changes" in case and not case["faults"]:
        assert [
            state and row["kind"] in PREFIXED
            for state, row in zip(reference.stream_states(payloads_of(case)), rows, strict=True)
        ] == own


PREFIXED = ("relation", "type", "insert", "update", "delete", "truncate", "message")

# What the plain fold has no rule for: limits, and values in binary.
BEYOND_THE_FOLD = ("R11", "R12", "R14", "R16-2s")


@each(
    "case",
    [param for param in with_changes if not param.values[0]["id"].startswith(BEYOND_THE_FOLD)],
)
def test_the_plain_fold_has_the_changes_that_the_suite_says(case: Case) -> None:
    fold = reference_changes.Fold(
        enumerate(payloads_of(case)),
        permissive=True,
        anywhere=case.get("start") == "anywhere",
        drop_duplicates=case.get("drop_duplicates", False),
        reconnects=case.get("reconnects", ()),
        empty_is_error=case.get("empty") == "error",
    )
    assert fold.errors() == [(fault["position"], fault["code"]) for fault in case["faults"]]
    others = fold.others() if case.get("include_uncommitted") or case.get("undecided") else []
    assert as_said(fold.committed() + others) == as_sent(case["changes"] + case.get("undecided", []))
    for name in ("skipped", "empty_payloads"):
        assert name not in case or getattr(fold, name) == case[name]


def as_sent(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fold gives a namespace as it was sent."""
    return [
        {**change, "namespace": change["namespace"] if change["namespace"] != "pg_catalog" else ""}
        for change in changes
    ]


# -- values ----------------------------------------------------------------------------------------------------------


def decoded_value(case: Case, mode: str = "FAILFAST") -> pa.RecordBatch:
    """The value as the one column of an inserted row."""
    value = bytes.fromhex(case["value"])
    insert = pgdecode.Insert(relation_id=1, new=(value,), new_formats=case["format"])
    relation = pgdecode.Relation(
        relation_id=1,
        namespace="s",
        name="t",
        replica_identity="d",
        columns=(pgdecode.Column(0, "v", 20000, -1),),
    )
    session = {name: case[name] for name in ("encoding", "datestyle") if name in case}
    return pgdecode.decode_rows([encode(insert)], relation, columns={"v": case["type"]}, mode=mode, **session)


def in_json(scalar: pa.Scalar) -> Any:
    """A value as the suite writes it; its README says how."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(kind):
        return scalar.value
    if pa.types.is_floating(kind):
        return struct.pack(">d" if kind == pa.float64() else ">f", scalar.as_py()).hex()
    if pa.types.is_decimal(kind):
        return str(scalar.as_py())
    if pa.types.is_binary(kind):
        return scalar.as_py().hex()
    if pa.types.is_map(kind):
        return [[key, value] for key, value in scalar.as_py()]
    if pa.types.is_list(kind):
        return [in_json(item) for item in scalar.values]
    if pa.types.is_struct(kind):
        return {field.name: in_json(scalar[field.name]) for field in kind}
    return scalar.as_py()


@each("case", cases(*VALUES))
def test_a_value_is_decoded_as_the_suite_says(case: Case) -> None:
    if "fault" in case:
        with pytest.raises(DecodeError) as caught:
            decoded_value(case)
        assert (caught.value.code, caught.value.column) == (case["fault"], "v")
        # Where the value begins: tag, OID, N, count, kind and length are before it.
        assert caught.value.offset == 13
        (row,) = decoded_value(case, "PERMISSIVE").to_pylist()
        assert row["v"] is None
        assert reported(row["_error"]) == {"code": case["fault"], "offset": 13}
        return
    if "typed" in case:
        batch = decoded_value(case)
        batch.validate(full=True)
        assert in_json(batch["v"][0]) == case["typed"]
    if "text" in case or "text_length" in case:
        value = bytes.fromhex(case["value"])
        (text,) = decode_values(as_text(declared(case["type"])), [value], binary=case["format"] == "b").to_pylist()
        assert text == case.get("text", text)
        assert (text[:4], len(text)) == (case.get("text_starts", text)[:4], case.get("text_length", len(text)))


@each("case", [param for param in cases(*VALUES) if "sent" in param.values[0]])
def test_both_forms_that_a_server_sent_are_one_value(case: Case) -> None:
    forms = [case, {**case, "format": "t", "value": case["sent"]}]
    found = []
    for form in forms:
        try:
            found.append(in_json(decoded_value(form)["v"][0]))
        except pgdecode.Unrepresentable as error:
            found.append(error.code)
    assert found[0] == found[1]
