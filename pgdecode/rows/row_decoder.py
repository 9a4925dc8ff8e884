"""The inserts, updates and deletes of one relation as typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.rows.row_decoder import Rows
from pgdecode.arrow.null_arrays import null_array
from pgdecode.payloads.parallel import check_threads, threads_for
from pgdecode.payloads.payload_input import payload_parts
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import Type
from pgdecode.protocol.options import Empty, RowMode, UnrepresentableValues, check_limits, check_option, check_row_mode
from pgdecode.rows.row_schema import Described, described
from pgdecode.types.session_settings import settings_of, under

_LIMITS = Limits()


def decode_rows(
    payloads: Any,
    relation: Described,
    *,
    types: Mapping[str | int, str] | None = None,
    columns: Mapping[str, str] | None = None,
    type_messages: Iterable[Type] = (),
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    mode: RowMode = "FAILFAST",
    unrepresentable: UnrepresentableValues = "error",
    limits: Limits = _LIMITS,
    strict_flags: bool = True,
    threads: int = 1,
    empty: Empty = "null",
) -> pa.RecordBatch:
    """Decode the insert, update and delete payloads of one relation into typed columns.

    Parameters
    ----------
    payloads : column of payloads, as `decode_messages` takes them
        Inserts, updates and deletes of `relation`, streamed or not. Null rows give null rows.
    relation : Relation or RelationVersion
        The columns' names, types and modifiers, as the stream sent them: `decode` gives one, and a `RelationCatalog`
        each of its versions, with the Type messages that belong to it.
    types : mapping of OID or a type's name to a PostgreSQL type, optional
        What types are that the stream does not describe; keys are OIDs, or names as the Type messages give them:
        {"public.mood": "enum", "public.address": "(street text, zip int4, geo point)", 20001: "numeric(12,2)"}. A
        type is written as in SQL, with modifiers and `[]`: "timestamp(3) with time zone", "varchar(10)[]". A composite
        written out becomes a struct, and may name others of `types`; "record" keeps it as text, also in binary if its
        fields are of built-in types. A range of one's own is "range(float8)". An array of a type is known by its
        element, or by itself, "public.mood[]". To a domain the stream gives the name of its base type, so that what is
        said of that type holds for the domain too, and the domain itself goes by its OID.
        A key may also be a built-in type, for all columns of it: {"numeric": "numeric(20,4)"}. That converts: numeric
        to another numeric (a value that does not fit exactly is unrepresentable) or to "float8" (the nearest one), all
        types to "text" (PostgreSQL's own text form), arrays by their elements; {"money": "money(2)"} says how many
        digits of money are its fraction, which its binary form does not tell. Other conversions are a ValueError.
    columns : mapping of a column's name to a PostgreSQL type, optional
        The same for one column, before `types`: {"price": "numeric(20,4)"}.
    type_messages : iterable of Type, optional
        The stream's Type messages: they give domains, hstore, citext and pgvector their meaning by name.
    encoding : str
        The capturing session's client_encoding, by PostgreSQL's name: "LATIN1", "WIN1252", "EUC_JP", "SJIS"
        (`encodings.CODECS` has all). The server converts text to it, in the binary form too; here it becomes UTF-8
        again, before anything else is made of it. What the encoding has no character for is a fault, never a
        replacement; under "SQL_ASCII" that is all that is not ASCII. Of a binary hstore the server sends lengths from
        before its conversion, so that only ASCII can be read; xml in binary keeps the encoding that the server
        declares in it.
    datestyle : str
        The capturing session's DateStyle as SHOW prints it: "SQL, DMY", "Postgres, MDY", "German, DMY". It changes the
        text form of dates and timestamps, alone or in arrays, ranges and composites. The other styles than ISO
        abbreviate the time zone of a timestamptz: only numbers, UTC and GMT tell an offset, others are
        `UndecodableZone`.
    mode : {"FAILFAST", "PERMISSIVE"}
        Raise on the first bad row or value; or null the row, where the message is malformed, or the one value, and
        say why in `_error`.
    unrepresentable : {"error", "null", "clamp", "text"}
        What to make of a value that PostgreSQL has and the Arrow type has not: NaN in a decimal, infinity in a date,
        24:00:00, year 294276, more than one dimension of an array; and the largest float8 as PostgreSQL 10 and 11 write
        it by default, 1.79769313486232e+308, which is past all floats. "null" leaves it out without a word. "clamp"
        takes the lowest or the highest value that both have (`pgtypes.clamped` lists them), also for an array's
        elements and a range's bounds; NaN and dimensions are neither low nor high, and remain an error. "text" makes a
        string column of every column whose type has such values: dates, times, timestamps, intervals, numeric(p, s),
        floats, arrays, and ranges of these. It holds PostgreSQL's own text (`pgtypes.as_text`), and `pg:form` in its
        metadata says so.
    limits : Limits
        Sizes past which a payload is refused.
    strict_flags : bool
        Refuse flag bits that no server defines today.
    threads : int
        How many threads may work on it, where there is enough for each. The result is the same.
    empty : {"null", "error"}
        What a payload of no bytes is. Servers send one for a replication origin that has no name. "null": a null row,
        and no fault. "error": a bad payload.

    Returns
    -------
    pa.RecordBatch
        One row per payload; the schema is `row_schema` with the same arguments. `_op` (see docs/options.md) is
        insert, update or delete. The table's columns hold the new values, or for a delete the old values that were
        sent. A TOAST value that an update did not send is filled from the old row where that has it; otherwise it is
        null, and its column's name is in `_unchanged`. Timestamps are microseconds, UTC where the type has a zone.

    Notes
    -----
    Text needs no other setting of the capturing session declared. IntervalStyle and bytea_output show in the text
    itself: no text means two intervals in two styles. TimeZone is in each timestamptz. With extra_float_digits below 1
    a server writes floats with fewer digits than they have (before PostgreSQL 12 also by default): they decode to the
    number that was written, and the largest, rounded up, are not representable. All these leave the binary form alone.

    Names in Relation and Type messages are in client_encoding as well; `decode` takes them in UTF-8 alone.

    Raises
    ------
    DecodeError
        With `row`, `offset` and `column`, the column's name.
    ValueError
        For options that do not exist.
    """
    check_row_mode(mode, "_error")
    check_option("empty", empty, Empty)
    check_limits(limits)
    known = list(type_messages) or list(getattr(relation, "types", ()))
    chosen, schema = described(relation, types, known, unrepresentable, columns)
    settings = settings_of(encoding, datestyle)
    source = Source(payload_parts(payloads))
    decoded_as = [under(settings, item) for item in chosen]
    names = [column.name for column in relation.columns]

    rows = Rows(
        source,
        relation.relation_id,
        names,
        decoded_as,
        limits,
        strict_flags,
        mode == "PERMISSIVE",
        unrepresentable == "null",
        n_threads=threads_for(source, check_threads(threads)),
        empty_is_null=empty == "null",
    )
    rows.run()
    meta, values = rows.results()
    return pa.RecordBatch.from_arrays([*meta, texts(rows.row_errors, source.n_rows), *values], schema=schema)


def texts(row_errors: dict[int, str], n: int) -> pa.Array:
    """Make an error column of n rows."""
    if not row_errors:
        return null_array(n, pa.string())
    return pa.array([row_errors.get(row) for row in range(n)], pa.string())
