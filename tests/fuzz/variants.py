"""The decodings that the targets `text` and `binary` choose from: each codec, in each setting that changes it."""

from __future__ import annotations

from dataclasses import replace

from pgdecode.types.encodings import CODECS
from pgdecode.types.pgtypes import (
    ENUM,
    NAME_BY_OID,
    NAMED,
    OPAQUE,
    Decoding,
    array_of,
    as_text,
    clamped,
    composite_of,
    multirange_of,
    named,
    numeric_as_float8,
    range_of,
    scalar,
)
from pgdecode.types.session_settings import settings_of, under

NUMERIC_MODIFIERS = [
    (p << 16 | s & 0x7FF) + 4 for p, s in ((1, 0), (4, 4), (14, 2), (18, 0), (19, 5), (38, 9), (38, 38))
]
DATESTYLES = ("SQL, MDY", "SQL, DMY", "Postgres, MDY", "Postgres, DMY", "German, DMY")


def _usual() -> dict[str, Decoding]:
    names = [*NAME_BY_OID.values(), *(item.name for item in NAMED), "hstore", "vector", "halfvec", "record"]
    found = {name: named(name) for name in names}
    found |= {f"money({digits})": named(f"money({digits})") for digits in (0, 2, 10)}
    for typmod in NUMERIC_MODIFIERS:
        found[f"numeric:{typmod}"] = scalar("numeric", typmod)
        found[f"numeric:{typmod}[]"] = array_of(scalar("numeric", typmod))
    numeric = scalar("numeric", NUMERIC_MODIFIERS[3])
    found |= {
        "enum": ENUM,
        "opaque": OPAQUE,
        "numeric as float8": numeric_as_float8(),
        "range of numeric(18,0)": range_of(numeric),
        "multirange of float8": multirange_of(range_of(scalar("float8"))),
        "composite": composite_of([("a", scalar("int4")), ("b", scalar("text")), ("c", array_of(scalar("date")))]),
        "array of composites": array_of(composite_of([("a", numeric), ("b", range_of(scalar("timestamptz")))])),
        "composite of a composite": composite_of([("a", composite_of([("b", ENUM)])), ("c", scalar("bytea"))]),
        "domain": replace(array_of(scalar("int8")), declared=True),
    }
    return {name: decoding for name, decoding in found.items() if decoding is not None}


def _variants() -> dict[str, Decoding]:
    usual = _usual()
    found = dict(usual)
    for form, change in (("as text", as_text), ("clamped", clamped)):
        for name, decoding in usual.items():
            if decoding.codec == "numeric_float8":
                continue
            changed = change(decoding)
            if changed != decoding:
                found[f"{name}, {form}"] = changed
    for style in DATESTYLES:
        for name, decoding in list(found.items()):
            changed = under(settings_of("UTF8", style), decoding)
            if changed != decoding and (style == DATESTYLES[0] or name in ("date", "timestamp", "timestamptz")):
                found[f"{name}, {style}"] = changed
    latin = settings_of("LATIN1", "ISO")
    found |= {f"{name}, LATIN1": under(latin, decoding) for name, decoding in usual.items()}
    for encoding in sorted(CODECS):
        for name in ("text", "jsonb"):
            found[f"{name}, {encoding}"] = under(settings_of(encoding, "ISO"), usual[name])
    return found


# Name -> decoding. An input says which by its place.
VARIANTS = _variants()
