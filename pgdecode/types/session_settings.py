"""Settings of the capturing session that change the text form of values, and their effect on decoding.

Source: PostgreSQL documentation, "Date/Time Output" and "Automatic Character Set Conversion"; EncodeDateTime,
utils/adt/datetime.c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgdecode.types.encodings import encoding_name
from pgdecode.types.pgtypes import Decoding

_STYLES = ("ISO", "SQL", "Postgres", "German")
_ORDERS = ("MDY", "DMY", "YMD")
_STYLED = frozenset({"date", "timestamp", "timestamptz"})
# Codecs whose values contain text in client_encoding: the whole binary form, parts of the binary form, or only the text
# form. "char" is one byte in every encoding.
_TEXTS = frozenset({"text", "jsonb", "jsonpath", "ltree"})
_WITH_TEXTS = frozenset({"hstore", "hstore_text", "tsvector", "tsquery"})
_TEXT_FORMS = frozenset({"opaque", "money", "money_decimal", "money_as_sent", "reg"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings as PostgreSQL names them. UTF8 and DateStyle ISO are empty, because they need no conversion.

    Other settings need not be declared. bytea_output and IntervalStyle are recognised in the text. extra_float_digits
    and TimeZone do not change how the text is read.
    """

    encoding: str = ""
    datestyle: str = ""


def settings_of(encoding: str, datestyle: str) -> Settings:
    """Check settings as SHOW prints them.

    Raises
    ------
    ValueError
        If the encoding or style is unknown, or the style lacks the order that it depends on.
    """
    known = encoding_name(encoding)
    style, _, order = (part.strip() for part in datestyle.partition(","))
    named_style = next((name for name in _STYLES if name.lower() == style.lower()), "")
    named_order = order.upper()
    if not named_style or (named_order and named_order not in _ORDERS):
        raise ValueError(f'datestyle is {datestyle!r}, not as SHOW datestyle prints it, such as "SQL, DMY"')
    if named_style in ("SQL", "Postgres") and not named_order:
        raise ValueError(f'datestyle is {datestyle!r}, without the order: "{named_style}, MDY" or "{named_style}, DMY"')
    shown = "" if named_style == "ISO" else f"{named_style}, {named_order or 'DMY'}"
    return Settings("" if known == "UTF8" else known, shown)


def under(settings: Settings, decoding: Decoding) -> Decoding:
    """Make the decoding of a column whose text was written under these settings."""
    if settings.datestyle:
        decoding = _styled(decoding, settings.datestyle)
    if settings.encoding and _has_text(decoding):
        decoding = _within("transcoded", _transcoded(decoding, settings.encoding), encoding=settings.encoding)
    return decoding


def _within(codec: str, decoding: Decoding, *, style: str = "", encoding: str = "") -> Decoding:
    """Wrap a decoding in another codec; the type stays the same."""
    return replace(
        decoding, codec=codec, element=decoding, fields=(), precision=0, scale=0, style=style, encoding=encoding
    )


def _styled(decoding: Decoding, style: str) -> Decoding:
    if decoding.codec in _STYLED:
        return _within("styled", decoding, style=style)
    element = None if decoding.element is None else _styled(decoding.element, style)
    return replace(decoding, element=element, fields=tuple(_styled(field, style) for field in decoding.fields))


def _transcoded(decoding: Decoding, encoding: str) -> Decoding:
    """Wrap the codecs whose binary form contains text."""
    if decoding.codec in _TEXTS:
        return _within("transcoded_text", decoding, encoding=encoding)
    if decoding.codec in _WITH_TEXTS:
        return replace(decoding, encoding=encoding)
    element = None if decoding.element is None else _transcoded(decoding.element, encoding)
    return replace(decoding, element=element, fields=tuple(_transcoded(field, encoding) for field in decoding.fields))


def _has_text(decoding: Decoding) -> bool:
    if decoding.codec in _TEXTS | _WITH_TEXTS | _TEXT_FORMS:
        return True
    inner = (*decoding.fields, *([decoding.element] if decoding.element else []))
    return any(_has_text(item) for item in inner)
