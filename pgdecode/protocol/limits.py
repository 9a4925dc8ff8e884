"""What a payload may claim before it is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields

MAX_PAYLOAD = 2**30 - 1  # MaxAllocSize, utils/memutils.h: no server can build more
MAX_DIMENSIONS = 6  # of an array: MAXDIM, utils/array.h
FREE_EXPANSION = 16 * 2**20  # bytes that a batch may make whatever its size
FREE_NAME = (
    63  # bytes of a column's name that do not count where a batch cannot be split: NAMEDATALEN - 1, pg_config_manual.h
)


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
        How many times as long as the payloads at hand, past the first 16 MiB, all text may be that one batch makes of
        them. A binary value can be far shorter than its text (a numeric of 10 bytes has up to 147,455 digits), and
        a null of one byte becomes an entry of a map, with the name of its column. The names of columns in maps and in
        `unchanged`, and those of relations and transactions, count like values; an entry of a map counts 8 bytes more.
        `ChangeDecoder` splits batches that would be past it, so that a table of long names and short values only comes
        in smaller ones. What is asked for as one batch (`decode_rows`, and `decode` and `table` of `ChangeDecoder`) is
        `BatchExpands`: decode fewer rows at once. There, only what is past 63 bytes of each name counts, the most that
        a server takes for a name in its own encoding: so the names of an honest table in ASCII never do. Columns of
        constant width do not count anywhere: they are as many as there are rows.
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
