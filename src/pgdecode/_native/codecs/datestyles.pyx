"""Dates and timestamps written under another DateStyle than ISO: converted to the order of ISO, then decoded.

SQL: `02/29/2024 04:05:06.7 UTC BC`, German: `29.02.2024 04:05:06.7 UTC BC`, Postgres: `Thu Feb 29 04:05:06.7 2024
UTC BC`, but dates `02-29-2024`. SQL and Postgres have the day first under DMY. Source: EncodeDateOnly and
EncodeDateTime, utils/adt/datetime.c. The inner codec refuses invalid dates. This module checks what it does not see:
separators, names of months and weekdays, zones. Times of day are the same under every DateStyle.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.cursor cimport Cursor, bytes_left, cursor_of, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_SETTING, FAULT_ZONE, OK, FaultCode
from pgdecode._native.literals.clock cimport days_from_text, is_digit

cdef enum Style:
    ISO
    SQL_MDY
    SQL_DMY
    POSTGRES_MDY
    POSTGRES_DMY
    GERMAN

cdef enum:
    MAX_TEXT = 64        # bytes: longer than any of these texts, and than the same in ISO order
    MAX_YEAR = 7         # digits: 5874897
    MAX_CLOCK = 15       # 04:05:06.789012
    MAX_ZONE = 10        # MAXTZLEN, datatype/timestamp.h
    FIRST_WEEKDAY = 4    # 1970-01-01 was a Thursday

cdef struct DateParts:
    const uint8_t *year
    size_t n_year
    uint8_t[2] month
    const uint8_t *day         # two digits
    const uint8_t *weekday     # three letters, NULL if there is none
    const uint8_t *clock       # NULL if there is none
    size_t n_clock
    Cursor zone                # the rest, without ` BC`
    bint before_christ


cdef int style_of(str name) except -1:
    """The number of a style as SHOW datestyle prints it, or of "" for ISO. Under YMD, the month is first too."""
    style, _, order = name.partition(", ")
    day_first = order == "DMY"
    return {
        "": ISO,
        "SQL": SQL_DMY if day_first else SQL_MDY,
        "Postgres": POSTGRES_DMY if day_first else POSTGRES_MDY,
        "German": GERMAN,
    }[style]


cdef inline size_t span(Cursor cursor, size_t most, bint clock) noexcept nogil:
    """Number of digits, or of bytes of a time of day, that come next."""
    cdef size_t n = 0
    while n <= most and cursor.at != cursor.end:
        if not is_digit(cursor.at[0]) and not (clock and (cursor.at[0] == c":" or cursor.at[0] == c".")):
            break
        cursor.at += 1
        n += 1
    return n


cdef bint take_byte(Cursor *cursor, uint8_t byte) noexcept nogil:
    cdef const uint8_t *p = take(cursor, 1)
    return p != NULL and p[0] == byte


cdef bint take_year(Cursor *cursor, DateParts *parts) noexcept nogil:
    parts.n_year = span(cursor[0], MAX_YEAR, False)
    parts.year = take(cursor, parts.n_year)
    return 4 <= parts.n_year <= MAX_YEAR


cdef bint take_clock(Cursor *cursor, DateParts *parts) noexcept nogil:
    parts.n_clock = span(cursor[0], MAX_CLOCK, True)
    parts.clock = take(cursor, parts.n_clock)
    return 8 <= parts.n_clock <= MAX_CLOCK


cdef bint take_month_name(Cursor *cursor, DateParts *parts) noexcept nogil:
    cdef const char *names = b"JanFebMarAprMayJunJulAugSepOctNovDec"
    cdef const uint8_t *p = take(cursor, 3)
    cdef int i
    if p == NULL:
        return False
    for i in range(12):
        if memcmp(p, names + 3 * i, 3) == 0:
            parts.month[0] = <uint8_t>(c"0" + (i + 1) // 10)
            parts.month[1] = <uint8_t>(c"0" + (i + 1) % 10)
            return True
    return False


cdef bint take_numbers(Cursor *cursor, uint8_t separator, bint day_first, DateParts *parts) noexcept nogil:
    """Read `02/29/2024` or `29/02/2024`."""
    cdef const uint8_t *p = take(cursor, 6)
    if p == NULL or p[2] != separator or p[5] != separator:
        return False
    parts.day = p if day_first else p + 3
    memcpy(parts.month, p + 3 if day_first else p, 2)
    return take_year(cursor, parts)


cdef bint take_words(Cursor *cursor, bint day_first, DateParts *parts) noexcept nogil:
    """Read `Thu Feb 29 04:05:06.7 2024` or `Thu 29 Feb 04:05:06.7 2024`."""
    parts.weekday = take(cursor, 3)
    if parts.weekday == NULL or not take_byte(cursor, c" "):
        return False
    if not day_first and not (take_month_name(cursor, parts) and take_byte(cursor, c" ")):
        return False
    parts.day = take(cursor, 2)
    if parts.day == NULL or not take_byte(cursor, c" "):
        return False
    if day_first and not (take_month_name(cursor, parts) and take_byte(cursor, c" ")):
        return False
    return take_clock(cursor, parts) and take_byte(cursor, c" ") and take_year(cursor, parts)


cdef bint take_parts(Cursor cursor, int style, DateParts *parts) noexcept nogil:
    """Find the parts of a text in the style."""
    cdef bint day_first = style == SQL_DMY or style == POSTGRES_DMY or style == GERMAN
    cdef uint8_t separator = c"/" if style == SQL_MDY or style == SQL_DMY else c"." if style == GERMAN else c"-"
    parts.weekday = parts.clock = NULL
    parts.n_clock = 0
    parts.before_christ = bytes_left(cursor) > 3 and memcmp(cursor.end - 3, b" BC", 3) == 0
    if parts.before_christ:
        cursor.end -= 3
    if separator == c"-" and bytes_left(cursor) and not is_digit(cursor.at[0]):
        if not take_words(&cursor, day_first, parts):
            return False
    elif not take_numbers(&cursor, separator, day_first, parts):
        return False
    # Style Postgres writes months of timestamps only as words.
    elif separator != c"-" and bytes_left(cursor):
        if not (take_byte(&cursor, c" ") and take_clock(&cursor, parts)):
            return False
    parts.zone = cursor
    return True


cdef FaultCode write_zone(uint8_t *text, size_t *at, Cursor zone) noexcept nogil:
    """Write ` UTC`, ` GMT`, ` -03`, ` +0530` or ` +05:53:28` as an offset. Faults: ZONE for other abbreviations."""
    cdef const uint8_t *p
    cdef size_t i, n
    cdef bint packed
    if not take_byte(&zone, c" ") or bytes_left(zone) == 0:
        return FAULT_BAD_VALUE
    n = bytes_left(zone)
    p = zone.at
    if p[0] != c"+" and p[0] != c"-":
        if n != 3 or (memcmp(p, b"UTC", 3) and memcmp(p, b"GMT", 3)):
            return FAULT_ZONE
        memcpy(text + at[0], b"+00", 3)
        at[0] += 3
        return OK
    if n > MAX_ZONE:
        return FAULT_BAD_VALUE
    # Named zones are abbreviated to +0530. SET TIME ZONE with a number gives +05:30 or +100.
    packed = n == 5 or (n == 7 and p[3] != c":" and p[4] != c":")
    for i in range(n):
        if packed and (i == 3 or i == 5):
            text[at[0]] = c":"
            at[0] += 1
        text[at[0]] = p[i]
        at[0] += 1
    return OK


cdef bint has_weekday(const uint8_t *date, const DateParts *parts) noexcept nogil:
    """Whether the weekday is that of the date in ISO order; true if there is no such date."""
    cdef const char *names = b"SunMonTueWedThuFriSat"
    cdef int64_t days = 0
    cdef int64_t weekday
    if not days_from_text(date, parts.n_year, parts.before_christ, &days):
        return True
    weekday = (days + FIRST_WEEKDAY) % 7
    if weekday < 0:
        weekday += 7
    return memcmp(parts.weekday, names + 3 * weekday, 3) == 0


cdef FaultCode styled_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a date, timestamp or timestamptz of the declared style, or an infinite one.

    Faults: SETTING for text of another style; ZONE for an abbreviation that does not identify an offset; BAD_VALUE for
    a wrong weekday; those of the inner codec.
    """
    cdef uint8_t[MAX_TEXT] text
    cdef Cursor cursor = cursor_of(value, length)
    cdef DateParts parts
    cdef size_t at
    cdef FaultCode code
    if length > MAX_TEXT - 16 or not take_parts(cursor, codec.style, &parts):
        code = codec.element.from_text(value, length, out, codec.element)
        # The text is ISO: it was not written under this style.
        return FAULT_SETTING if code == OK else code
    memcpy(text, parts.year, parts.n_year)
    at = parts.n_year
    text[at] = text[at + 3] = c"-"
    memcpy(text + at + 1, parts.month, 2)
    memcpy(text + at + 4, parts.day, 2)
    at += 6
    if parts.weekday != NULL and not has_weekday(text, &parts):
        return FAULT_BAD_VALUE
    if parts.clock != NULL:
        text[at] = c" "
        memcpy(text + at + 1, parts.clock, parts.n_clock)
        at += 1 + parts.n_clock
    if bytes_left(parts.zone):
        code = write_zone(text, &at, parts.zone)
        if code != OK:
            return code
    if parts.before_christ:
        memcpy(text + at, b" BC", 3)
        at += 3
    return codec.element.from_text(text, at, out, codec.element)


cdef FaultCode styled_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a value whose binary form does not depend on a setting. Faults: those of the inner codec."""
    return codec.element.from_binary(value, length, out, codec.element)


add_codec("styled", styled_from_text, styled_from_binary)
