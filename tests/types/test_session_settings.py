"""Text written under settings other than ISO and UTF8, compared with values that a server wrote under them."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode import Column, Insert, Relation
from pgdecode.types.encodings import CODECS, LACKING, OTHERWISE, decoder, encoding_name
from pgdecode.types.pgtypes import Decoding, as_text, named
from pgdecode.types.session_settings import Settings, settings_of, under
from support.each import each
from support.generators.encoder import encode
from support.values import decode_values

DATA = Path(__file__).parent.parent / "data"
STYLES = ["SQL, MDY", "SQL, DMY", "SQL, YMD", "Postgres, MDY", "Postgres, DMY", "Postgres, YMD", "German, DMY"]


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def styled(pg_type: str, style: str) -> Decoding:
    decoding = named(pg_type)
    assert decoding is not None
    return under(settings_of("UTF8", style), decoding)


def one(pg_type: str, value: bytes, *, binary: bool = False, **options: Any) -> Any:
    """Decode one value of a column `v`."""
    return one_array(pg_type, value, binary=binary, **options)[0].as_py()


def one_array(pg_type: str, value: bytes, *, binary: bool = False, **options: Any) -> pa.Array:
    type_id = {"text": 25, "date": 1082, "timestamp": 1114, "timestamptz": 1184, "text[]": 1009, "int4": 23}[pg_type]
    relation = Relation(16385, "public", "t", "d", (Column(0, "v", type_id, -1),))
    payload = encode(Insert(relation_id=16385, new=(value,), new_formats="b" if binary else "t"))
    batch = pgdecode.decode_rows([payload], relation, **options)
    batch.validate(full=True)
    return batch["v"]


# -- DateStyle -------------------------------------------------------------------------------------------------------


@each("line", lines("datestyles.jsonl")[1:], ids=lambda line: f"{line['type']} {line['setting']}")
def test_values_printed_under_a_style_equal_their_binary_form(line: dict[str, Any]) -> None:
    style = ", ".join(line["setting"].removeprefix("DateStyle ").split(", ")[:2])
    decoding = styled(line["type"], style)
    texts = [text.encode() for text, _ in line["values"]]
    found = decode_values(decoding, texts, binary=False, unrepresentable="null")
    found.validate(full=True)
    raws = [bytes.fromhex(raw) for _, raw in line["values"]]
    assert found.equals(decode_values(decoding, raws, binary=True, unrepresentable="null"))
    assert found.type == decode_values(line["type"], [], binary=False).type
    assert found.null_count < len(found)


@each("record", [r for r in lines("values.jsonl") if "datestyle" in r["settings"] and r["binary"]])
def test_values_of_pgoutput_under_a_style_equal_their_binary_form(record: dict[str, Any]) -> None:
    decoding = styled(record["type"], record["settings"]["datestyle"] + ("" if "," in str(record) else ", DMY"))
    raws = [bytes.fromhex(form["hex"]) for form in record["binary"]]
    wanted = decode_values(decoding, raws, binary=True, unrepresentable="null")
    try:
        text = bytes.fromhex(record["text"]["hex"])
        found = decode_values(decoding, [text], binary=False, unrepresentable="null")
    except pgdecode.UndecodableZone:
        # A zone abbreviation: its meaning depends on place and time.
        assert record["type"] == "timestamptz"
        assert text.removesuffix(b" BC")[-1:].isalpha()
        assert not text.removesuffix(b" BC").endswith((b"UTC", b"GMT"))
        return
    assert [wanted.slice(i, 1).equals(found) for i in range(len(raws))] == [True] * len(raws)


@pytest.mark.parametrize(
    ("style", "pg_type", "text", "wanted"),
    [
        pytest.param("SQL, MDY", "date", "02/29/2024", dt.date(2024, 2, 29), id="SQL month first"),
        pytest.param("SQL, DMY", "date", "29/02/2024", dt.date(2024, 2, 29), id="SQL day first"),
        pytest.param("SQL, MDY", "date", "02/03/2024", dt.date(2024, 2, 3), id="SQL that both orders could be"),
        pytest.param("SQL, DMY", "date", "02/03/2024", dt.date(2024, 3, 2), id="the same with the day first"),
        pytest.param("postgres,dmy", "date", "29-02-2024", dt.date(2024, 2, 29), id="case and blanks of the setting"),
        pytest.param("German", "date", "29.02.2024", dt.date(2024, 2, 29), id="German, which needs no order"),
        pytest.param("ISO, DMY", "date", "2024-02-29", dt.date(2024, 2, 29), id="ISO, whatever the order"),
    ],
)
def test_a_declared_style_is_read(style: str, pg_type: str, text: str, wanted: Any) -> None:
    assert one(pg_type, text.encode(), datestyle=style) == wanted


@pytest.mark.parametrize(
    ("style", "pg_type", "text", "error"),
    [
        pytest.param("SQL, MDY", "date", "29/02/2024", pgdecode.BadValue, id="month 29"),
        pytest.param("SQL, MDY", "date", "2024-02-29", pgdecode.UndeclaredSetting, id="ISO under SQL"),
        pytest.param("SQL, MDY", "date", "29.02.2024", pgdecode.UndeclaredSetting, id="German under SQL"),
        pytest.param("German", "date", "29-02-2024", pgdecode.UndeclaredSetting, id="Postgres under German"),
        pytest.param("German", "date", "31.02.2024", pgdecode.BadValue, id="31 February"),
        pytest.param("German", "date", "1.2.2024", pgdecode.BadValue, id="one digit"),
        pytest.param("German", "date", "01.02.24", pgdecode.BadValue, id="two digits of a year"),
        pytest.param("German", "date", "01.02.2024 BC BC", pgdecode.UndeclaredSetting, id="BC twice"),
        pytest.param("German", "date", "01.02.2024 00:00:00", pgdecode.BadValue, id="a time behind a date"),
        pytest.param("German", "date", "infinity", pgdecode.Unrepresentable, id="infinity"),
        pytest.param("German", "date", "", pgdecode.BadValue, id="empty"),
        pytest.param("SQL, MDY", "timestamp", "02/29/2024", pgdecode.BadValue, id="a timestamp without its time"),
        pytest.param("SQL, MDY", "timestamp", "02/29/2024 24:00:00", pgdecode.BadValue, id="hour 24"),
        pytest.param("SQL, MDY", "timestamp", "02/29/2024 04:05:06 UTC", pgdecode.BadValue, id="a zone too many"),
        pytest.param("Postgres, MDY", "timestamp", "Fri Feb 29 04:05:06 2024", pgdecode.BadValue, id="no such weekday"),
        pytest.param(
            "Postgres, MDY", "timestamp", "Thu Fbe 29 04:05:06 2024", pgdecode.UndeclaredSetting, id="no month"
        ),
        pytest.param(
            "Postgres, DMY", "timestamp", "Thu Feb 29 04:05:06 2024", pgdecode.UndeclaredSetting, id="other order"
        ),
        pytest.param("SQL, MDY", "timestamptz", "02/29/2024 04:05:06", pgdecode.BadValue, id="no zone"),
        pytest.param("SQL, MDY", "timestamptz", "02/29/2024 04:05:06 ", pgdecode.BadValue, id="an empty zone"),
        pytest.param("SQL, MDY", "timestamptz", "02/29/2024 04:05:06 EST", pgdecode.UndecodableZone, id="EST"),
        pytest.param("SQL, MDY", "timestamptz", "02/29/2024 04:05:06 +5x30", pgdecode.BadValue, id="no number"),
        pytest.param(
            "SQL, MDY", "timestamptz", "02/29/2024 04:05:06 +0123456789", pgdecode.BadValue, id="a long number"
        ),
    ],
)
def test_text_that_the_style_does_not_print_is_a_fault(
    style: str, pg_type: str, text: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="column 'v'") as caught:
        one(pg_type, text.encode(), datestyle=style)
    assert type(caught.value) is error


def test_the_error_of_an_abbreviated_zone_suggests_settings() -> None:
    with pytest.raises(pgdecode.UndeclaredSetting, match=r"time zone abbreviation.*DateStyle ISO or TimeZone UTC"):
        one("timestamptz", b"02/29/2024 04:05:06 EST", datestyle="SQL, MDY")


@pytest.mark.parametrize("zone", ["+05:30", "+0530", "-03", "+00", "-00", "UTC", "GMT", "+01:02:03", "+010203", "+100"])
def test_a_zone_that_is_a_number_utc_or_gmt_is_an_offset(zone: str) -> None:
    digits = zone[1:].replace(":", "")
    hours, rest = (digits[:3], "") if len(digits) == 3 else (digits[:2], digits[2:])
    seconds = int(hours) * 3600 + int(rest[:2] or 0) * 60 + int(rest[2:] or 0) if digits.isdecimal() else 0
    utc = dt.datetime(2024, 2, 29, 4, 5, 6, tzinfo=dt.UTC) - dt.timedelta(
        seconds=seconds if zone[0] == "+" else -seconds
    )
    assert one("timestamptz", f"Thu Feb 29 04:05:06 2024 {zone}".encode(), datestyle="Postgres, MDY") == utc


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("pg_type", ["date", "timestamp", "timestamptz", "tstzrange[]"])
@given(value=st.binary(max_size=50) | st.text("0123456789/.-+: BCUTGMThuFeb", max_size=50).map(str.encode))
def test_any_bytes_are_a_value_or_a_fault(style: str, pg_type: str, value: bytes) -> None:
    for binary in (False, True):
        try:
            found = decode_values(styled(pg_type, style), [value], binary=binary)
        except pgdecode.DecodeError:
            continue
        found.validate(full=True)
        assert len(found) == 1


@given(st.sampled_from(lines("datestyles.jsonl")[1:]), st.data())
def test_a_date_with_one_byte_changed_or_cut_is_a_value_or_a_fault(line: dict[str, Any], data: st.DataObject) -> None:
    style = ", ".join(line["setting"].removeprefix("DateStyle ").split(", ")[:2])
    text = data.draw(st.sampled_from(line["values"]))[0].encode()
    at = data.draw(st.integers(0, len(text) - 1))
    for value in (text[:at], text[:at] + data.draw(st.binary(min_size=1, max_size=1)) + text[at + 1 :]):
        try:
            decode_values(styled(line["type"], style), [value], binary=False).validate(full=True)
        except pgdecode.DecodeError as error:
            assert error.code in ("BAD_VALUE", "SETTING", "ZONE", "NOT_REPRESENTABLE")  # noqa: PT017


def test_a_style_can_be_combined_with_unrepresentable() -> None:
    found = one_array("date", b"infinity", datestyle="German", unrepresentable="clamp")
    assert found.cast(pa.int32()).to_pylist() == [2145031948 + 10957]  # 5874897-12-31
    assert one("date", b"31.12.1999", datestyle="German", unrepresentable="clamp") == dt.date(1999, 12, 31)
    assert one("date", b"31.12.1999", datestyle="German", unrepresentable="text") == "31.12.1999"
    assert one("text[]", b"{na\xefve}", encoding="LATIN1", unrepresentable="text") == "{naïve}"


@pytest.mark.parametrize(
    ("datestyle", "text"),
    [
        ("SQL", "without the order"),
        ("postgres", "without the order"),
        ("iso8601", "not as SHOW datestyle prints it"),
        ("DMY", "not as SHOW datestyle prints it"),
        ("SQL, XYZ", "not as SHOW datestyle prints it"),
        ("", "not as SHOW datestyle prints it"),
    ],
)
def test_an_invalid_or_incomplete_style_is_refused(datestyle: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        one("date", b"2020-01-01", datestyle=datestyle)


# -- client_encoding -------------------------------------------------------------------------------------------------

HEAD, *ENCODED = lines("encodings.jsonl")
RELATION = pgdecode.decode(bytes.fromhex(HEAD["relation"]))
TYPES = [pgdecode.decode(bytes.fromhex(message)) for message in HEAD["types"]]
SAID = {"public.mood": "enum", "public.addr": "(street text, zip int4, more text[])"}


def inserted(payload: str, encoding: str, **options: Any) -> pa.RecordBatch:
    batch = pgdecode.decode_rows(
        [bytes.fromhex(payload)], RELATION, types=SAID, type_messages=TYPES, encoding=encoding, **options
    )
    batch.validate(full=True)
    return batch


@pytest.mark.parametrize("line", ENCODED, ids=lambda line: line["encoding"])
def test_values_sent_under_an_encoding_equal_those_sent_under_utf8(line: dict[str, Any]) -> None:
    wanted = inserted(line["utf8"], "UTF8")
    assert not wanted["id"][0].as_py().isascii()
    assert inserted(line["text"], line["encoding"]).equals(wanted)
    binary = inserted(line["binary"], line["encoding"], mode="PERMISSIVE")
    # hstore_send counts the bytes of keys and values before it converts them.
    (error,) = binary["_error"].to_pylist()
    assert re.match(r"(BAD_VALUE|ENCODING) at offset \d+: column 'h' ", error)
    names = [name for name in wanted.schema.names if name not in ("h", "_error")]
    assert binary.select(names).equals(wanted.select(names))


def test_a_binary_hstore_of_a_server_that_did_not_convert_is_read() -> None:
    pair = (1).to_bytes(4, "big") + 2 * ((1).to_bytes(4, "big") + b"\xe9")
    latin = Settings(encoding="LATIN1")
    for pg_type, wanted in ((named("hstore"), [("é", "é")]), (as_text(named("hstore")), '"é"=>"é"')):
        assert decode_values(under(latin, pg_type), [pair], binary=True).to_pylist() == [wanted]


@pytest.mark.parametrize("line", ENCODED, ids=lambda line: line["encoding"])
def test_values_decoded_as_text_are_converted_too(line: dict[str, Any]) -> None:
    columns = dict.fromkeys(("h", "a", "ad", "ads", "es"), "text")
    wanted = inserted(line["utf8"], "UTF8", columns=columns)
    assert inserted(line["text"], line["encoding"], columns=columns).equals(wanted)


def test_the_recorded_encodings_are_all_that_differ_from_utf8() -> None:
    assert {line["encoding"] for line in ENCODED} == set(CODECS) - {"UTF8", "SQL_ASCII"}


def test_values_in_an_undeclared_encoding_are_faults() -> None:
    line = next(line for line in ENCODED if line["encoding"] == "LATIN1")
    for form in ("text", "binary"):
        with pytest.raises(pgdecode.BadEncoding, match="column 'id'"):
            inserted(line[form], "UTF8")


@pytest.mark.parametrize(
    ("encoding", "text", "wanted"),
    [
        pytest.param("LATIN1", b"na\xefve", "naïve", id="LATIN1"),
        pytest.param("win1252", b"\x80 5", "€ 5", id="WIN1252"),
        pytest.param("SJIS", b"\x95\x5c", "表", id="a second byte that is a backslash"),
        pytest.param("EUC_JP", b"\xc6\xfc\xcb\xdc", "日本", id="EUC_JP"),
        pytest.param("UTF8", "日本".encode(), "日本", id="UTF8"),
        pytest.param("UTF-8", "é".encode(), "é", id="UTF-8"),
        pytest.param("SQL_ASCII", b"plain", "plain", id="SQL_ASCII"),
    ],
)
def test_text_becomes_utf8(encoding: str, text: bytes, wanted: str) -> None:
    assert one("text", text, encoding=encoding) == one("text", text, binary=True, encoding=encoding) == wanted


def test_a_container_is_converted_before_its_quotes_are_parsed() -> None:
    # ポ is 83 7c, ソ 83 5c and ボ 83 7b: as single bytes, a bar, a backslash and a brace.
    value = b'{"\x83\x5c","\x83\x7b \x83\x7c",a}'
    assert one("text[]", value, encoding="SJIS") == ["ソ", "ボ ポ", "a"]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        pytest.param("SQL_ASCII", b"na\xefve", id="SQL_ASCII says nothing of a byte past ASCII"),
        pytest.param("WIN1252", b"\x81", id="a byte that WIN1252 has not"),
        pytest.param("EUC_JP", b"\xc6", id="a character cut"),
        pytest.param("SJIS", b"\xfc\xfc\xfc", id="no character"),
        pytest.param("EUC_JP", b"\xad\xff", id="no character of a row that is supplied"),
        pytest.param("UTF8", b"\xff", id="UTF8"),
    ],
)
def test_bytes_without_a_character_in_the_encoding_are_a_fault(encoding: str, text: bytes) -> None:
    for binary in (False, True):
        with pytest.raises(
            pgdecode.BadEncoding, match="column 'v' has bytes that are not valid in the declared"
        ) as caught:
            one("text", b"before " + text, binary=binary, encoding=encoding)
        assert caught.value.column == "v"


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="encoding is 'EUC_TW', expected one of BIG5, "):
        one("text", b"", encoding="EUC_TW")


@pytest.mark.parametrize("name", ["latin1", "LATIN-1", "Latin 1"])
def test_an_encoding_is_identified_by_letters_and_digits(name: str) -> None:
    assert encoding_name(name) == "LATIN1"


@pytest.mark.parametrize("encoding", sorted(set(CODECS) - {"UTF8"}))
@given(st.binary(max_size=12), st.sampled_from(["text", "text[]", "hstore", "tsvector", "tsquery", "jsonb", "record"]))
def test_any_bytes_under_an_encoding_are_a_value_or_a_fault(encoding: str, value: bytes, pg_type: str) -> None:
    decoding = named(pg_type)
    assert decoding is not None
    for binary in (False, True):
        try:
            found = decode_values(under(Settings(encoding=encoding), decoding), [value], binary=binary)
        except pgdecode.DecodeError:
            continue
        found.validate(full=True)


@pytest.mark.parametrize("encoding", sorted(CODECS))
def test_ascii_stays_ascii_next_to_converted_characters(encoding: str) -> None:
    ascii_text = bytes(range(128))
    assert decoder(encoding)(ascii_text) == ascii_text.decode()


@pytest.mark.parametrize("encoding", sorted({*OTHERWISE, *LACKING}))
def test_a_differently_decoded_character_replaces_exactly_one_character(encoding: str) -> None:
    decode = decoder(encoding)
    pairs = [bytes([first, second]) for first in range(0x80, 0x100) for second in range(0x40, 0x100)]
    for was, meant in OTHERWISE.get(encoding, {}).items():
        sources = [pair for pair in (*pairs, *map(bytes, zip(range(128)))) if _decoded(pair, CODECS[encoding]) == was]
        assert [decode(pair) for pair in sources] == [meant]
    for first, run in LACKING.get(encoding, {}).items():
        for i, character in enumerate(run):
            code = first[:-1] + bytes([first[-1] + i])
            assert decode(b"a" + code + code + b"b") == f"a{character}{character}b"
            assert _decoded(code, CODECS[encoding]) is None


def _decoded(code: bytes, codec: str) -> str | None:
    try:
        return code.decode(codec)
    except UnicodeDecodeError:
        return None


def test_values_without_conversion_use_the_same_codec() -> None:
    date, text, number = named("date"), named("text[]"), named("numeric[]")
    assert date is not None
    assert text is not None
    assert number is not None
    nothing = settings_of("UTF8", "ISO, DMY")
    assert [under(nothing, item) for item in (date, text, number)] == [date, text, number]
    latin = settings_of("LATIN1", "ISO")
    assert [under(latin, item) for item in (date, number)] == [date, number]
