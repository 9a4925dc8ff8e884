"""Decodes the inserts, updates and deletes of one relation to typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.rows.row_decoder import Rows
from pgdecode.arrow.null_arrays import null_array
from pgdecode.payloads.payload_input import payload_parts
from pgdecode.payloads.thread_counts import check_threads, threads_for
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import Type
from pgdecode.protocol.options import Empty, RowMode, UnrepresentableValues, check_limits, check_option, check_row_mode
from pgdecode.rows.row_schema import RelationLike, resolve_columns
from pgdecode.rows.type_hints import with_type_hint
from pgdecode.types.session_settings import settings_of, under

_LIMITS = Limits()


def decode_rows(
    payloads: Any,
    relation: RelationLike,
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
    payloads : column of payloads, as in `decode_messages`
        Inserts, updates and deletes of `relation`, streamed or not. A null payload becomes a null row.
    relation : Relation or RelationVersion
        The names, types and modifiers of the columns, as the stream sent them: a Relation message from `decode`, or a
        version from a `RelationCatalog`, which includes the Type messages.
    types : mapping of OID or a type's name to a PostgreSQL type, optional
        Types that the stream does not describe, by OID or by the name in the Type messages: {"public.mood": "enum",
        "public.address": "(street text, zip int4, geo point)", 20001: "numeric(12,2)"}. Or conversions of a built-in
        type: {"numeric": "numeric(20,4)", "money": "money(2)"}. "Types that you declare" in docs/types.md lists both.
    columns : mapping of a column's name to a PostgreSQL type, optional
        The same for one column: {"price": "numeric(20,4)"}. It takes precedence over `types`.
    type_messages : iterable of Type, optional
        The stream's Type messages. Domains, hstore, citext and pgvector types are recognised by their names in them.
    encoding, datestyle : str
        client_encoding and DateStyle of the capturing session as SHOW prints them: "LATIN1", "SQL, DMY". "Text of other
        sessions" in docs/types.md has the rules. Bytes that are invalid in the encoding are a fault.
    mode : {"FAILFAST", "PERMISSIVE"}
        Raise on the first bad row or value; or return a null row for a malformed message, or a null for a bad value,
        with the reason in `_error`.
    unrepresentable : {"error", "null", "clamp", "text"}
        What to do with a value that the Arrow type cannot represent, such as NaN in a decimal. "null" makes it null
        without an error. "clamp" uses the lowest or highest value that both types have (`pgtypes.clamped`); NaN and
        arrays with several dimensions remain an error. "text" makes a column of PostgreSQL's text form of every column
        whose type has such values, with `pg:form` "text" in its metadata.
    limits : Limits
        Larger payloads are bad payloads.
    strict_flags : bool
        Whether flag bits that no server defines are a fault.
    threads : int
        The greatest number of threads to use. The result is the same. Small inputs use fewer threads.
    empty : {"null", "error"}
        How to treat a payload of 0 bytes, which servers send for a replication origin without a name: as a null row
        without an error, or as a bad payload.

    Returns
    -------
    pa.RecordBatch
        One row per payload, with the schema of `row_schema` for the same arguments. `_op` (see
        docs/options.md) is insert, update or delete.
        The table's columns have the new values, or for a delete the old values that were sent. An unchanged TOAST value
        is taken from the old row; if the old row does not have it, it is null and `_unchanged` names the column.
        Timestamps are microseconds, in UTC if the type has a time zone.

    Raises
    ------
    DecodeError
        With `row`, `offset` and `column`, the column's name.
    ValueError
        For options that do not exist.

    Examples
    --------
    >>> relation = pgdecode.decode(bytes.fromhex("5200004001730074006400010169640000000017ffffffff"))
    >>> insert = bytes.fromhex("49000040014e0001740000000135")
    >>> pgdecode.decode_rows([insert], relation).select(["_op", "id"]).to_pylist()
    [{'_op': 'insert', 'id': 5}]
    """
    check_row_mode(mode, "_error")
    check_option("empty", empty, Empty)
    check_limits(limits)
    known = list(type_messages) or list(getattr(relation, "types", ()))
    chosen, schema = resolve_columns(relation, types, known, unrepresentable, columns)
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
    try:
        rows.run()
    except DecodeError as error:
        raise with_type_hint(error, relation.columns, known, chosen, types) from None
    meta, values = rows.results()
    return pa.RecordBatch.from_arrays([*meta, error_column(rows.row_errors, source.n_rows), *values], schema=schema)


def error_column(errors: dict[int, str], n: int) -> pa.Array:
    """Make an error column of n rows from errors by row."""
    if not errors:
        return null_array(n, pa.string())
    return pa.array([errors.get(row) for row in range(n)], pa.string())
