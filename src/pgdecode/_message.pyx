"""One payload to one message object: the walker checks it, then its fields are read by the same plan."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memset

from pgdecode._cursor cimport Cursor, be16, be32, be64, take, take_string
from pgdecode._fault cimport OK, Fault, FaultCode, error_of
from pgdecode._plan cimport (
    COLUMNS,
    CONTENT,
    COUNT,
    FLAGS,
    LETTER,
    LSN,
    NEW_TUPLE,
    OLD_TUPLE,
    OLD_TYPE,
    PLAN,
    RELATION_IDS,
    TIMESTAMP,
    MessagePlan,
    Op,
    PlanTable,
)
from pgdecode._walk cimport Envelope, Rules, Walk, judge_fault, rules_of, walk_message

from datetime import datetime, timedelta, timezone

from pgdecode import errors, messages

EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)


cdef class Reader:
    """Reads the fields of a payload that the walker has found well-formed."""

    cdef const uint8_t *start
    cdef Cursor cursor
    cdef uint32_t count
    cdef str formats    # of the newest tuple; None where no old tuple was sent
    cdef str old_type

    cdef const uint8_t *read(self, size_t length) except NULL:
        cdef const uint8_t *p = take(&self.cursor, length)
        if p == NULL:
            raise SystemError("the walker passed a message that ends early")
        return p

    cdef str read_string(self):
        cdef size_t length = 0
        cdef const uint8_t *p = take_string(&self.cursor, &length)
        if p == NULL:
            raise SystemError("the walker passed a string without its end")
        return (<const char *>p)[:length].decode("utf-8")

    cdef tuple read_tuple(self):
        cdef uint16_t n = be16(self.read(2))
        cdef uint16_t i
        cdef uint32_t length
        cdef uint8_t kind
        values = []
        formats = bytearray(n)
        for i in range(n):
            kind = self.read(1)[0]
            formats[i] = kind
            if kind == c"t" or kind == c"b":
                length = be32(self.read(4))
                values.append((<const char *>self.read(length))[:length])
            else:
                values.append(None)
        self.formats = formats.decode("ascii")
        return tuple(values)

    cdef tuple read_columns(self):
        cdef uint16_t n = be16(self.read(2))
        cdef uint16_t _i
        cdef const uint8_t *p
        columns = []
        for _i in range(n):
            flags = self.read(1)[0]
            name = self.read_string()
            p = self.read(8)
            columns.append(messages.Column(flags, name, be32(p), <int32_t>be32(p + 4)))
        return tuple(columns)

    cdef object read_timestamp(self):
        try:
            return EPOCH + timedelta(microseconds=<int64_t>be64(self.read(8)))
        except OverflowError:
            raise errors.OutOfRange(
                "the timestamp lies outside the years 1 to 9999 of datetime; decode_messages can hold it",
                offset=self.cursor.at - self.start - 8,
                tag=chr(self.start[0]),
            ) from None

    cdef object read_field(self, const Op *op):
        if op.form == LSN:
            return be64(self.read(8))
        if op.form == TIMESTAMP:
            return self.read_timestamp()
        if op.form == FLAGS:
            flags = self.read(1)[0]
            return flags != 0 if op.is_bool else flags
        if op.form == LETTER:
            return chr(self.read(1)[0])
        if op.form == OLD_TYPE:
            # Where no old tuple was sent, the byte is the new tuple's N and stays.
            self.old_type = chr(self.cursor.at[0]) if self.cursor.at[0] != c"N" else None
            if self.old_type is not None:
                self.read(1)
            return self.old_type
        if op.form == OLD_TUPLE:
            self.formats = None
            return None if self.old_type is None else self.read_tuple()
        if op.form == NEW_TUPLE:
            self.read(1)
            return self.read_tuple()
        if op.form == CONTENT:
            length = be32(self.read(4))
            return (<const char *>self.read(length))[:length]
        if op.form == RELATION_IDS:
            return tuple([be32(self.read(4)) for _ in range(self.count)])
        if op.form == COLUMNS:
            return self.read_columns()
        if op.width == 4:
            return be32(self.read(4))
        return self.read_string()


def decode_one(const uint8_t[::1] payload not None, bint in_stream, object limits, bint strict_flags):
    """The message in one payload; raises a DecodeError without a row."""
    cdef const PlanTable *plan = &PLAN.table
    cdef const uint8_t *data = NULL
    cdef size_t length = <size_t>payload.shape[0]
    cdef Rules rules = rules_of(limits, strict_flags)
    cdef const MessagePlan *message
    cdef Envelope nothing
    cdef Fault fault
    cdef Walk walk
    cdef FaultCode code
    cdef Reader reader
    cdef int i
    if length:
        data = &payload[0]
    memset(&nothing, 0, sizeof(nothing))
    memset(&walk, 0, sizeof(walk))
    walk.plan = plan
    walk.rules = &rules
    walk.out = &nothing
    walk.fault = &fault
    code = walk_message(&walk, data, length, in_stream)
    if code != OK:
        judge_fault(&walk, &nothing, data, length, in_stream, code)
        raise error_of(&fault, PLAN.labels, False)
    message = &plan.messages[plan.by_tag[data[0]]]
    reader = Reader()
    reader.start = data
    reader.cursor.at = data + 1
    reader.cursor.end = data + length
    cls = messages.MESSAGES[plan.by_tag[data[0]]]
    xid = reader.read_field(&message.prefix) if in_stream and message.streamed else None
    values = []
    for i in range(message.n_ops):
        if message.ops[i].optional and reader.cursor.at == reader.cursor.end:
            break
        if message.ops[i].form == COUNT:
            reader.count = be32(reader.read(4))
        else:
            values.append(reader.read_field(&message.ops[i]))
            if message.ops[i].form == OLD_TUPLE or message.ops[i].form == NEW_TUPLE:
                values.append(reader.formats)
    return cls(*values, xid=xid) if message.streamed else cls(*values)
