"""The inserts, updates and deletes of one relation as typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pgdecode._rows import Rows
from pgdecode._source import Source
from pgdecode.inputs import payload_parts
from pgdecode.limits import Limits
from pgdecode.messages import Relation, Type
from pgdecode.relations import decodings, row_schema

_LIMITS = Limits()


def decode_rows(
    payloads: Any,
    relation: Relation,
    *,
    types: Mapping[str | int, str] | None = None,
    type_messages: Iterable[Type] = (),
    mode: str = "FAILFAST",
    unrepresentable: str = "error",
    limits: Limits = _LIMITS,
    strict_flags: bool = True,
) -> pa.RecordBatch:
    """Decode the insert, update and delete payloads of one relation into typed columns.

    Parameters
    ----------
    payloads : column of payloads, as `decode_messages` takes them
        Inserts, updates and deletes of `relation`, streamed or not. Null rows give null rows.
    relation : Relation
        The columns' names, types and modifiers, as the stream sent them: `decode` gives one.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        What types are that the stream does not describe: {"public.price": "numeric"}; {790: "money(2)"} says how many
        digits of money are its fraction, which its binary form does not tell; "record" is a composite in binary, text
        in PostgreSQL's form, if its fields are of built-in types.
    type_messages : iterable of Type, optional
        The stream's Type messages: they give domains, hstore, citext and pgvector their meaning by name.
    mode : {"FAILFAST", "PERMISSIVE"}
        Raise on the first bad row or value; or null the row, where the message is malformed, or the one value, and
        say why in `_error`.
    unrepresentable : {"error", "null", "clamp", "text"}
        What to make of a value that PostgreSQL has and the Arrow type has not: NaN in a decimal, infinity in a date,
        24:00:00, year 294276, more than one dimension of an array. "null" leaves it out without a word. "clamp" takes
        the lowest or the highest value that both have (`pgtypes.clamped` lists them), also for an array's elements
        and a range's bounds; NaN and dimensions are neither low nor high, and remain an error. "text" makes a string
        column of every column whose type has such values: dates, times, timestamps, intervals, numeric(p, s), arrays,
        and ranges of these. It holds PostgreSQL's own text (`pgtypes.as_text`), and `pg:form` in its metadata says so.
    limits : Limits
        Sizes past which a payload is refused.
    strict_flags : bool
        Refuse flag bits that no server defines today.

    Returns
    -------
    pa.RecordBatch
        One row per payload; the schema is `relations.row_schema` with the same arguments. `_op` is insert,
        update or delete; the table's columns hold the new values, or for a delete the old ones that were sent. A
        TOAST value that an update did not send is filled from the old row where that has it; otherwise it is null,
        and its column's name is in `_unchanged`. Timestamps are microseconds, UTC where the type has a zone.

    Raises
    ------
    DecodeError
        With `row`, `offset` and `column`, the column's name.
    ValueError
        For options that do not exist.
    """
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f'mode is "FAILFAST" or "PERMISSIVE", not {mode!r}')
    known = list(type_messages)
    schema = row_schema(relation, types, known, unrepresentable)
    source = Source(payload_parts(payloads))
    rows = Rows(
        source,
        relation.relation_id,
        [column.name for column in relation.columns],
        decodings(relation, types, known, unrepresentable),
        limits,
        strict_flags,
        mode == "PERMISSIVE",
        unrepresentable == "null",
    )
    meta, columns, told = rows.run()
    texts = pa.array([told.get(row) for row in range(rows.n_rows)], pa.string()) if told else None
    errors = pa.nulls(rows.n_rows, pa.string()) if texts is None else texts
    return pa.RecordBatch.from_arrays([*meta, errors, *columns], schema=schema)
