"""Decoding of PostgreSQL's client encodings by Python's codecs.

Python's codecs and PostgreSQL's conversions were compared for every character that a PostgreSQL 15 server converts
from UTF8. Where they differ, this module follows the server, because it wrote the bytes.

Source: utils/mb/conversion_procs; PostgreSQL documentation, "Character Set Support".
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping

# Bytes of no known encoding. Most clients of such a database write UTF-8; other bytes are faults.
SQL_ASCII = "SQL_ASCII"

# Name as SHOW client_encoding prints it -> Python codec.
CODECS: Mapping[str, str] = {
    "BIG5": "cp950",
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_JP": "euc_jp",
    "EUC_KR": "euc_kr",
    "GB18030": "gb18030",
    "GBK": "cp936",
    "ISO_8859_5": "iso8859_5",
    "ISO_8859_6": "iso8859_6",
    "ISO_8859_7": "iso8859_7",
    "ISO_8859_8": "iso8859_8",
    "JOHAB": "johab",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "LATIN1": "latin_1",
    "LATIN2": "iso8859_2",
    "LATIN3": "iso8859_3",
    "LATIN4": "iso8859_4",
    "LATIN5": "iso8859_9",
    "LATIN6": "iso8859_10",
    "LATIN7": "iso8859_13",
    "LATIN8": "iso8859_14",
    "LATIN9": "iso8859_15",
    "LATIN10": "iso8859_16",
    "SHIFT_JIS_2004": "shift_jis_2004",
    "SJIS": "cp932",
    SQL_ASCII: "utf_8",
    "UHC": "cp949",
    "UTF8": "utf_8",
    "WIN866": "cp866",
    "WIN874": "cp874",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "WIN1253": "cp1253",
    "WIN1254": "cp1254",
    "WIN1255": "cp1255",
    "WIN1256": "cp1256",
    "WIN1257": "cp1257",
    "WIN1258": "cp1258",
}

# Characters for which the server and the codec differ: the codec's character -> the server's.
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "BIG5": {
        "\uffe0": "\xa2",
        "\uffe1": "\xa3",
        "\uffe5": "\xa5",
        "\u2027": "\u2022",
        "\xaf": "\u203e",
        "\uff5e": "\u223c",
        "\u2299": "\u2609",
        "\u2295": "\u2641",
        "\u2215": "\uff0f",
        "\ufe68": "\uff3c",
        "\ufe51": "\uff64",
        "\u2574": "\ufffd",
    },
    "EUC_JIS_2004": {
        "\uffe5": "\xa5",
        "\u2015": "\u2014",
        "\uffe3": "\u203e",
        "\u2985": "\uff5f",
        "\u2986": "\uff60",
    },
    "EUC_JP": {
        "\u2016": "\u2225",
        "\u2212": "\uff0d",
        "\u301c": "\uff5e",
        "\xa2": "\uffe0",
        "\xa3": "\uffe1",
        "\xac": "\uffe2",
    },
    # The server maps ASCII bytes to ASCII. It writes \xa5 and \u203e as \\ and ~ here and in SJIS, so these are lost.
    "SHIFT_JIS_2004": {
        "\xa5": "\\",
        "\u203e": "~",
        "\u2015": "\u2014",
        "\u2985": "\uff5f",
        "\u2986": "\uff60",
    },
}

# Characters that the codec lacks, in runs: bytes of the first character -> that character and the next ones of its row.
LACKING: Mapping[str, Mapping[bytes, str]] = {
    "EUC_JP": {
        b"\xad\xa1": "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
        b"\xad\xc0": "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
        b"\xad\xdf": "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼",
        b"\xad\xf3": "∮∑",
        b"\xad\xf8": "∟⊿",
        b"\x8f\xf3\xf3": "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ",
        b"\x8f\xf4\xa9": "\uff07\uff02",
        b"\x8f\xf4\xae": (
            "\u70bb\u4efc\u50f4\u51ec\u5307\u5324\ufa0e\u548a\u5759\ufa0f\ufa10\u589e\u5bec\u5cf5\u5d53"
            "\ufa11\u5fb7\u6085\u6120\u654e\u663b\u6665\ufa12\uf929\u6801\ufa13\ufa14\u6a6b\u6ae2\u6df8"
            "\u6df2\u7028\ufa15\ufa16\u7501\u7682\u769e\ufa17\u7930\ufa18\ufa19\ufa1a\ufa1b\u7ae7\ufa1c"
            "\ufa1d\u7da0\u7dd6\ufa1e\u8362\ufa1f\u85b0\ufa20\ufa21\u8807\ufa22\u8b7f\u8cf4\u8d76\ufa23"
            "\ufa24\ufa25\u90de\ufa26\u9115\ufa27\ufa28\u9592\uf9dc\ufa29\u973b\u974d\u9751\ufa2a\ufa2b"
            "\ufa2c\u999e\u9ad9\u9b72\ufa2d\u9ed1"
        ),
    },
    "EUC_KR": {b"\xa2\xe8": "㉾", b"\xa4\xd4": "\u3164"},
    "GBK": {b"\x80": "€"},
    "JOHAB": {b"\xd9\xe8": "㉾"},
    "UHC": {
        b"\xa2\xe8": "㉾",
        # User-defined characters, in Unicode's private use area.
        b"\xc9\xa1": "".join(map(chr, range(0xE000, 0xE05E))),
        b"\xfe\xa1": "".join(map(chr, range(0xE05E, 0xE0BC))),
    },
}


def encoding_name(name: str) -> str:
    """Name of an encoding as SHOW client_encoding prints it. Case and punctuation of `name` do not matter.

    Raises
    ------
    ValueError
        If there is no codec for the encoding.
    """
    known = _BY_CLEANED.get(_cleaned(name))
    if known is None:
        raise ValueError(f"encoding is {name!r}, expected one of {', '.join(CODECS)}")
    return known


def decoder(name: str) -> Callable[[bytes], str]:
    """Make a function that decodes text of an encoding and raises UnicodeError for invalid bytes.

    Parameters
    ----------
    name : str
        As `encoding_name` returns it.
    """
    decode = codecs.getdecoder(CODECS[name])
    errors = "strict"
    if name in LACKING:
        errors = f"pgdecode.{name}"
        codecs.register_error(errors, _supplier(LACKING[name]))
    otherwise = str.maketrans(dict(OTHERWISE.get(name, {})))
    if otherwise:
        return lambda text: decode(text, errors)[0].translate(otherwise)
    return lambda text: decode(text, errors)[0]


def _cleaned(name: str) -> str:
    """Keep letters and digits, as PostgreSQL does to compare encodings (clean_encoding_name, common/encnames.c)."""
    return "".join(filter(str.isalnum, name)).lower()


_BY_CLEANED = {_cleaned(name): name for name in CODECS}


def _supplier(lacking: Mapping[bytes, str]) -> Callable[[UnicodeError], tuple[str, int]]:
    """Make a codec error handler that supplies the characters that the codec lacks."""
    supplied = {
        first[:-1] + bytes([first[-1] + i]): character
        for first, run in lacking.items()
        for i, character in enumerate(run)
    }

    def supply(error: UnicodeError) -> tuple[str, int]:
        if isinstance(error, UnicodeDecodeError):
            for length in (1, 2, 3):
                character = supplied.get(error.object[error.start : error.start + length])
                if character is not None:
                    return character, error.start + length
        raise error

    return supply
