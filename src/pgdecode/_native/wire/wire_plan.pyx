"""Compiles pgdecode.protocol.messages into the scanner's plan, once, at import."""

from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport KEYWORD_BYTES

from pgdecode.protocol import messages as table, wire

WIDTHS = {
    wire.Form.XID_PREFIX: 4,
    wire.Form.UINT32: 4,
    wire.Form.INT32: 4,
    wire.Form.FLAGS: 1,
    wire.Form.LETTER: 1,
    wire.Form.LSN: 8,
    wire.Form.TIMESTAMP: 8,
    wire.Form.COUNT: 4,
}


cdef class Plan:
    """The fields of all messages, as the scanner reads them. Constant after construction."""

    def __cinit__(self):
        cdef MessagePlan *plan
        labels = []
        memset(&self.table, 0, sizeof(self.table))
        memset(self.table.by_tag, N_MESSAGES, sizeof(self.table.by_tag))
        for index, message in enumerate(table.MESSAGES):
            plan = &self.table.messages[index]
            plan.tag = ord(message.tag)
            self.table.by_tag[plan.tag] = index
            self.table.kinds[index] = keyword_of(message.kind)
            plan.label = len(labels)
            labels.append(message.kind)
            plan.relation_at = -1
            at = 0
            for item in wire.wire_fields(message):
                op = compiled(item, len(labels))
                labels.extend(labels_of(message.kind, item))
                if item.wire.form == wire.Form.XID_PREFIX:
                    plan.streamed = True
                    plan.prefix = op
                    continue
                if op.form == FORMATS:
                    # It has no bytes of its own: the formats are read with the tuple before it.
                    continue
                if item.name == "relation_id":
                    plan.relation_at = at
                at += op.width
                if op.width and not op.optional and plan.n_window == plan.n_ops:
                    plan.n_window += 1
                    plan.window += op.width
                plan.ops[plan.n_ops] = op
                plan.n_ops += 1
                if op.form == NEW_TUPLE and plan.n_window == 1:
                    plan.new_op = plan.n_ops - 1
            self.table.tag_class[plan.tag] = class_of(message)
            plan.fast_kind = fast_kind_of(plan, self.table.tag_class[plan.tag])
            if plan.fast_kind != FAST_NONE and plan.n_window + plan.streamed > MAX_FAST_FIELDS:
                raise ImportError(f"{message.kind} has more fields than MAX_FAST_FIELDS")
            mask = mask_of(plan)
            memcpy(plan.mask, <const char *>mask, sizeof(plan.mask))
        for index, base in enumerate(table.XID_BASES):
            self.table.bases[index] = keyword_of(base)
        self.labels = tuple(labels)


cdef Keyword keyword_of(str text) except *:
    cdef Keyword keyword
    encoded = text.encode()
    if len(encoded) >= KEYWORD_BYTES:
        raise ImportError(f"{text!r} is too long for a keyword")
    memset(&keyword, 0, sizeof(keyword))
    memcpy(keyword.text, <const char *>encoded, len(encoded))
    keyword.length = len(encoded)
    return keyword


cdef FastKind fast_kind_of(const MessagePlan *plan, uint8_t tag_class):
    cdef int i
    if plan.new_op:
        return FAST_NEW
    if tag_class == TAG_MARKED:
        return FAST_OLD
    for i in range(plan.n_ops):
        if plan.ops[i].form == FLAGS and plan.ops[i].maximum == 0:
            continue
        if plan.ops[i].form not in (LSN, TIMESTAMP, UINT32) or plan.ops[i].minimum:
            return FAST_NONE
    return FAST_FIXED if plan.n_ops == plan.n_window and tag_class == TAG_DELIMITER else FAST_NONE


cdef bytes mask_of(const MessagePlan *plan):
    """Bits of a payload, tag first, that are set only in faults, and in times before 2000 or after 148000."""
    cdef int i
    mask = bytearray(1)
    for i in range(plan.n_window):
        first = 0
        if plan.ops[i].form == LSN:
            first = 0x80
        elif plan.ops[i].form == TIMESTAMP:
            first = 0xC0
        elif plan.ops[i].form == FLAGS:
            # The largest legal flags are all ones.
            first = 0xFF & ~plan.ops[i].maximum
        mask += bytes([first]).ljust(plan.ops[i].width, b"\0")
    return bytes(mask).ljust(sizeof(plan.mask), b"\0")


def class_of(message):
    """The meaning of a message for the stream state."""
    forms = {item.wire.form for item in wire.wire_fields(message)}
    if forms & {wire.Form.OLD_TYPE, wire.Form.NEW_TUPLE}:
        return TAG_MARKED
    if message in (table.StreamStart, table.StreamStop):
        return TAG_STREAM
    # An Origin has no xid, but occurs inside a block too.
    is_delimiter = wire.Form.XID_PREFIX not in forms and message is not table.Origin
    return TAG_DELIMITER if is_delimiter else TAG_OTHER


cdef Op compiled(object item, int label) except *:
    """Convert a field of the table to an Op."""
    cdef Op op
    columns = [column.name for column in table.ENVELOPE]
    layout = item.wire
    op.form = layout.form
    op.width = WIDTHS.get(layout.form, 0)
    op.optional = layout.optional
    op.may_be_empty = layout.may_be_empty
    op.column = columns.index(layout.column) if layout.column else NO_COLUMN
    op.is_bool = layout.column is not None and table.ENVELOPE[op.column].type == "bool"
    op.label = label
    op.minimum = layout.minimum
    op.maximum = layout.maximum
    op.letters = 0
    for letter in layout.letters:
        op.letters |= <uint64_t>1 << (ord(letter) - 64)
    return op


cdef int offset_of(const MessagePlan *message, str column) except -1:
    """Offset from the tag, in bytes, of the field for an envelope column. All fields before it have constant width."""
    cdef int i, at = 1
    cdef int index = [item.name for item in table.ENVELOPE].index(column)
    for i in range(message.n_window):
        if message.ops[i].column == index:
            return at
        at += message.ops[i].width
    raise ImportError(f"{chr(message.tag)} has no {column!r} at a constant place")


def labels_of(kind, item):
    """Names of a field and of its parts for error texts."""
    name = f"{kind} {item.name}"
    if item.wire.form == wire.Form.COLUMNS:
        parts = wire.wire_fields(table.Column)
        return [name, *(f"{kind} column {{column}} {part.name}" for part in parts)]
    if item.wire.form in (wire.Form.OLD_TUPLE, wire.Form.NEW_TUPLE):
        return [f"{name} tuple", f"{name} column {{column}}"]
    return [name]


def check_agreement():
    """Check that the forms, and the layout of a Relation's column, are those that the scanner is written for."""
    forms = [XID_PREFIX, UINT32, INT32, FLAGS, LETTER, LSN, TIMESTAMP, NAME, TEXT, CONTENT, COUNT,
             RELATION_IDS, COLUMNS, OLD_TYPE, OLD_TUPLE, NEW_TUPLE, FORMATS]
    column = [item.wire.form for item in wire.wire_fields(table.Column)]
    if (
        forms != [int(form) for form in wire.Form]
        or len(table.MESSAGES) != N_MESSAGES
        or len(table.ENVELOPE) != N_ENVELOPE
        or max(len(wire.wire_fields(message)) for message in table.MESSAGES) > MAX_OPS
        or column != [wire.Form.FLAGS, wire.Form.NAME, wire.Form.UINT32, wire.Form.INT32]
    ):
        raise ImportError("pgdecode was built from another message table: build it again")


check_agreement()
PLAN = Plan()
