"""`Limits`: a size at the limit is accepted, one more is a fault, and the defaults are the server's maxima."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import pgdecode
from pgdecode import Column, Insert, Limits, LogicalMessage, Message, Origin, Relation, Type, Update
from support.compare import rows_of
from support.each import each
from support.generators.encoder import encode
from support.generators.samples import SAMPLES


def outcome(payload: bytes, limits: Limits) -> tuple[str, int, int | None, int | None] | None:
    """The fault of a payload under these limits, after checking that all decoders agree; None without a fault."""
    found: set[Any] = set()
    for decode in (
        lambda: pgdecode.decode(payload, limits=limits),
        lambda: pgdecode.decode_messages([payload], in_stream=False, limits=limits),
        lambda: pgdecode.decode_messages([payload], in_stream=[False], limits=limits),
        lambda: pgdecode.MessageDecoder(in_stream=False, limits=limits).decode([payload]),
    ):
        try:
            decode()
            found.add(None)
        except pgdecode.LimitExceeded as error:
            found.add((error.code, error.offset, error.expected, error.seen))
    (row,) = rows_of(pgdecode.decode_messages([payload], in_stream=False, limits=limits, mode="PERMISSIVE"))
    assert len(found) == 1
    (fault,) = found
    if fault is None:
        assert row["error"] is None
    else:
        assert row["error"].startswith(f"{fault[0]} at offset {fault[1]}: ")
    return fault  # type: ignore[no-any-return]


def insert(columns: int) -> Message:
    return Insert(relation_id=1, new=(None,) * columns, new_formats="n" * columns)


def update(columns: int) -> Message:
    cells = (None,) * columns
    return Update(relation_id=1, old_type="O", old=cells, old_formats="n" * columns, new=(), new_formats="")


def update_new(columns: int) -> Message:
    cells = (None,) * columns
    return Update(relation_id=1, old_type="K", old=(), old_formats="", new=cells, new_formats="n" * columns)


def relation(columns: int) -> Message:
    parts = tuple(Column(0, "c", 25, -1) for _ in range(columns))
    return Relation(relation_id=1, namespace="s", name="t", replica_identity="d", columns=parts)


def named(size: int) -> Message:
    return Type(type_id=1, namespace="s", name="n" * size)


def in_namespace(size: int) -> Message:
    return Type(type_id=1, namespace="n" * size, name="t")


def with_column_named(size: int) -> Message:
    return Relation(
        relation_id=1, namespace="s", name="t", replica_identity="d", columns=(Column(0, "n" * size, 25, -1),)
    )


def holding(size: int) -> Message:
    return Insert(relation_id=1, new=(None, b"v" * size), new_formats="nt")


def holding_binary(size: int) -> Message:
    return Insert(relation_id=1, new=(b"v" * size,), new_formats="b")


def saying(size: int) -> Message:
    return LogicalMessage(flags=0, lsn=8, prefix="p", content=b"v" * size)


def sized(size: int) -> Message:
    """A message of `size` bytes in total: tag, LSN, name and NUL."""
    return Origin(origin_lsn=8, name="o" * (size - 10))


@pytest.mark.parametrize("limit", [11, 40, 300])
@pytest.mark.parametrize(
    ("option", "message", "code", "offset"),
    [
        pytest.param("max_columns", insert, "LIMIT_COLUMNS", 6, id="columns of an insert"),
        pytest.param("max_columns", update, "LIMIT_COLUMNS", 6, id="columns of an old tuple"),
        pytest.param("max_columns", update_new, "LIMIT_COLUMNS", 9, id="columns of a new tuple"),
        pytest.param("max_columns", relation, "LIMIT_COLUMNS", 10, id="columns of a relation"),
        pytest.param("max_name_bytes", named, "LIMIT_NAME", 7, id="name"),
        pytest.param("max_name_bytes", in_namespace, "LIMIT_NAME", 5, id="namespace"),
        pytest.param("max_name_bytes", with_column_named, "LIMIT_NAME", 13, id="column name"),
        pytest.param("max_value_bytes", holding, "LIMIT_VALUE", 10, id="text value"),
        pytest.param("max_value_bytes", holding_binary, "LIMIT_VALUE", 9, id="binary value"),
        pytest.param("max_value_bytes", saying, "LIMIT_VALUE", 12, id="content"),
        pytest.param("max_payload_bytes", sized, "LIMIT_PAYLOAD", 0, id="payload"),
    ],
)
def test_one_more_than_a_limit_is_a_fault(option: str, message: Any, code: str, offset: int, limit: int) -> None:
    limits = Limits(**{option: limit})
    assert outcome(encode(message(limit - 1)), limits) is None
    assert outcome(encode(message(limit)), limits) is None
    assert outcome(encode(message(limit + 1)), limits) == (code, offset, limit, limit + 1)


@pytest.mark.parametrize(
    ("message", "limit", "fault"),
    [
        pytest.param(insert, 1600, ("LIMIT_COLUMNS", 6, 1600, 1601), id="columns of a tuple"),
        pytest.param(relation, 1600, ("LIMIT_COLUMNS", 10, 1600, 1601), id="columns of a relation"),
        pytest.param(named, 252, ("LIMIT_NAME", 7, 252, 253), id="name"),
    ],
)
def test_the_defaults_are_the_documented_ones(message: Any, limit: int, fault: tuple[str, int, int, int]) -> None:
    assert outcome(encode(message(limit)), Limits()) is None
    assert outcome(encode(message(limit + 1)), Limits()) == fault


def test_all_values_that_fit_a_payload_are_within_the_default_limit() -> None:
    # 2**30 - 1 bytes: MaxAllocSize, utils/memutils.h.
    assert Limits().max_value_bytes == Limits().max_payload_bytes == 2**30 - 1
    assert outcome(encode(holding(64 * 2**20 + 1)), Limits()) is None


def test_texts_other_than_names_have_no_own_limit() -> None:
    limits = Limits(max_name_bytes=3, max_value_bytes=3)
    assert outcome(encode(Origin(origin_lsn=8, name="o" * 4)), limits) is None
    assert outcome(encode(LogicalMessage(flags=0, lsn=8, prefix="pppp", content=b"")), limits) is None


def test_names_are_measured_in_bytes_and_not_in_characters() -> None:
    limits = Limits(max_name_bytes=4)
    assert outcome(encode(named_exactly("éé")), limits) is None
    assert outcome(encode(named_exactly("ééx")), limits) == ("LIMIT_NAME", 7, 4, 5)


def named_exactly(name: str) -> Message:
    return Type(type_id=1, namespace="s", name=name)


def test_the_bytes_left_are_checked_before_the_limit() -> None:
    payload = encode(holding(9))
    for limits in (Limits(), Limits(max_value_bytes=8)):
        with pytest.raises(pgdecode.TruncatedMessage):
            pgdecode.decode(payload[:-1], limits=limits)


def test_a_limit_applies_to_each_row_of_a_batch_separately() -> None:
    payloads = [encode(named(size)) for size in (3, 5, 4, 6, 3)]
    batch = pgdecode.decode_messages(payloads, in_stream=False, mode="PERMISSIVE", limits=Limits(max_name_bytes=4))
    assert [row["name"] for row in rows_of(batch)] == ["nnn", None, "nnnn", None, "nnn"]


@pytest.mark.parametrize("option", [item.name for item in fields(Limits)])
@each("value", [0, -1, 2**31, "8", None, 1.5, True], ids=repr)
def test_invalid_limits_are_refused(option: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=option):
        Limits(**{option: value})


def test_limits_are_frozen_and_equal_by_value() -> None:
    assert Limits(max_columns=5) == Limits(max_columns=5) != Limits()
    assert hash(Limits(max_columns=5)) == hash(Limits(max_columns=5))
    with pytest.raises(AttributeError):
        Limits().max_columns = 5  # type: ignore[misc]


def test_a_payload_limit_stops_before_the_payload_is_read() -> None:
    limits = Limits(max_payload_bytes=5)
    for sample in SAMPLES.values():
        fault = outcome(sample.payload, limits) if not sample.in_stream else None
        if not sample.in_stream:
            expected = None if len(sample.payload) <= 5 else ("LIMIT_PAYLOAD", 0, 5, len(sample.payload))
            assert fault == expected
