"""Limits on the sizes of payloads and of their parts."""

from __future__ import annotations

from dataclasses import dataclass, fields

MAX_PAYLOAD = 2**30 - 1  # MaxAllocSize, utils/memutils.h: no server can build more
MAX_DIMENSIONS = 6  # of an array: MAXDIM, utils/array.h
FREE_EXPANSION = 16 * 2**20  # bytes of text that a batch of any size may produce
# Bytes of a column's name that do not count where a batch cannot be split: NAMEDATALEN - 1, pg_config_manual.h.
FREE_NAME = 63


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes above which a payload is refused with a `LimitExceeded` fault.

    Attributes
    ----------
    max_payload_bytes : int
        Bytes of one payload, at most 2**30 - 1, which is the server's own maximum.
    max_columns : int
        Columns of a relation or tuple; the server's maximum is 1600.
    max_name_bytes : int
        Bytes of a relation, namespace, type or column name: 63 in the server's encoding, up to four times
        that in UTF-8.
    max_value_bytes : int
        Bytes of one tuple value or of a logical message's content. By default as much as the server can send. A
        length that is claimed costs nothing until its bytes are there.
    max_expansion : int
        Maximum ratio of the text in one batch to the size of its payloads; the first 16 MiB of text are free. The
        text of a binary value can be far longer than the value (a numeric of 10 bytes has up to 147,455 digits), and
        a null of one byte becomes a map entry with the name of its column. The names of columns in maps and in
        `unchanged`, and the names of relations and transactions, count like values. A map entry counts 8 more bytes.
        `ChangeDecoder` splits batches that would exceed the limit, so a table of long names and short values comes in
        smaller batches. `decode_rows`, and `decode` and `table` of `ChangeDecoder`, return one batch, so they raise
        `BatchExpands`: decode fewer rows at once. For these, only the bytes of a name past the first 63 count. A
        server allows at most 63 bytes for a name in its own encoding, so ASCII names from a real server never count.
        Columns of constant width never count, because their size depends only on the number of rows.
    max_relations : int
        Versions of relations that a catalog or a decoder keeps, and separately, types. A description that is repeated
        unchanged is not a new version.

    Notes
    -----
    Some limits are fixed. PostgreSQL itself sets two: an array has at most 6 dimensions (`MAX_DIMENSIONS`), and no
    length exceeds 0x3fffffff, nor does the text of one value. A column of a batch holds at most 2147483647
    bytes or items, because Arrow's offsets have 32 bits; more is `BatchTooLarge`.

    Examples
    --------
    >>> limits = pgdecode.Limits(max_columns=1)
    >>> pgdecode.decode(bytes.fromhex("49 00004001 4e 0002 6e 6e"), limits=limits)
    Traceback (most recent call last):
    pgdecode.protocol.errors.TooManyColumns: ...
    """

    max_payload_bytes: int = MAX_PAYLOAD
    max_columns: int = 1600
    max_name_bytes: int = 252
    max_value_bytes: int = MAX_PAYLOAD
    max_expansion: int = 16
    max_relations: int = 100_000

    def __post_init__(self) -> None:
        for item in fields(self):
            highest = 65535 if item.name in ("max_columns", "max_expansion") else MAX_PAYLOAD
            value = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
                raise ValueError(f"Limits.{item.name} is from 1 to {highest}, not {value!r}")


LIMITS = Limits()  # the default
