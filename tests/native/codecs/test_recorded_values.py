"""Every recorded value of every type, in one place: both forms decode to one result, and that prints as it was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pgdecode
from pgdecode.types.pgtypes import OPAQUE, Decoding
from pgdecode.types.session_settings import settings_of, under
from pgdecode.types.type_parser import declared
from support.each import each
from support.oracles.printer import printed
from support.oracles.recorded import DATA
from support.values import decode_values

# What the recordings' own types are; o is their schema.
SAID = {
    "o.comp": "(a int4, b text, c numeric)",
    "o.nest": "(c o.comp, l int4[])",
    "o.dint": "int4",
    "o.dint[]": "int4[]",
    "o.dnum": "numeric",
    "o.dtxt": "text",
    "o.fr": "range(float8)",
    "o.mood": "enum",
    "o.mood[]": "enum[]",
    "o.tr": "range(text)",
}
# Types that no OID or name tells, or that the caller cannot describe: text as it was sent, and in binary a fault.
UNKNOWN = {"isbn", "query_int", "seg"}

# Where the two forms do not hold the same: type -> what binary gives instead.
DIFFERENT = {
    "money": None,  # the unit of its binary form is the server's lc_monetary
    "regclass": "1259",  # the binary form is an OID, which only the server's catalog names
    "regtype": "20828",  # of the recordings' own mood, which has another on each server
    "regrole": "10",
    "regconfig": "3748",
}
NAMES = {
    "o.comp": "(int4, text, numeric)",
    "o.fr": "range(float8)",
    "o.nest": "((int4, text, numeric), int4[])",
    "o.tr": "range(text)",
}


def recorded() -> list[Any]:
    found = []
    for line in (DATA / "values.jsonl").read_text().splitlines():
        record = json.loads(line)
        setting = " ".join(record["settings"].values())
        name = f"{record['type']} {record['sql_literal'][:40]} {setting} {record['server_versions'][0]}"
        found.append(pytest.param(record, id=name))
    return found


def decoding_of(record: dict[str, Any]) -> Decoding:
    """How a recorded value is decoded under the settings it was recorded under."""
    if record["type"] in UNKNOWN:
        return OPAQUE
    text = SAID.get(record["type"], record["type"])
    types = {key: text for key, text in SAID.items() if not key.endswith("[]")}
    style = record["settings"].get("datestyle", "ISO")
    return under(settings_of("UTF8", "German" if style == "German" else style), declared(text, types))


def result(decoding: Decoding, form: dict[str, Any]) -> str:
    """What a form decodes to, as text that tells equal values, or the code of its fault."""
    binary = form["kind"] == "b"
    try:
        array = decode_values(decoding, [bytes.fromhex(form["hex"])], binary=binary, unrepresentable="null")
    except pgdecode.DecodeError as error:
        return error.code
    array.validate(full=True)
    # Python's own dates and decimals do not hold all of them.
    return str(array.to_pylist()) if array.null_count or pa.types.is_string(array.type) else str(array)


def is_code(found: str) -> bool:
    """Whether a result is the code of a fault."""
    return re.fullmatch("[A-Z_]+", found) is not None


def is_whole(form: dict[str, Any]) -> bool:
    """Whether the recording has all of it."""
    return len(form["hex"]) == 2 * form["len"]


def documented_fault(record: dict[str, Any]) -> str | None:
    """The fault that the text form is, where there is one."""
    text = record["text"].get("utf8", "")
    if text in ("--2147483648 0:00:00", "@ -2147483648 days ago"):
        return "BAD_VALUE"  # 10-14 print these for an interval whose sign they cannot turn
    if "timezone" in record["settings"] and not record["settings"].get("datestyle", "ISO").startswith("ISO"):
        zone = re.fullmatch(r".*\d ([A-Z]+)( BC)?", text)
        return "ZONE" if zone and zone[1] not in ("UTC", "GMT", "BC") else None
    if text in ("1.79769313486232e+308", "2e+308"):
        return str([None])  # the largest float8, rounded up for want of digits: no float8, null on request
    return None


def has_fewer_digits(record: dict[str, Any]) -> bool:
    """Whether floats were printed with fewer digits than they have."""
    digits = int(record["settings"].get("extra_float_digits", "1"))
    return record["type"] in ("float4", "float8") and digits < (1 if record["server_versions"][0] >= 12 else 3)


@each("record", recorded())
def test_both_forms_of_a_recorded_value_decode_to_one_result(record: dict[str, Any]) -> None:
    decoding = decoding_of(record)
    forms = [form for form in record["binary"] or [] if is_whole(form)]
    results = [result(decoding, form) for form in forms]
    if not is_whole(record["text"]):
        return
    text = result(decoding, record["text"])
    if documented_fault(record):
        assert text == documented_fault(record)
        assert [other for other in results if is_code(other)] == []
    elif record["type"] in UNKNOWN:
        assert results == [text if form["kind"] == "t" else "UNKNOWN_TYPE" for form in forms]
    elif record["type"] in DIFFERENT:
        assert text == str([record["text"]["utf8"]])
        assert set(results) <= {str([DIFFERENT[record["type"]]])} or record["type"] == "regtype"
    elif has_fewer_digits(record):
        assert not is_code(text)
    else:
        assert [text, *results] == [text] * (1 + len(results))


@each("record", recorded())
def test_what_was_decoded_prints_as_the_server_printed_it(record: dict[str, Any]) -> None:
    if not is_whole(record["text"]) or documented_fault(record):
        return
    text = bytes.fromhex(record["text"]["hex"])
    found = decode_values(decoding_of(record), [text], binary=False, unrepresentable="null")
    (ours,) = printed(printers_name(record), found, record["settings"])
    kept = LOSSES.get(loss_of(record), lambda text, ours: ours == text.decode())
    assert kept(text, ours), ours


def printers_name(record: dict[str, Any]) -> str:
    """The recorded type as `printer` names it, without modifiers."""
    if record["type"] in NAMES:
        return NAMES[record["type"]]
    name = SAID.get(record["type"], record["type"])
    return re.sub(r"\(.*?\)| second.*| year.*", "", name).replace("_text", "text[]")


def loss_of(record: dict[str, Any]) -> str:
    """What the decoded value does not keep of the text; empty where it keeps all."""
    text = record["text"].get("utf8", "")
    if record["text"]["hex"] and result(decoding_of(record), record["text"]) == "[None]":
        return "not representable"
    if record["type"].endswith("[]") and text.startswith("["):
        return "lower bounds"
    if "timezone" in record["settings"] and not re.search(r"(UTC|\+00)( BC)?$|infinity", text):
        return "the offset"
    if record["type"] in ("float4", "float8") and record["settings"].get("extra_float_digits"):
        return "other digits"
    if record["type"] == '"char"' and len(record["text"]["hex"]) == 2 and record["text"]["hex"] >= "80":
        return "a byte past ASCII"
    return ""


# What is not kept, and what is all the same.
LOSSES: dict[str, Callable[[bytes, Any], bool]] = {
    "not representable": lambda text, ours: ours is None,
    "lower bounds": lambda text, ours: ours == text.decode().split("=")[1],
    # A timestamptz is a moment: it is printed at UTC.
    "the offset": lambda text, ours: ours.removesuffix(" BC").endswith(("+00", " UTC")),
    # PostgreSQL 12 and later print the shortest digits, others and settings more or fewer.
    "other digits": lambda text, ours: repr(float(ours)) == repr(float(text)) or ours == str(np.float32(float(text))),
    # Itself before PostgreSQL 15, in octal since.
    "a byte past ASCII": lambda text, ours: ours == f"\\{text[0]:03o}",
}


def test_every_recorded_type_is_decoded_or_known_to_be_unknown() -> None:
    types = {param.values[0]["type"] for param in recorded()}
    assert types >= UNKNOWN
    assert {name for name in types if name in DIFFERENT} == set(DIFFERENT)
    assert len(types) > 90
