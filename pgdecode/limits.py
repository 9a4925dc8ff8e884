"""What a payload may claim before it is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields

MAX_PAYLOAD = 2**30 - 1  # MaxAllocSize, utils/memutils.h: no server can build more


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
    """

    max_payload_bytes: int = MAX_PAYLOAD
    max_columns: int = 1600
    max_name_bytes: int = 252
    max_value_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        for item in fields(self):
            highest = 65535 if item.name == "max_columns" else MAX_PAYLOAD
            value = getattr(self, item.name)
            if not isinstance(value, int) or not 1 <= value <= highest:
                raise ValueError(f"Limits.{item.name} is from 1 to {highest}, not {value!r}")


LIMITS = Limits()  # those of every function that is given none
