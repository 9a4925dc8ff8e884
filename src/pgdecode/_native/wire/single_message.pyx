"""Makes a message object of one payload: the walker checks the payload, then its fields are read by the same plan."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.datetime cimport import_datetime, timedelta_new
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from pgdecode._native.arrow.payload_array cimport PRESENT, Source, Span
from pgdecode._native.cursor cimport Cursor, be16, be32, be64, take, take_string
from pgdecode._native.fault cimport OK, Fault, FaultCode, error_of
from pgdecode._native.wire.envelope_builder cimport EPOCH_SHIFT_US, Envelope, Rules, Walk, open_check, rules_of
from pgdecode._native.wire.walker cimport resolve_fault, walk_message
from pgdecode._native.wire.wire_plan cimport (
    COLUMNS,
    CONTENT,
    COUNT,
    FLAGS,
    LETTER,
    LSN,
    NAME,
    NEW_TUPLE,
    N_MESSAGES,
    OLD_TUPLE,
    OLD_TYPE,
    PLAN,
    RELATION_IDS,
    TEXT,
    TIMESTAMP,
    MessagePlan,
    Op,
    PlanTable,
)

from dataclasses import fields
from datetime import datetime, timezone
from types import MemberDescriptorType

from pgdecode.protocol import errors, messages, wire
from pgdecode.protocol.limits import LIMITS

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    uint8_t *PyUnicode_1BYTE_DATA(object text)

import_datetime()
EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)
cdef Rules LIMIT_RULES = rules_of(LIMITS, True)
cdef tuple NO_ARGUMENTS = ()
cdef tuple COLUMN_NAMES = tuple([item.name for item in messages.ENVELOPE])

cdef enum:
    US_PER_SECOND = 1000000
    SECONDS_PER_DAY = 86400

cdef struct MessageReader:
    # Reads a payload that the walker has found well-formed.
    const uint8_t *start
    Cursor cursor
    uint32_t count
    uint8_t old_type    # 0 without old tuple


cdef class MessageMaker:
    """Makes objects of a frozen dataclass with slots, field by field, because `__init__` takes longer than the rest."""

    cdef type cls
    cdef tuple slots    # descriptors of the fields, in wire order
    cdef object xid     # descriptor of the prefix, or None

    def __cinit__(self, type cls):
        names = [item.name for item in wire.wire_fields(cls) if item.wire.form is not wire.Form.COUNT]
        found = {item.name: getattr(cls, item.name) for item in fields(cls)}
        if set(names) != set(found) or not all(isinstance(slot, MemberDescriptorType) for slot in found.values()):
            raise ImportError(f"{cls.__name__} is not a dataclass with a slot per field of the wire")
        self.cls = cls
        if issubclass(cls, messages.StreamedMessage):
            names.remove("xid")
            self.xid = found["xid"]
        self.slots = tuple([found[name] for name in names])

    cdef object make(self):
        return (<PyTypeObject *>self.cls).tp_new(self.cls, <PyObject *>NO_ARGUMENTS, NULL)

    cdef int put(self, object made, object slot, object value) except -1:
        return (<PyObject *>slot).ob_type.tp_descr_set(slot, made, value)


cdef tuple MAKERS = tuple([MessageMaker(cls) for cls in messages.MESSAGES])
cdef MessageMaker COLUMN_MAKER = MessageMaker(messages.Column)


cdef const uint8_t *read(MessageReader *reader, size_t length) except NULL:
    cdef const uint8_t *p = take(&reader.cursor, length)
    if p == NULL:
        raise SystemError("the walker passed a message that ends early")
    return p


cdef str read_string(MessageReader *reader):
    cdef size_t length = 0
    cdef const uint8_t *p = take_string(&reader.cursor, &length)
    if p == NULL:
        raise SystemError("the walker passed a string without its end")
    return (<const char *>p)[:length].decode("utf-8")


cdef tuple read_tuple(MessageReader *reader, PyObject **formats):
    """The values of a tuple. `formats` becomes a new reference to the string of their formats."""
    cdef uint16_t n = be16(read(reader, 2))
    cdef uint16_t i
    cdef uint32_t length
    cdef const uint8_t *p
    cdef str letters = PyUnicode_New(n, 127)
    cdef tuple values = PyTuple_New(n)
    cdef object value
    for i in range(n):
        p = read(reader, 1)
        PyUnicode_1BYTE_DATA(letters)[i] = p[0]
        value = None
        if p[0] == c"t" or p[0] == c"b":
            length = be32(read(reader, 4))
            value = PyBytes_FromStringAndSize(<const char *>read(reader, length), length)
        # The tuple takes over the reference.
        Py_INCREF(value)
        PyTuple_SET_ITEM(values, i, value)
    Py_INCREF(letters)
    formats[0] = <PyObject *>letters
    return values


cdef tuple read_columns(MessageReader *reader):
    cdef uint16_t n = be16(read(reader, 2))
    cdef uint16_t _i
    cdef const uint8_t *p
    columns = []
    for _i in range(n):
        flags = read(reader, 1)[0]
        name = read_string(reader)
        p = read(reader, 8)
        column = COLUMN_MAKER.make()
        for slot, value in zip(COLUMN_MAKER.slots, (flags, name, be32(p), <int32_t>be32(p + 4))):
            COLUMN_MAKER.put(column, slot, value)
        columns.append(column)
    return tuple(columns)


cdef object read_timestamp(MessageReader *reader):
    cdef int64_t us = <int64_t>be64(read(reader, 8))
    cdef int64_t seconds = us // US_PER_SECOND
    cdef int64_t days
    # Rounded down, not towards zero.
    if us % US_PER_SECOND < 0:
        seconds -= 1
    days = seconds // SECONDS_PER_DAY
    if seconds % SECONDS_PER_DAY < 0:
        days -= 1
    try:
        return EPOCH + timedelta_new(
            <int>days, <int>(seconds - days * SECONDS_PER_DAY), <int>(us - seconds * US_PER_SECOND)
        )
    except OverflowError:
        raise errors.OutOfRange(
            "the timestamp lies outside the years 1 to 9999 of datetime; decode_messages can hold it",
            offset=reader.cursor.at - reader.start - 8,
            tag=chr(reader.start[0]),
        ) from None


cdef object read_old_type(MessageReader *reader):
    """K or O. Without old tuple, the byte is the N of the new tuple, and is not consumed."""
    cdef uint8_t letter = reader.cursor.at[0]
    reader.old_type = 0
    if letter == c"N":
        return None
    reader.old_type = read(reader, 1)[0]
    return "K" if letter == c"K" else "O"


cdef object read_field(MessageReader *reader, const Op *op):
    """Read a field that is not a tuple."""
    cdef uint32_t length
    if op.form == LSN:
        return be64(read(reader, 8))
    if op.form == TIMESTAMP:
        return read_timestamp(reader)
    if op.form == FLAGS:
        flags = read(reader, 1)[0]
        return flags != 0 if op.is_bool else flags
    if op.form == LETTER:
        return chr(read(reader, 1)[0])
    if op.form == OLD_TYPE:
        return read_old_type(reader)
    if op.form == CONTENT:
        length = be32(read(reader, 4))
        return (<const char *>read(reader, length))[:length]
    if op.form == RELATION_IDS:
        return tuple([be32(read(reader, 4)) for _ in range(reader.count)])
    if op.form == COLUMNS:
        return read_columns(reader)
    if op.width == 4:
        return be32(read(reader, 4))
    return read_string(reader)


cdef object read_message(MessageReader *reader, const MessagePlan *message, MessageMaker maker, bint streamed):
    cdef object made = maker.make()
    cdef const Op *op
    cdef PyObject *formats
    cdef object value
    cdef int i, at = 0
    if maker.xid is not None:
        maker.put(made, maker.xid, read_field(reader, &message.prefix) if streamed else None)
    for i in range(message.n_ops):
        op = &message.ops[i]
        if op.form == COUNT:
            reader.count = be32(read(reader, 4))
        elif op.form == OLD_TUPLE and not reader.old_type:
            maker.put(made, maker.slots[at], None)
            maker.put(made, maker.slots[at + 1], None)
            at += 2
        elif op.form == OLD_TUPLE or op.form == NEW_TUPLE:
            if op.form == NEW_TUPLE:
                read(reader, 1)
            formats = NULL
            maker.put(made, maker.slots[at], read_tuple(reader, &formats))
            value = <object>formats
            Py_DECREF(value)
            maker.put(made, maker.slots[at + 1], value)
            at += 2
        else:
            # The optional fields are the last ones of a message.
            if op.optional and reader.cursor.at == reader.cursor.end:
                value = None
            else:
                value = read_field(reader, op)
            maker.put(made, maker.slots[at], value)
            at += 1
    return made


cdef object decode_bytes(const uint8_t *data, size_t length, bint in_stream, object limits, bint strict_flags):
    cdef const PlanTable *plan = &PLAN.table
    cdef Rules rules
    cdef const MessagePlan *message
    cdef Envelope nothing
    cdef Fault fault
    cdef Walk walk
    cdef FaultCode code
    cdef MessageReader reader
    if limits is LIMITS:
        rules = LIMIT_RULES
        rules.strict_flags = strict_flags
    else:
        rules = rules_of(limits, strict_flags)
    open_check(&walk, plan, &rules, &nothing, &fault)
    code = walk_message(&walk, data, length, in_stream)
    if code != OK:
        resolve_fault(&walk, &nothing, data, length, in_stream, code)
        raise error_of(&fault, PLAN.labels, False)
    message = &plan.messages[plan.by_tag[data[0]]]
    memset(&reader, 0, sizeof(reader))
    reader.start = data
    reader.cursor.at = data + 1
    reader.cursor.end = data + length
    return read_message(&reader, message, <MessageMaker>MAKERS[plan.by_tag[data[0]]], in_stream and message.streamed)


def decode_one(bytes payload not None, bint in_stream, limits, bint strict_flags):
    """Make the message of one payload. Raises a DecodeError without a row."""
    return decode_bytes(
        <const uint8_t *>PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload), in_stream, limits, strict_flags
    )


def fields_of(Source source, int64_t row, bint in_stream):
    """The numbers and strings of a well-formed row, by envelope column.

    Timestamps are in microseconds since 1970, as in those columns, because not all are a datetime. Fields after a list
    or a tuple are left out, and so are fields without a column.
    """
    cdef const PlanTable *plan = &PLAN.table
    cdef const MessagePlan *message
    cdef const Op *op
    cdef MessageReader reader
    cdef Span payload
    cdef Py_ssize_t near = 0
    cdef int i
    if not 0 <= row < source.n_rows:
        raise IndexError("there is no such row")
    if (
        source.find(row, &near, &payload) != PRESENT
        or payload.length == 0
        or plan.by_tag[payload.data[0]] == N_MESSAGES
    ):
        raise ValueError("the row is no message")
    message = &plan.messages[plan.by_tag[payload.data[0]]]
    memset(&reader, 0, sizeof(reader))
    reader.start = payload.data
    reader.cursor.at = payload.data + 1
    reader.cursor.end = payload.data + payload.length
    found = {}
    if in_stream and message.streamed:
        found[COLUMN_NAMES[message.prefix.column]] = read_field(&reader, &message.prefix)
    for i in range(message.n_ops):
        op = &message.ops[i]
        if op.optional and reader.cursor.at == reader.cursor.end or not (op.width or op.form in (NAME, TEXT)):
            break
        if op.form == TIMESTAMP:
            value = <int64_t>be64(read(&reader, 8)) + EPOCH_SHIFT_US
        else:
            value = read_field(&reader, op)
        if op.column < len(COLUMN_NAMES):
            found[COLUMN_NAMES[op.column]] = value
    return found
