"""Makes Python exceptions of native faults."""

from pgdecode.protocol import errors

CLASSES = (
    None,
    errors.EmptyPayload,
    errors.UnknownTag,
    errors.TruncatedMessage,
    errors.TrailingBytes,
    errors.BadLength,
    errors.MissingTerminator,
    errors.EmptyName,
    errors.BadEncoding,
    errors.BadFlags,
    errors.BadValue,
    errors.OutOfRange,
    errors.BadTupleTag,
    errors.BadColumnKind,
    errors.StreamDesync,
    errors.ArityMismatch,
    errors.OtherRelation,
    errors.NotARow,
    errors.PayloadTooLong,
    errors.TooManyColumns,
    errors.NameTooLong,
    errors.ValueTooLong,
    errors.WrongSize,
    errors.UnknownType,
    errors.UndeclaredSetting,
    errors.UndecodableZone,
    errors.Unrepresentable,
    errors.Unrepresentable,
    errors.Unrepresentable,
    errors.BatchTooLarge,
    errors.BatchExpands,
)

# Formats that a payload may have which is not a message; `wire/walker` returns the index.
HINTS = (
    "",
    "; it looks like an XLogData frame: drop its first 25 bytes",
    "; it looks like a keepalive frame, not a message",
    "; it looks like a CopyData frame: drop its first 5 bytes, then the XLogData header",
    "; it looks like hexadecimal text: turn it into bytes first",
    "; it looks gzip-compressed",
    "; it looks zstd-compressed",
)

# Faults of a tuple's value, which set `expected` to -1.
OF_VALUES = {
    FAULT_BAD_VALUE: "{field} has {seen} bytes that are no value of its type",
    FAULT_ENCODING: "{field} has bytes that are not valid in the declared encoding (encoding=, default UTF8)",
}


cdef str printable(int64_t byte):
    return f"0x{byte:02x} {chr(byte)!r}" if 0x20 <= byte < 0x7F else f"0x{byte:02x}"


cdef object error_of(const Fault *fault, tuple labels, bint with_row):
    """Make the exception of a fault, without raising it. `labels` are the plan's names of fields."""
    if fault.code == FAULT_NO_MEMORY:
        return MemoryError("no memory for the decoded columns")
    if fault.code == FAULT_BAD_ARRAY:
        return ValueError(f"row {fault.row}: the Arrow array's offsets do not lie inside its data")
    cls = CLASSES[<int>fault.code]
    field = "payload" if fault.label < 0 else labels[fault.label].format(column=fault.column)
    # A value's bytes are never shown, so the text has only their number.
    wording = OF_VALUES.get(<int>fault.code, cls.wording) if fault.expected < 0 else cls.wording
    detail = wording.format(
        field=field, expected=fault.expected, seen=fault.seen, byte=printable(fault.seen & 0xFF)
    )
    if fault.code == FAULT_UNKNOWN_TAG:
        detail += HINTS[fault.expected]
    return cls(
        detail,
        row=fault.row if with_row else None,
        offset=fault.offset,
        tag=None if fault.code == FAULT_EMPTY else chr(fault.tag),
        relation=None if fault.relation < 0 else fault.relation,
        column=None if fault.column < 0 else fault.column,
        expected=None if fault.code == FAULT_UNKNOWN_TAG or fault.expected < 0 else fault.expected,
        seen=fault.seen,
    )
