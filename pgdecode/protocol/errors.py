"""Every way a payload can be wrong: one code, one class, one wording each.

A native room reports a fault as a code with numbers; `fault` turns it into the class that carries that
code. Texts name places and sizes, never the bytes of a payload: Spark copies them into logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

MOST_SHOWN = 20  # names in one text
LONGEST_SHOWN = 64  # characters of one


def shown(name: str) -> str:
    """Quote a name for an error's text, in one line and cut: it may come from a hostile payload."""
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[: LONGEST_SHOWN - 1]}…")


def listed(names: Iterable[str]) -> str:
    """List names for an error's text, unquoted and not too many; "none" without any."""
    found = list(names)
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in found[:MOST_SHOWN]) + more or "none"


class DecodeError(ValueError):
    """A payload that cannot be decoded.

    Attributes
    ----------
    code : str
        Stable name of the fault, such as "TRUNCATED"; also the first word of the `error` column.
    row : int or None
        Index of the payload in the input; None when a single payload was decoded.
    position : int or None
        Where the slot gave the payload, in place of `row`, where payloads go by their positions.
    offset : int
        Byte offset of the fault in the payload, counted from the tag byte (0).
    tag : str or None
        The payload's first byte as one character; None for an empty payload.
    relation : int or None
        OID of the relation, where the message names one and it could be read.
    column : int or None
        Ordinal of the tuple column or Relation column, counted from 0, where the fault lies in one.
    expected, seen : int or None
        What the fault compares: bytes needed and left, limit and size, ...
    """

    code: ClassVar[str] = ""
    # Filled with `expected`, `seen` (numbers), `byte` (seen as a byte, printable) and `field` (where).
    wording: ClassVar[str] = "{field} is malformed"

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
        places = (("row", row), ("position", position), ("offset", offset))
        where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
        super().__init__(f"{where}: {detail}")
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
        """Text for the `error` column, where the row is known by its place."""
        return f"{self.code} at offset {self.offset}: {self.detail}"

    def at_position(self, position: int) -> DecodeError:
        """Make the same error of a payload that is known by its position, not its row."""
        kept = ("offset", "tag", "relation", "column", "expected", "seen")
        return type(self)(self.detail, position=position, **{name: getattr(self, name) for name in kept})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.detail, {**self.__dict__, "detail": None})


def _rebuild(cls: type[DecodeError], detail: str, attributes: dict[str, Any]) -> DecodeError:
    """Unpickle an error."""
    del attributes["detail"]
    return cls(detail, **attributes)


class EmptyPayload(DecodeError):
    """A payload of no bytes; servers send one where the name of an origin is gone."""

    code = "EMPTY"
    wording = "empty payload, expected a message tag"


class UnknownTag(DecodeError):
    """A first byte that no pgoutput message has. The text hints at frames and encodings it recognises."""

    code = "UNKNOWN_TAG"
    wording = "unknown message tag {byte}"


class TruncatedMessage(DecodeError):
    """The payload ends before a field does."""

    code = "TRUNCATED"
    wording = "{field} needs {expected} bytes, {seen} left"


class TrailingBytes(DecodeError):
    """Bytes left over after the last field; `offset` is the first of them."""

    code = "TRAILING"
    wording = "{field} ends here, {seen} bytes left over"


class BadLength(DecodeError):
    """A length that no server can send: negative, or above 0x3fffffff (MaxAllocSize, utils/memutils.h)."""

    code = "BAD_LENGTH"
    wording = "{field} has length {seen}, at most {expected} can be"


class MissingTerminator(DecodeError):
    """A string without its NUL."""

    code = "NO_NUL"
    wording = "{field} has no terminating NUL in the {seen} bytes left"


class EmptyName(DecodeError):
    """A relation, column or type without a name."""

    code = "EMPTY_NAME"
    wording = "{field} is empty"


class BadEncoding(DecodeError):
    """A string that is not UTF-8, or a value that is no text in the declared encoding.

    `offset` is the first byte of a name that does not fit, or where the value begins.
    """

    code = "ENCODING"
    wording = "{field} is not UTF-8 (was client_encoding another?)"


class BadFlags(DecodeError):
    """Flag bits that no server sets."""

    code = "BAD_FLAGS"
    wording = "{field} is {seen}, at most {expected} is defined"


class BadValue(DecodeError):
    """A field whose value has no meaning."""

    code = "BAD_VALUE"
    wording = "{field} is {seen}, which has no meaning"


class OutOfRange(DecodeError):
    """A number that the output type cannot hold."""

    code = "OUT_OF_RANGE"
    wording = "{field} is past what its output type holds"


class BadTupleTag(DecodeError):
    """Another byte where a tuple's N, K or O must stand."""

    code = "BAD_TUPLE_TAG"
    wording = "{field} does not start with its tuple tag, but with {byte}"


class BadColumnKind(DecodeError):
    """A tuple column that is not n, u, t or b."""

    code = "BAD_COLUMN_KIND"
    wording = "{field} has kind {byte}, expected n, u, t or b"


class StreamDesync(DecodeError):
    """The message contradicts what order or caller says about being inside a stream.

    A Stream Start or Stop is missing, payloads are not in slot order, or `in_stream` is wrong.
    """

    code = "STATE_DESYNC"
    wording = "{field} contradicts the stream state: a stream_start or stream_stop is missing or out of order"


class TransactionDesync(DecodeError):
    """Payloads that do not make transactions: a begin, commit or stream_start is missing or out of order."""

    code = "STATE_TRANSACTION"
    wording = "{field}"


class UnknownRelation(DecodeError):
    """A row of a relation that no message before it describes; pass `catalog=` where payloads begin mid-stream."""

    code = "REL_UNKNOWN"
    wording = "relation {seen} has not been described before this {field}: pass catalog= with its Relation message"


class InvalidRelation(UnknownRelation):
    """A row of a relation of which the last Relation message was bad: what it has become by then is not known."""

    code = "REL_IN_DOUBT"
    wording = "relation {seen} is invalid at this {field}: its last Relation message is an error"


# Its name in the first release.
RelationInDoubt = InvalidRelation


class RepeatedColumn(DecodeError):
    """A Relation message that gives two columns one name, which no server does and no map or struct can hold."""

    code = "REPEATED_COLUMN"
    wording = "{field} is that of a column before it"


class ArityMismatch(DecodeError):
    """A tuple with more or fewer columns than its relation."""

    code = "ARITY"
    wording = "{field} has {seen} columns, the relation has {expected}"


class OtherRelation(DecodeError):
    """A row of another relation than the one to be decoded."""

    code = "OTHER_RELATION"
    wording = "{field} is {seen}, expected {expected}"


class NotARow(DecodeError):
    """A message that is no insert, update or delete."""

    code = "NOT_A_ROW"
    wording = "{field} is no insert, update or delete"


class UnknownType(DecodeError):
    """A binary value of a type that the stream does not describe; say what it is by `types`."""

    code = "UNKNOWN_TYPE"
    wording = "{field} is binary and of an unknown type: name it by types="


class WrongSize(DecodeError):
    """A binary value of another length than its type has."""

    code = "WRONG_SIZE"
    wording = "{field} has {seen} bytes, which its type cannot have"


class UndeclaredSetting(DecodeError):
    """Text written under another DateStyle, IntervalStyle or the like than was declared."""

    code = "SETTING"
    wording = "{field} was not written under the declared session settings (DateStyle, IntervalStyle)"


class UndecodableZone(UndeclaredSetting):
    """An abbreviation of a time zone, such as EST: what DateStyles other than ISO write in place of an offset.

    The same letters mean different offsets, so that only numbers, UTC and GMT can be decoded. Capture under DateStyle
    ISO, or TimeZone UTC.
    """

    code = "ZONE"
    wording = "{field} has a zone by an abbreviation, which is no offset (capture under DateStyle ISO or TimeZone UTC)"


class Unrepresentable(DecodeError):
    """A value that PostgreSQL has and the Arrow type has not: NaN in a decimal, infinity in a date, year 294276."""

    code = "NOT_REPRESENTABLE"
    wording = "{field} does not fit its Arrow type"


class LimitExceeded(DecodeError):
    """A size past what `Limits` allows."""


class PayloadTooLong(LimitExceeded):
    """Past `Limits.max_payload_bytes`."""

    code = "LIMIT_PAYLOAD"
    wording = "payload of {seen} bytes, limit {expected}"


class TooManyColumns(LimitExceeded):
    """Past `Limits.max_columns`."""

    code = "LIMIT_COLUMNS"
    wording = "{field} has {seen} columns, limit {expected}"


class NameTooLong(LimitExceeded):
    """Past `Limits.max_name_bytes`."""

    code = "LIMIT_NAME"
    wording = "{field} has {seen} bytes, limit {expected}"


class ValueTooLong(LimitExceeded):
    """Past `Limits.max_value_bytes`."""

    code = "LIMIT_VALUE"
    wording = "{field} has {seen} bytes, limit {expected}"


class TooManyRelations(LimitExceeded):
    """Past `Limits.max_relations`."""

    code = "LIMIT_RELATIONS"
    wording = "{field} is number {seen}, limit {expected} (Limits.max_relations)"


class BatchTooLarge(LimitExceeded):
    """More output in one batch than Arrow's 32-bit offsets reach. Raised in every mode: decode fewer rows at once.

    Of a batch of one row it is a fault of the value with which it would.
    """

    code = "LIMIT_BATCH"
    wording = "{field} of this batch would pass 2147483647 bytes or items; decode fewer rows at once"


class BatchExpands(BatchTooLarge):
    """More text in a batch, names included, than `Limits.max_expansion` allows; as `BatchTooLarge` in all else."""

    code = "LIMIT_EXPANSION"
    wording = (
        "values and names of this batch become more text than Limits.max_expansion allows; decode fewer rows at once"
    )
