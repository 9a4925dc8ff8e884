"""Every fault has a code, a class, a text and an input that provokes it."""

from __future__ import annotations

import copy
import gzip
import inspect
import os
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import DecodeError, Limits
from pgdecode.protocol import errors
from support.each import each
from support.generators.samples import SAMPLES

# By their own names, so that an alias is not another class.
CLASSES = [
    cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DecodeError) and cls.code and name == cls.__name__
]


class Fault(NamedTuple):
    """A payload, how it is decoded, and the attributes of its error; the tests put the payload in row 3."""

    cls: type[DecodeError]
    payload: bytes
    offset: int
    detail: str
    tag: str | None
    relation: int | None = None
    column: int | None = None
    expected: int | None = None
    seen: int | None = None
    in_stream: bool = False
    limits: Limits = Limits()


def fault(cls: type[DecodeError], hexadecimal: str, offset: int, detail: str, *, id: str, **attributes: Any) -> Any:
    payload = bytes.fromhex(hexadecimal)
    attributes.setdefault("tag", chr(payload[0]) if payload else None)
    return pytest.param(Fault(cls, payload, offset, detail, **attributes), id=id)


INSERT = "49 00004001 4e"  # I, oid 16385, N
RELATION = "52 00004001 73 00 74 00"  # R, oid 16385, 's', 't'

FAULTS = [
    fault(
        errors.EmptyPayload, "", 0, "empty payload, expected a message tag",
        id="EMPTY",
    ),
    fault(
        errors.UnknownTag, "5a 00", 0, "unknown message tag 0x5a 'Z'",
        seen=0x5A, id="UNKNOWN_TAG printable",
    ),
    fault(
        errors.UnknownTag, "00 00", 0, "unknown message tag 0x00",
        seen=0, id="UNKNOWN_TAG not printable",
    ),
    fault(
        errors.TruncatedMessage, "42 0000", 1, "begin final_lsn needs 8 bytes, 2 left",
        expected=8, seen=2, id="TRUNCATED fixed field",
    ),
    fault(
        errors.TruncatedMessage, INSERT + "0002 6e 74 00000009 35", 14, "insert new column 1 needs 9 bytes, 1 left",
        relation=16385, column=1, expected=9, seen=1, id="TRUNCATED value",
    ),
    fault(
        errors.TruncatedMessage, INSERT + "0002 6e", 9, "insert new column 1 needs 1 bytes, 0 left",
        relation=16385, column=1, expected=1, seen=0, id="TRUNCATED column",
    ),
    fault(
        errors.TruncatedMessage, RELATION + "64 0001 00 61 00 0000", 15,
        "relation column 0 type_id needs 4 bytes, 2 left",
        relation=16385, column=0, expected=4, seen=2, id="TRUNCATED relation column",
    ),
    fault(
        errors.TruncatedMessage, "54 ffffffff 00 00004001", 10, "truncate relation_ids needs 4 bytes, 0 left",
        expected=4, seen=0, id="TRUNCATED list",
    ),
    fault(
        errors.TrailingBytes, "45 00 00", 1, "stream_stop ends here, 2 bytes left over",
        seen=2, id="TRAILING",
    ),
    fault(
        errors.BadLength, INSERT + "0001 74 ffffffff", 9,
        "insert new column 0 has length 4294967295, the maximum is 1073741823",
        relation=16385, column=0, expected=0x3FFFFFFF, seen=0xFFFFFFFF, id="BAD_LENGTH value",
    ),
    fault(
        errors.BadLength, "4d 00 0000000000000008 70 00 40000000", 12,
        "message content has length 1073741824, the maximum is 1073741823",
        expected=0x3FFFFFFF, seen=0x40000000, id="BAD_LENGTH content",
    ),
    fault(
        errors.MissingTerminator, "4f 0000000000000008 6f7267", 9,
        "origin name has no terminating NUL in the 3 bytes left",
        seen=3, id="NO_NUL",
    ),
    fault(
        errors.EmptyName, "59 00004001 73 00 00", 7, "type name is empty",
        id="EMPTY_NAME",
    ),
    fault(
        errors.EmptyName, RELATION + "64 0001 00 00 00000017 ffffffff", 13, "relation column 0 name is empty",
        relation=16385, column=0, id="EMPTY_NAME column",
    ),
    fault(
        errors.BadEncoding, "59 00004001 73 00 6e61ef7665 00", 9,
        "type name is not UTF-8 (was another client_encoding in use?)",
        id="ENCODING",
    ),
    fault(
        errors.BadFlags, "43 02" + "00" * 24, 1, "commit flags is 2, the highest defined value is 0",
        expected=0, seen=2, id="BAD_FLAGS",
    ),
    fault(
        errors.BadFlags, RELATION + "64 0002 00 61 00 00000017 ffffffff 02 62 00 00000017 ffffffff", 23,
        "relation column 1 flags is 2, the highest defined value is 1",
        relation=16385, column=1, expected=1, seen=2, id="BAD_FLAGS column",
    ),
    fault(
        errors.BadValue, RELATION + "78 0000", 9, "relation replica_identity is 120, which is not a valid value",
        relation=16385, seen=0x78, id="BAD_VALUE letter",
    ),
    fault(
        errors.BadValue, "53 00000000 01", 1, "stream_start xid is 0, which is not a valid value",
        seen=0, id="BAD_VALUE xid",
    ),
    fault(
        errors.OutOfRange, "4f 8000000000000000 6f 00", 1, "origin origin_lsn is out of range for its output type",
        id="OUT_OF_RANGE lsn",
    ),
    fault(
        errors.OutOfRange, "42 0000000000000008 7fffffffffffffff 00000304", 9,
        "begin commit_timestamp is out of range for its output type",
        id="OUT_OF_RANGE timestamp",
    ),
    fault(
        errors.BadTupleTag, "44 00004001 58 0000", 5,
        "delete old_type starts with 0x58 'X' instead of a tuple tag",
        relation=16385, seen=0x58, id="BAD_TUPLE_TAG",
    ),
    fault(
        errors.BadColumnKind, INSERT + "0002 6e 78", 9, "insert new column 1 has kind 0x78 'x', expected n, u, t or b",
        relation=16385, column=1, seen=0x78, id="BAD_COLUMN_KIND",
    ),
    fault(
        errors.StreamDesync, "49 00000304 00004001 4e 0000", 1,
        "insert contradicts the stream state: a stream_start or stream_stop is missing or out of order",
        id="STATE_DESYNC streamed",
    ),
    fault(
        errors.StreamDesync, "49 00004001 4e 0001 6e", 1,
        "insert contradicts the stream state: a stream_start or stream_stop is missing or out of order",
        in_stream=True, id="STATE_DESYNC plain",
    ),
    fault(
        errors.PayloadTooLong, "45 00 00", 0, "payload of 3 bytes, limit 2",
        expected=2, seen=3, limits=Limits(max_payload_bytes=2), id="LIMIT_PAYLOAD",
    ),
    fault(
        errors.TooManyColumns, INSERT + "0641 6e", 6, "insert new tuple has 1601 columns, limit 1600",
        relation=16385, expected=1600, seen=1601, id="LIMIT_COLUMNS tuple",
    ),
    fault(
        errors.TooManyColumns, RELATION + "64 ffff", 10, "relation columns has 65535 columns, limit 1600",
        relation=16385, expected=1600, seen=65535, id="LIMIT_COLUMNS relation",
    ),
    fault(
        errors.NameTooLong, "59 00004001 73 00 61616161 00", 7, "type name has 4 bytes, limit 3",
        expected=3, seen=4, limits=Limits(max_name_bytes=3), id="LIMIT_NAME",
    ),
    fault(
        errors.ValueTooLong, INSERT + "0001 74 00000002 3535", 9, "insert new column 0 has 2 bytes, limit 1",
        relation=16385, column=0, expected=1, seen=2, limits=Limits(max_value_bytes=1), id="LIMIT_VALUE",
    ),
]  # fmt: skip

faults = pytest.mark.parametrize("fault", FAULTS)


def raised(fault: Fault, row: int | None) -> DecodeError:
    """The error of a fault, decoded alone (row None) or as row `row` of a batch of good payloads."""
    options: dict[str, Any] = {"in_stream": fault.in_stream, "limits": fault.limits}
    if row is None:
        return error_of(lambda: pgdecode.decode(fault.payload, **options))
    return error_of(lambda: pgdecode.decode_messages([b"E"] * row + [fault.payload, b"E"], empty="error", **options))


def error_of(decode: Callable[[], object]) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode()
    return caught.value


# -- classes ---------------------------------------------------------------------------------------------------------


def test_each_class_has_its_own_code() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


def test_each_class_is_public_and_a_value_error() -> None:
    for cls in CLASSES:
        assert getattr(pgdecode, cls.__name__) is cls
        assert issubclass(cls, ValueError)


def test_each_class_is_provoked_by_a_test() -> None:
    provoked = {param.values[0].cls for param in FAULTS}
    # Faults of rows and values are provoked in tests/rows and tests/types.
    of_rows = {errors.ArityMismatch, errors.OtherRelation, errors.NotARow, errors.UnknownType}
    of_values = {errors.WrongSize, errors.UndeclaredSetting, errors.UndecodableZone, errors.Unrepresentable}
    # Faults of sequences are provoked in tests/changes and tests/relations.
    of_sequences = {errors.TransactionDesync, errors.UnknownRelation, errors.InvalidRelation, errors.RepeatedColumn}
    of_sequences |= {errors.TooManyRelations, errors.CommitOrder}
    rest = set(CLASSES) - of_rows - of_values - of_sequences
    # Faults of batches are provoked here and in tests/robustness/test_output_limits.py.
    assert provoked == rest - {errors.BatchTooLarge, errors.BatchExpands}


def test_the_limits_have_a_common_base_class() -> None:
    limits = {cls for cls in CLASSES if cls.code.startswith("LIMIT_")}
    assert limits == {cls for cls in CLASSES if issubclass(cls, errors.LimitExceeded)}


# -- texts and attributes --------------------------------------------------------------------------------------------


@faults
def test_a_fault_in_a_batch_names_row_offset_and_what_is_wrong(fault: Fault) -> None:
    error = raised(fault, row=3)
    assert type(error) is fault.cls
    assert str(error) == f"row 3, offset {fault.offset}: {fault.detail}"
    assert error.row == 3


@faults
def test_a_fault_of_one_payload_names_only_the_offset(fault: Fault) -> None:
    error = raised(fault, row=None)
    assert type(error) is fault.cls
    assert str(error) == f"offset {fault.offset}: {fault.detail}"
    assert error.row is None


@faults
def test_the_attributes_of_a_fault_agree_with_its_text(fault: Fault) -> None:
    for row in (None, 3):
        error = raised(fault, row)
        assert (error.offset, error.tag) == (fault.offset, fault.tag)
        assert (error.relation, error.column) == (fault.relation, fault.column)
        assert fault.expected in (None, error.expected)  # None if the text compares nothing
        assert fault.seen in (None, error.seen)
        assert error.detail == fault.detail


@faults
def test_the_error_column_has_the_code_first(fault: Fault) -> None:
    payloads = [b"E", fault.payload, b"E"]
    options: dict[str, Any] = {"in_stream": fault.in_stream, "limits": fault.limits, "empty": "error"}
    batch = pgdecode.decode_messages(payloads, mode="PERMISSIVE", **options)
    cell = f"{fault.cls.code} at offset {fault.offset}: {fault.detail}"
    assert batch["error"].to_pylist() == [None, cell, None]
    assert raised(fault, row=1).cell == cell


@faults
@each("row", [None, 3], ids=["one payload", "in a batch"])
def test_an_error_survives_pickle_and_copy(fault: Fault, row: int | None) -> None:
    error = raised(fault, row)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert (str(twin), twin.cell, vars(twin)) == (str(error), error.cell, vars(error))


def test_wordings_are_in_the_house_style() -> None:
    for param in FAULTS:
        detail = param.values[0].detail
        assert detail[0].islower()
        assert not detail.endswith(".")
        assert "{" not in detail


# -- hints -----------------------------------------------------------------------------------------------------------

BEGIN = SAMPLES["begin"].payload


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        pytest.param(b"w" + bytes(24) + BEGIN, "XLogData", id="XLogData frame"),
        pytest.param(b"k" + bytes(17), "keepalive", id="keepalive frame"),
        pytest.param(b"d\0\0\0\x32w" + bytes(24) + BEGIN, "CopyData", id="CopyData frame"),
        pytest.param(b"\\x" + BEGIN.hex().encode(), "hexadecimal", id="hex text"),
        pytest.param(b"\\x" + BEGIN.hex().upper().encode(), "hexadecimal", id="upper-case hex text"),
        pytest.param(gzip.compress(BEGIN), "gzip", id="gzip"),
        pytest.param(pa.compress(BEGIN, "zstd", asbytes=True), "zstd", id="zstd"),
    ],
)
def test_a_payload_in_a_known_wrapper_gets_a_hint(payload: bytes, hint: str) -> None:
    with pytest.raises(pgdecode.UnknownTag, match=f"it looks .*{hint}") as alone:
        pgdecode.decode(payload)
    with pytest.raises(pgdecode.UnknownTag) as in_batch:
        pgdecode.decode_messages([payload])
    assert str(in_batch.value) == f"row 0, {alone.value}"
    assert pgdecode.decode_messages([payload], mode="PERMISSIVE")["error"].to_pylist() == [alone.value.cell]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"Z", id="another letter"),
        pytest.param(b"w", id="w alone"),
        pytest.param(b"k" + bytes(3), id="k and too little"),
        pytest.param(b"d" + bytes(2), id="d and too little"),
        pytest.param(b"\\y42", id="a backslash"),
        pytest.param(b"\x1f\x00", id="half of gzip's mark"),
        pytest.param(b"\x28\xb5", id="half of zstd's mark"),
    ],
)
def test_an_unknown_tag_of_no_known_format_gets_no_hint(payload: bytes) -> None:
    with pytest.raises(pgdecode.UnknownTag) as caught:
        pgdecode.decode(payload)
    assert "looks" not in str(caught.value)


# -- a batch above the limit of Arrow's offsets -----------------------------------------------------------------------


def free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


@pytest.mark.long
@pytest.mark.full
@pytest.mark.skipif(free_bytes() < 6 * 2**30, reason="needs 6 GiB of free memory")
def test_a_batch_of_more_than_2_gib_is_refused_in_permissive_mode_too() -> None:
    # 40 views of one message with 64 MiB of content: 40 * 64 MiB = 2.5 GiB of output from 64 MiB of input.
    size = 64 * 2**20
    payload = b"M\0" + bytes(7) + b"\x08" + b"\0" + size.to_bytes(4, "big") + bytes(size)
    view = len(payload).to_bytes(4, "little") + payload[:4] + bytes(8)
    payloads = pa.Array.from_buffers(pa.binary_view(), 40, [None, pa.py_buffer(view * 40), pa.py_buffer(payload)])
    with pytest.raises(pgdecode.BatchTooLarge) as caught:
        pgdecode.decode_messages(payloads, in_stream=False, fields=["content"], mode="PERMISSIVE")
    # 31 contents are 2080374784 bytes; the next would make 2**31, one more than the largest offset.
    assert caught.value.row == 31
    assert str(caught.value) == (
        "row 31, offset 0: message content of this batch would exceed 2147483647 bytes or items; "
        "decode fewer rows at once"
    )
    assert pgdecode.decode_messages(payloads, in_stream=False, fields=["kind", "lsn"]).num_rows == 40


# -- the check for ignored exceptions ---------------------------------------------------------------------------------


def test_an_ignored_exception_is_detected(dropped_exceptions: list[str]) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise RuntimeError("nobody hears this")

    Dropped()
    assert [text for text in dropped_exceptions if "nobody hears this" in text]
    dropped_exceptions.clear()
