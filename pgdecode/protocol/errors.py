"""Errors of payloads: each fault has one code, one class and one text.

Native code reports a fault as a code with numbers. `_native/fault.pyx` turns it into the class with that code. Texts
contain locations and sizes but never payload bytes, because Spark copies them into logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

MOST_SHOWN = 20  # names in one error text
LONGEST_SHOWN = 64  # characters of one name


def shown(name: str) -> str:
    """Quote a name for an error text, on one line and shortened. The name may come from a hostile payload."""
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[: LONGEST_SHOWN - 1]}…")


def listed(names: Iterable[str]) -> str:
    """List names for an error text, unquoted and at most `MOST_SHOWN`; "none" if there are none."""
    every = list(names)
    more = f" and {len(every) - MOST_SHOWN} more" if len(every) > MOST_SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in every[:MOST_SHOWN]) + more or "none"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Suggest the known name that is most like an unknown one, for an error text; "" if none is like it."""
    last = name.rpartition(".")[2]
    without_schema = [other.rpartition(".")[2] for other in known]
    most_like = get_close_matches(last, without_schema, 1)
    near = [other for other, found in zip(known, without_schema, strict=True) if found in most_like]
    return f" (did you mean {shown(near[0])[1:-1]}?)" if len(near) == 1 else ""


def unknown_names(names: Sequence[str], known: Sequence[str]) -> str:
    """Quote unknown names for an error text, with the known names and what the first may mean."""
    hint = did_you_mean(names[0], known)
    return f"{', '.join(map(shown, names))}{hint}; there are {', '.join(known)}"


class DecodeError(ValueError):
    """A payload that cannot be decoded.

    Attributes
    ----------
    code : str
        Stable name of the fault, such as "TRUNCATED"; also the first word of the `error` column.
    row : int or None
        Index of the payload in the input; None if a single payload was decoded.
    position : int or None
        Slot position of the payload; replaces `row` where payloads are identified by position.
    offset : int
        Byte offset of the fault in the payload; the tag byte has offset 0.
    tag : str or None
        The payload's first byte as one character; None for an empty payload.
    relation : int or None
        OID of the relation, if the message has one and it could be read.
    column : int or None
        Index of the tuple column or Relation column that has the fault, counted from 0.
    expected, seen : int or None
        The two numbers that the fault compares: bytes needed and left, limit and size, ...

    Examples
    --------
    >>> try:
    ...     pgdecode.decode(bytes.fromhex("49 00004001 4e 0001 74 0000000c 35"))
    ... except pgdecode.DecodeError as error:
    ...     error.code, error.offset, error.expected, error.seen, error.tag
    ('TRUNCATED', 13, 12, 1, 'I')
    """

    code: ClassVar[str] = ""
    # A format string with `expected` and `seen` (numbers), `byte` (`seen` as a printable byte) and `field` (location).
    wording: ClassVar[str] = "{field} is malformed"
    # What to do about it: a sentence for the documentation.
    remedy: ClassVar[str] = ""

    def __init__(
        self,
        detail: str,
        *,
        row: int | None = None,
        position: int | None = None,
        offset: int = 0,
        tag: str | None = None,
        relation: int | None = None,
        column: int | None = None,
        expected: int | None = None,
        seen: int | None = None,
    ) -> None:
        numbers = (("row", row), ("position", position), ("offset", offset))
        location = ", ".join(f"{name} {number}" for name, number in numbers if number is not None)
        super().__init__(f"{location}: {detail}")
        self.detail = detail
        self.row = row
        self.position = position
        self.offset = offset
        self.tag = tag
        self.relation = relation
        self.column = column
        self.expected = expected
        self.seen = seen

    @property
    def cell(self) -> str:
        """Text for the `error` column. It does not repeat the row."""
        return f"{self.code} at offset {self.offset}: {self.detail}"

    def at_position(self, position: int) -> DecodeError:
        """Copy the error, with a position in place of the row."""
        attributes = ("offset", "tag", "relation", "column", "expected", "seen")
        return type(self)(self.detail, position=position, **{name: getattr(self, name) for name in attributes})

    def with_detail(self, detail: str) -> DecodeError:
        """Copy the error, with another text."""
        attributes = ("row", "position", "offset", "tag", "relation", "column", "expected", "seen")
        return type(self)(detail, **{name: getattr(self, name) for name in attributes})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.detail, {**self.__dict__, "detail": None})


def _rebuild(cls: type[DecodeError], detail: str, attributes: dict[str, Any]) -> DecodeError:
    """Unpickle an error; the target of `DecodeError.__reduce__`."""
    del attributes["detail"]
    return cls(detail, **attributes)


class EmptyPayload(DecodeError):
    """A payload of zero bytes. Servers send one if the name of a replication origin no longer exists."""

    code = "EMPTY"
    wording = "empty payload, expected a message tag"
    remedy = 'Nothing is lost. Use `empty="null"`, the default of columns, which counts such payloads.'


class UnknownTag(DecodeError):
    """A first byte that is not a pgoutput message tag. The text names a frame or encoding if it recognises one."""

    code = "UNKNOWN_TAG"
    wording = "unknown message tag {byte}"
    remedy = "The error says what the bytes look like. Name the form of frames, hexadecimal or base64 with `unwrap=`."


class TruncatedMessage(DecodeError):
    """The payload ends before a field does."""

    code = "TRUNCATED"
    wording = "{field} needs {expected} bytes, {seen} left"
    remedy = "The payload was cut when it was stored. Read it again from the slot, or use PERMISSIVE mode."


class TrailingBytes(DecodeError):
    """Bytes after the last field; `offset` is the first of them."""

    code = "TRAILING"
    wording = "{field} ends here, {seen} bytes left over"
    remedy = "One row holds more than one message, or `in_stream` is wrong. Store one message per row."


class BadLength(DecodeError):
    """A length that no server can send: negative, or above 0x3fffffff (MaxAllocSize, utils/memutils.h)."""

    code = "BAD_LENGTH"
    wording = "{field} has length {seen}, the maximum is {expected}"
    remedy = "The payload is corrupt. Read it again from the slot, or use PERMISSIVE mode."


class MissingTerminator(DecodeError):
    """A string without its terminating NUL."""

    code = "NO_NUL"
    wording = "{field} has no terminating NUL in the {seen} bytes left"
    remedy = "The payload was cut or is corrupt. Read it again from the slot, or use PERMISSIVE mode."


class EmptyName(DecodeError):
    """A relation, column or type without a name."""

    code = "EMPTY_NAME"
    wording = "{field} is empty"
    remedy = "The payload is corrupt, or it is no pgoutput message."


class BadEncoding(DecodeError):
    """A string that is not UTF-8, or a value that is not valid in the declared encoding.

    `offset` is the first invalid byte of a name, or the first byte of a value.
    """

    code = "ENCODING"
    wording = "{field} is not UTF-8 (was another client_encoding in use?)"
    remedy = "Capture with client_encoding UTF8, or name the encoding of the values with `encoding=`."


class BadFlags(DecodeError):
    """Flag bits that no server sets."""

    code = "BAD_FLAGS"
    wording = "{field} is {seen}, the highest defined value is {expected}"
    remedy = "Is `in_stream` right? If a newer server sets new flags, use `strict_flags=False`."


class BadValue(DecodeError):
    """A field with an invalid value."""

    code = "BAD_VALUE"
    wording = "{field} is {seen}, which is not a valid value"
    remedy = "The payload is corrupt, or `types=` or `columns=` name another type than the column has."


class OutOfRange(DecodeError):
    """A number that the output type cannot hold."""

    code = "OUT_OF_RANGE"
    wording = "{field} is out of range for its output type"
    remedy = "Declare a wider type for the column with `columns=`."


class BadTupleTag(DecodeError):
    """A tuple that does not start with N, K or O."""

    code = "BAD_TUPLE_TAG"
    wording = "{field} starts with {byte} instead of a tuple tag"
    remedy = "The payload is corrupt, or `in_stream` is wrong."


class BadColumnKind(DecodeError):
    """A tuple column whose kind is not n, u, t or b."""

    code = "BAD_COLUMN_KIND"
    wording = "{field} has kind {byte}, expected n, u, t or b"
    remedy = "The payload is corrupt, or `in_stream` is wrong."


class StreamDesync(DecodeError):
    """A message that contradicts the stream state, which is known from the order of messages or from the caller.

    A Stream Start or Stream Stop is missing, payloads are not in slot order, or `in_stream` is wrong.
    """

    code = "STATE_DESYNC"
    wording = "{field} contradicts the stream state: a stream_start or stream_stop is missing or out of order"
    remedy = 'Sort the payloads by their sequence number. If they have no order, use `in_stream="auto"`.'


class TransactionDesync(DecodeError):
    """Payloads that do not form transactions: a begin, commit or stream_start is missing or out of order."""

    code = "STATE_TRANSACTION"
    wording = "{field}"
    remedy = 'Pass the `state` of the run before. Or leave such transactions out: `start="anywhere"`.'


class CommitOrder(TransactionDesync):
    """A commit whose LSN does not come after that of the commit before: servers send commits in ascending order.

    Transactions are out of order, or were sent again after a reconnect that nothing announces.
    """

    code = "STATE_COMMIT_ORDER"
    wording = "{field}"
    remedy = (
        "Sort the payloads by their sequence number. If transactions were sent again, leave them out with "
        "`drop_duplicates=True`, or say where connections begin with `session=` or `reconnected()`."
    )


class UnknownRelation(DecodeError):
    """A row of a relation that no earlier message describes.

    Pass `catalog=` if the payloads begin in the middle of a slot's output.
    """

    code = "REL_UNKNOWN"
    wording = "relation {seen} has not been described before this {field}: pass catalog= with its Relation message"
    remedy = "Pass `catalog=` with the relations of the earlier payloads."


class InvalidRelation(UnknownRelation):
    """A row of a relation whose last Relation message was bad, so that its columns are not known."""

    code = "REL_IN_DOUBT"
    wording = "relation {seen} is invalid at this {field}: its last Relation message is an error"
    remedy = "The error of that Relation message says what is wrong. After the next good one, rows are decoded again."


class RepeatedColumn(DecodeError):
    """A Relation message in which two columns have the same name.

    No server sends one. A map or a struct could not hold such a row.
    """

    code = "REPEATED_COLUMN"
    wording = "{field} is also the name of an earlier column"
    remedy = "The payload is corrupt. Read it again from the slot."


class ArityMismatch(DecodeError):
    """A tuple with more or fewer columns than its relation."""

    code = "ARITY"
    wording = "{field} has {seen} columns, the relation has {expected}"
    remedy = "Pass the Relation message that the server sent before this row, or use `ChangeDecoder`, which finds it."


class OtherRelation(DecodeError):
    """A row of a relation other than the one to decode."""

    code = "OTHER_RELATION"
    wording = "{field} is {seen}, expected {expected}"
    remedy = 'Filter the payloads by `relation_id` first, or use `others="null"` on Spark.'


class NotARow(DecodeError):
    """A message that is not an insert, update or delete."""

    code = "NOT_A_ROW"
    wording = "{field} is not an insert, update or delete"
    remedy = 'Filter the payloads by `kind` first, or use `others="null"` on Spark.'


class UnknownType(DecodeError):
    """A binary value of a type that the messages do not describe. Declare the type by `types`."""

    code = "UNKNOWN_TYPE"
    wording = "{field} is binary and of an unknown type: name it by types="
    remedy = "Declare the type with `types=`, or capture with text tuples (`binary` off)."


class WrongSize(DecodeError):
    """A binary value whose length does not fit its type."""

    code = "WRONG_SIZE"
    wording = "{field} has {seen} bytes, which is not a valid length for its type"
    remedy = "The payload is corrupt, or `types=` or `columns=` name another type than the column has."


class UndeclaredSetting(DecodeError):
    """Text written under another DateStyle, IntervalStyle or similar setting than the declared one."""

    code = "SETTING"
    wording = "{field} was not written under the declared session settings (DateStyle, IntervalStyle)"
    remedy = "Name the DateStyle of the capture with `datestyle=`."


class UndecodableZone(UndeclaredSetting):
    """A time zone abbreviation such as EST. DateStyles other than ISO write one in place of an offset.

    The same abbreviation can mean different offsets, so only numbers, UTC and GMT can be decoded. Capture under
    DateStyle ISO, or under TimeZone UTC.
    """

    code = "ZONE"
    wording = "{field} has a time zone abbreviation instead of an offset (capture under DateStyle ISO or TimeZone UTC)"
    remedy = "Capture under DateStyle ISO or TimeZone UTC. Or read the column as text with `columns=`."


class Unrepresentable(DecodeError):
    """A value that the Arrow type cannot hold: NaN in a decimal, infinity in a date, year 294276."""

    code = "NOT_REPRESENTABLE"
    wording = "{field} does not fit its Arrow type (choose with unrepresentable=)"
    remedy = (
        "Choose with `unrepresentable=`: null, the nearest value, or a column of text. A binary money needs its "
        'fraction digits instead: `types={"money": "money(2)"}`.'
    )


class LimitExceeded(DecodeError):
    """A size above a limit of `Limits`."""

    remedy = "Raise the limit in `Limits`, if the payloads come from a server that you trust."


class PayloadTooLong(LimitExceeded):
    """A payload longer than `Limits.max_payload_bytes`."""

    code = "LIMIT_PAYLOAD"
    wording = "payload of {seen} bytes, limit {expected}"
    remedy = "No server sends such a payload. Is one row one message?"


class TooManyColumns(LimitExceeded):
    """More columns than `Limits.max_columns`."""

    code = "LIMIT_COLUMNS"
    wording = "{field} has {seen} columns, limit {expected}"
    remedy = "No server sends so many columns: the payload is corrupt."


class NameTooLong(LimitExceeded):
    """A name longer than `Limits.max_name_bytes`."""

    code = "LIMIT_NAME"
    wording = "{field} has {seen} bytes, limit {expected}"
    remedy = "Raise `Limits.max_name_bytes` for a server that was built with longer names."


class ValueTooLong(LimitExceeded):
    """A value longer than `Limits.max_value_bytes`."""

    code = "LIMIT_VALUE"
    wording = "{field} has {seen} bytes, limit {expected}"
    remedy = "Raise `max_value_bytes` of `Limits`, or the option. The default is all that a server can send."


class TooManyRelations(LimitExceeded):
    """More relations than `Limits.max_relations`."""

    code = "LIMIT_RELATIONS"
    wording = "{field} is number {seen}, limit {expected} (Limits.max_relations)"
    remedy = "Raise `Limits.max_relations`, or decode in more runs."


class BatchTooLarge(LimitExceeded):
    """More output in one batch than Arrow's 32-bit offsets can address.

    Raised in every mode: decode fewer rows at once. In a batch of one row, it is a fault of the value that exceeds the
    limit.
    """

    code = "LIMIT_BATCH"
    wording = "{field} of this batch would exceed 2147483647 bytes or items; decode fewer rows at once"
    remedy = "Decode fewer rows at once. Functions that return several batches divide them by themselves."


class BatchExpands(BatchTooLarge):
    """More text in a batch, names included, than `Limits.max_expansion` allows. Otherwise like `BatchTooLarge`."""

    code = "LIMIT_EXPANSION"
    wording = "the text of values and names in this batch would exceed Limits.max_expansion; decode fewer rows at once"
    remedy = "Decode fewer rows at once, or raise `Limits.max_expansion`."
