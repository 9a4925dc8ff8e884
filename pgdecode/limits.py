"""What a payload may claim before it is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields

MAX_PAYLOAD = 2**30 - 1  # MaxAllocSize, utils/memutils.h: no server can build more
MAX_DIMENSIONS = 6  # of an array: MAXDIM, utils/array.h
FREE_EXPANSION = 16 * 2**20  # bytes of text that a batch may make whatever its size


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes past which a payload is a fault (`LimitExceeded`) instead of work.

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
        Bytes of one tuple value or of a logical message's content.
    max_expansion : int
        How many times as long as the payloads at hand, past the first 16 MiB, the text may be that one batch makes of
        their values. Text is sent as it is; a binary value can be far shorter than its text (a numeric of 10 bytes
        has up to 147,455 digits), and only of those, in their thousands, is so much made. A batch past it is
        `BatchExpands`: decode fewer rows at once, as `ChangeDecoder` does by itself. Columns of constant width, the
        names of columns in maps, and nulls do not count: they are as many as there are rows and columns.
    max_relations : int
        Versions of relations that a catalog or a decoder keeps, and types beside them. What is sent again unchanged
        is no new version.

    Notes
    -----
    Two more are PostgreSQL's own and cannot be changed: an array has at most 6 dimensions (`MAX_DIMENSIONS`), and no
    length is past 0x3fffffff. The text made of one value is at most 64 MiB. A column of a batch holds at most
    2147483647 bytes or items, which is as far as Arrow's offsets reach: past that is `BatchTooLarge`.
    """

    max_payload_bytes: int = MAX_PAYLOAD
    max_columns: int = 1600
    max_name_bytes: int = 252
    max_value_bytes: int = 64 * 2**20
    max_expansion: int = 16
    max_relations: int = 100_000

    def __post_init__(self) -> None:
        for item in fields(self):
            highest = 65535 if item.name in ("max_columns", "max_expansion") else MAX_PAYLOAD
            value = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
                raise ValueError(f"Limits.{item.name} is from 1 to {highest}, not {value!r}")


LIMITS = Limits()  # those of every function that is given none
