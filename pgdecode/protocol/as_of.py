"""The option `as_of`: the commit after which changes are not applied."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EXAMPLES = 'an LSN, such as "16/B374D848", or a time with a time zone, such as "2026-11-28 00:00:00+00"'


@dataclass(frozen=True)
class AsOf:
    """The last commit, by its LSN or its time. One of the two is None.

    As with PostgreSQL's `recovery_target_lsn` and `recovery_target_time`, the changes end before the first commit that
    is later. Commit LSNs ascend. Commit times may not: then a commit counts although a later one has an earlier time.

    Attributes
    ----------
    lsn : int or None
    time_us : int or None
        Microseconds since 2000-01-01 UTC, as in messages.
    """

    lsn: int | None = None
    time_us: int | None = None

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Convert an LSN, as text or int, or a time with a time zone, as text or datetime. None stays None.

        Raises
        ------
        TypeError, ValueError
            For other values.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = _parsed(value)
        if isinstance(value, datetime):
            if value.utcoffset() is None:
                raise ValueError(f"as_of is a time without a time zone: it is {_EXAMPLES}")
            return cls(time_us=(value - _EPOCH) // timedelta(microseconds=1))
        try:
            lsn = operator.index(value)
        except TypeError:
            lsn = None
        if lsn is None or isinstance(value, bool):
            raise TypeError(f"as_of is {_EXAMPLES}; not {type(value).__name__}")
        lsn_to_text(lsn)
        return cls(lsn=lsn)

    def __str__(self) -> str:
        """Return the LSN, or the time in UTC."""
        if self.lsn is not None:
            return lsn_to_text(self.lsn)
        return (_EPOCH + timedelta(microseconds=self.time_us or 0)).isoformat(sep=" ")


def _parsed(text: str) -> Any:
    if "/" in text:
        return lsn_from_text(text.strip())
    try:
        return int(text) if text.isdecimal() else datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"as_of is {_EXAMPLES}; not {text[:40]!r}") from None
