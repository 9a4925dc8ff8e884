"""Adds to an error of a value which type its column may have instead, as a value of `types=`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pgdecode.protocol.errors import BadValue, DecodeError, TruncatedMessage, UnknownType, Unrepresentable, WrongSize
from pgdecode.protocol.messages import Column, Type
from pgdecode.types.pgtypes import FIRST_GENERATED_OID, Decoding
from pgdecode.types.type_parser import BY_OID, EXTENSIONS

_OF_OPTION = re.compile(r" \(choose with [^)]*\)")
_MALFORMED = (BadValue, WrongSize, TruncatedMessage)


def with_type_hint(
    error: DecodeError,
    columns: Sequence[Column],
    type_messages: Iterable[Type],
    decodings: Sequence[Decoding],
    types: Mapping[str | int, str] | None,
) -> DecodeError:
    """Return an error whose text names the type that the column may have, or the same error.

    Parameters
    ----------
    error : DecodeError
        Its column is an index or a name.
    columns, type_messages, decodings
        The columns of the relation, the Type messages for them, and how they are decoded.
    types : mapping, optional
        The caller's types.
    """
    names = [column.name for column in columns]
    # Native decoders set a name in place of the index.
    index: int | str | None = error.column
    if isinstance(index, str) and index in names:
        index = names.index(index)
    if not isinstance(index, int) or not 0 <= index < len(columns):
        return error
    message = next((item for item in type_messages if item.type_id == columns[index].type_id), None)
    hint = _hint(error, columns[index], message, decodings[index], types or {})
    # The option `unrepresentable` does not help if the type is another one.
    return error if hint is None else error.with_detail(f"{_OF_OPTION.sub('', error.detail)}; {hint}")


def _hint(
    error: DecodeError, column: Column, message: Type | None, decoding: Decoding, types: Mapping[str | int, str]
) -> str | None:
    inner = _innermost(decoding)
    if inner.codec in ("money", "money_text"):
        is_binary = isinstance(error, Unrepresentable)
        return 'the binary form has no fraction digits: types={"money": "money(2)"}' if is_binary else None
    if column.type_id < FIRST_GENERATED_OID:
        return None
    if isinstance(error, UnknownType):
        # The name may be that of a later type by now.
        is_by_oid = any(isinstance(key, str) and key.startswith(BY_OID) for key in types)
        return f'the type was dropped: declare it, such as types={{{column.type_id}: "enum"}}' if is_by_oid else None
    if not isinstance(error, _MALFORMED):
        return None
    name = None if message is None else message.name.removeprefix("_")
    key = str(column.type_id) if message is None or not message.namespace else f'"{message.namespace}.{name}"'
    if _has_composite(decoding):
        return f'if the type was altered, as text: types={{{key}: "record"}}'
    # A composite or an enum may have the name of an extension's type. That of a domain has an empty schema.
    is_guess = name in EXTENSIONS and column.type_id not in types and key.strip('"') not in types
    return f'if this is not the type of the extension: types={{{key}: "enum"}}' if is_guess and '"' in key else None


def _innermost(decoding: Decoding) -> Decoding:
    while decoding.element is not None:
        decoding = decoding.element
    return decoding


def _has_composite(decoding: Decoding) -> bool:
    parts = [decoding]
    while parts:
        part = parts.pop()
        if part.codec in ("composite", "composite_text"):
            return True
        parts += [item for item in (part.element, *part.fields) if item is not None and part.codec != "record"]
    return False
