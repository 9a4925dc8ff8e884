"""The values that rows of a table have in columns that were added after them, as the server's catalog tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pgdecode.protocol.encoder import encode
from pgdecode.protocol.messages import Insert
from pgdecode.relations.column_names import common_type
from pgdecode.relations.relation_version import RelationVersion, values_before
from pgdecode.rows.row_decoder import decode_rows


def old_values(
    versions: Mapping[int, RelationVersion], columns: Mapping[int, Mapping[str, str]], types: Mapping[str, pa.DataType]
) -> dict[int, dict[str, pa.Scalar]]:
    """Find the values that rows of each version have in columns that were added later, as far as they are known.

    PostgreSQL gives each row that is older than a column the same value. If it has rewritten the table, for a default
    that is volatile, the rows have different ones, which only a copy of the table tells.

    Parameters
    ----------
    versions : mapping of int to RelationVersion
        Of one relation, by their numbers.
    columns : mapping
        For each version, in the order in which rows use them, the last names of its columns by their names.
    types : mapping of str to pa.DataType
        Of the columns, by their last names.

    Returns
    -------
    dict
        For each version, values by the last names of columns.
    """
    found: dict[int, dict[str, pa.Scalar]] = {number: {} for number in columns}
    if all(versions[number].facts is None for number in columns):
        return found
    numbers = [*columns]
    first: dict[str, int] = {}  # last name -> index of the first version that has the column
    for at, number in enumerate(numbers):
        for last_name in columns[number].values():
            first.setdefault(last_name, at)
    for last_name, since in first.items():
        value = _value_before(versions, columns, numbers, since, last_name, types[last_name]) if since else None
        for number in numbers[:since] if value is not None else ():
            found[number][last_name] = value
    return found


def _value_before(
    versions: Mapping[int, RelationVersion],
    columns: Mapping[int, Mapping[str, str]],
    numbers: Sequence[int],
    since: int,
    last_name: str,
    kind: pa.DataType,
) -> pa.Scalar | None:
    """Find the value of rows of all versions before the first one with a column; None if it is not known."""
    described = [number for number in numbers[:since] if versions[number].facts is not None]
    for later in numbers[since:]:
        name = next((name for name, last in columns[later].items() if last == last_name), None)
        if name is None:
            break
        for before in dict.fromkeys([numbers[since - 1], *described[-1:]]) if versions[later].facts else ():
            values = values_before(versions[before], versions[later])
            if name in values:
                return decoded_value(versions[later], name, values[name], kind)
    return None


def decoded_value(version: RelationVersion, name: str, text: str | None, kind: pa.DataType) -> pa.Scalar | None:
    """Decode a value in PostgreSQL's text form to a type; None if it is not certain what the value is in this type."""
    if text is None:
        return pa.scalar(None, kind)
    new = tuple(text.encode() if column.name == name else None for column in version.columns)
    formats = "".join("n" if value is None else "t" for value in new)
    payload = encode(Insert(relation_id=version.relation_id, new=new, new_formats=formats))
    row = decode_rows([payload], version, mode="PERMISSIVE", unrepresentable="error")
    values = row.column(name)
    if kind == pa.string() and values.type != kind:
        # The versions have no other type in common, so values are in PostgreSQL's text form.
        return pa.scalar(text, kind)
    if row.column("_error")[0].is_valid or common_type([values.type, kind]) != kind:
        return None
    return values.cast(kind)[0]
