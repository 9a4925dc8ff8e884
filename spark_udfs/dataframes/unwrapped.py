"""Extraction of payloads from frames or text, as expressions that Spark evaluates in the JVM."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from pgdecode.protocol.options import Unwrap, check_option

_HEADER_BYTES, _KEEPALIVE_BYTES = 25, 18


def unwrapped(payload: Column, type: T.DataType, how: Unwrap) -> Column:
    """Return the payloads in a column, as `pgdecode.unwrap` does. Keepalives become null.

    Parameters
    ----------
    payload : Column
    type : DataType
        Of the column: binary or string.
    how : {"auto", "none", "hex", "base64", "xlogdata"}

    Raises
    ------
    TypeError
        If the column is neither binary nor string, or if it is a string column and `how` is "none" or "xlogdata".
        A value that does not have the form fails the query. The error does not contain the value.
    """
    check_option("unwrap", how, Unwrap)
    if isinstance(type, T.NullType):
        return payload.cast("binary")
    is_text = isinstance(type, T.StringType)
    if not is_text and not isinstance(type, T.BinaryType):
        raise TypeError(f"payload is a column of binary or strings, not {type.simpleString()}")
    if is_text and how in ("none", "xlogdata"):
        raise TypeError("payload is a column of strings: unwrap is hex or base64")
    text = payload if is_text else payload.cast("string")
    if how == "hex":
        return _from_hex(text)
    if how == "base64":
        return _from_base64(text)
    if how == "xlogdata":
        wrong = F.raise_error(F.lit("a payload is neither an XLogData frame nor a keepalive"))
        return _from_frames(payload, wrong)
    if how == "none":
        return payload
    # No payload or frame in base64 begins with one of these digits.
    is_hex = text.rlike(r"^(\\x|[4-7])")
    found = F.when(is_hex, _from_hex(text)).otherwise(_from_base64(text)) if is_text else payload
    return _from_frames(found, found)


def _from_hex(text: Column) -> Column:
    digits = F.regexp_replace(text, r"^\\x", "")
    wrong = F.raise_error(F.lit("a payload is not hexadecimal digits"))
    return F.when(digits.rlike("^([0-9A-Fa-f]{2})*$"), F.unhex(digits)).when(digits.isNotNull(), wrong)


def _from_base64(text: Column) -> Column:
    # PostgreSQL's encode() breaks lines after 76 characters.
    joined = F.regexp_replace(text, "[\\r\\n]", "")
    is_base64 = joined.rlike("^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
    wrong = F.raise_error(F.lit("a payload is not base64"))
    return F.when(is_base64, F.unbase64(joined)).when(joined.isNotNull(), wrong)


def _from_frames(payload: Column, other: Column) -> Column:
    """Remove the header of frames, and replace keepalives by null. `other` is the result for all other values."""
    letter = F.substring(payload, 1, 1)
    is_frame = (letter == F.lit(b"w")) & (F.length(payload) >= _HEADER_BYTES)
    is_keepalive = (letter == F.lit(b"k")) & (F.length(payload) == _KEEPALIVE_BYTES)
    return (
        F.when(~letter.isin(b"w", b"k"), other)
        .when(is_frame, F.substring(payload, _HEADER_BYTES + 1, 2**31 - 1 - _HEADER_BYTES - 1))
        .when(is_keepalive, F.lit(None).cast("binary"))
        .when(payload.isNotNull(), other)
    )
