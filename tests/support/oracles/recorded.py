"""Values that real servers wrote in both forms: tests/data/values.jsonl and tests/data/renderings.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pgdecode.protocol.errors import BadEncoding, BadValue, DecodeError, ValueTooLong, WrongSize
from support.values import decode_values

DATA = Path(__file__).parents[2] / "data"


class Pair(NamedTuple):
    """One value as a server wrote it; `binary` is None if only its text was recorded."""

    text: bytes
    binary: bytes | None


def _whole(form: dict[str, object]) -> bytes | None:
    """The bytes of a recorded form; None if it was too long to be kept."""
    digits = str(form.get("hex", ""))
    return None if "..." in digits or len(digits) != 2 * int(str(form["len"])) else bytes.fromhex(digits)


def values(pg_type: str) -> Iterator[tuple[str, Pair]]:
    """Values of a type in values.jsonl, with readable ids."""
    with (DATA / "values.jsonl").open() as lines:
        for line in lines:
            record = json.loads(line)
            text = _whole(record["text"])
            if record["type"] != pg_type or text is None:
                continue
            for form in record["binary"] or [{"hex": "", "len": -1}]:
                yield f"{pg_type} {record['sql_literal'][:40]}", Pair(text, _whole(form))


def renderings(pg_type: str) -> list[Pair]:
    """Values of a type in renderings.jsonl."""
    with (DATA / "renderings.jsonl").open() as lines:
        next(lines)
        records = map(json.loads, lines)
        return [Pair(r["text"].encode(), bytes.fromhex(r["binary"])) for r in records if r["type"] == pg_type]


def both(pg_type: str, pair: Pair) -> set[object]:
    """Decode both forms of a recorded value; return one result if they agree."""
    results = set(decoded(pg_type, [pair.text], binary=False))
    if pair.binary is not None:
        results.update(decoded(pg_type, [pair.binary], binary=True))
    return results


def decoded(pg_type: str, forms: list[bytes], *, binary: bool) -> list[object]:
    """Decode, and validate the Arrow array fully, including UTF-8."""
    array = decode_values(pg_type, forms, binary=binary)
    array.validate(full=True)
    found: list[object] = array.to_pylist()
    return found


def refused(pg_type: str, form: bytes, *, binary: bool) -> str:
    """The fault code of a bad form."""
    with pytest.raises(DecodeError) as caught:
        decode_values(pg_type, [form], binary=binary)
    return caught.value.code


def value_or_fault(pg_type: str, form: bytes, *, binary: bool) -> None:
    """Decode arbitrary bytes to one item: a value or a fault."""
    try:
        found = decoded(pg_type, [form], binary=binary)
    except (BadEncoding, BadValue, ValueTooLong, WrongSize):
        return
    assert len(found) == 1
