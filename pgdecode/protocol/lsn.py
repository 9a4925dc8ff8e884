"""Conversion of log sequence numbers (LSNs) to and from PostgreSQL's text form.

Source: pg_lsn_in and pg_lsn_out, utils/adt/pg_lsn.c.
"""

from __future__ import annotations

import operator
import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_to_text(lsn: int) -> str:
    """Write an LSN as PostgreSQL's pg_lsn type does.

    Parameters
    ----------
    lsn : int
        0 to 2**64 - 1.

    Returns
    -------
    str
        Such as "16/B374D848".

    Raises
    ------
    TypeError, ValueError
        If `lsn` is not an integer, or is outside that range.

    Examples
    --------
    >>> pgdecode.lsn_to_text(97500059720)
    '16/B374D848'
    """
    try:
        lsn = operator.index(lsn)
    except TypeError:
        raise TypeError(f"an LSN is an int, not {type(lsn).__name__}") from None
    if not 0 <= lsn < 2**64:
        raise ValueError(f"an LSN is from 0 to 2**64 - 1, not {lsn}")
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_from_text(text: str) -> int:
    """Read PostgreSQL's text form of an LSN.

    Parameters
    ----------
    text : str
        Two hexadecimal numbers of up to 8 digits, separated by a slash, such as "16/B374D848".

    Returns
    -------
    int

    Raises
    ------
    TypeError, ValueError
        For what is not text, and for any other text.

    Examples
    --------
    >>> pgdecode.lsn_from_text("16/B374D848")
    97500059720
    """
    if not isinstance(text, str):
        raise TypeError(f"an LSN in text is a str, not {type(text).__name__}")
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError('an LSN is two hexadecimal numbers with a slash between, such as "16/B374D848"')
    return int(match[1], 16) << 32 | int(match[2], 16)
