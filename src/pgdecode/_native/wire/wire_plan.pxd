"""The message table compiled for the scanner: the fields to read for each tag."""

from libc.stdint cimport int8_t, int16_t, uint8_t, uint32_t, uint64_t

from pgdecode._native.arrow.builder cimport Keyword

# The values of pgdecode.protocol.wire.Form. `wire/wire_plan` checks at import that they agree.
cdef enum Form:
    XID_PREFIX = 1
    UINT32
    INT32
    FLAGS
    LETTER
    LSN
    TIMESTAMP
    NAME
    TEXT
    CONTENT
    COUNT
    RELATION_IDS
    COLUMNS
    OLD_TYPE
    OLD_TUPLE
    NEW_TUPLE
    FORMATS

cdef enum:
    MAX_OPS = 10
    MAX_FAST_FIELDS = 6   # of constant width, with the xid prefix, in a message of the fast path
    MASK_WORDS = 4
    N_MESSAGES = 19
    N_ENVELOPE = 27
    NO_COLUMN = 27      # one past the envelope: a column that is never requested

# The labels of the parts of a COLUMNS field directly follow its own, and those of a tuple's cells do too.
cdef enum:
    PART_FLAGS = 1
    PART_NAME
    PART_TYPE_ID
    PART_TYPE_MODIFIER
    PART_CELL = 1

cdef struct Op:
    uint64_t letters     # bit (letter - 64) for each legal letter
    uint32_t minimum
    uint32_t maximum
    uint8_t form         # a Form
    uint8_t width        # bytes, 0 if it varies
    uint8_t column       # index in the envelope, or NO_COLUMN
    uint8_t optional
    uint8_t may_be_empty
    uint8_t is_bool      # FLAGS that fill a bool column
    int16_t label        # index in Plan.labels

# Kinds of messages with their own loop in `scan/fast_path`.
cdef enum FastKind:
    FAST_NONE
    FAST_NEW            # an Insert or Update
    FAST_OLD            # a Delete
    FAST_FIXED          # a delimiter of constant width that starts and stops no stream; only outside streams

cdef struct MessagePlan:
    uint8_t tag
    uint8_t fast_kind    # a FastKind
    uint64_t[MASK_WORDS] mask  # FIXED: bits, in memory order, that are zero in a message of the fast path
    bint streamed        # may have the xid prefix
    int8_t relation_at   # offset of the relation OID after the prefix, -1 without one
    int16_t label        # the message's own name
    int16_t new_op       # I and U: index of the NEW_TUPLE that may directly follow the relation OID, otherwise 0
    int n_ops
    int n_window         # leading fields that have constant width and are never missing
    uint8_t window       # bytes of these fields
    Op[MAX_OPS] ops
    Op prefix

cdef enum TagClass:
    TAG_OTHER
    TAG_MARKED           # I, U, D: a byte after the relation OID distinguishes plain and streamed messages
    TAG_DELIMITER        # occurs only outside a stream's block, or at its start or end
    TAG_STREAM           # a delimiter that starts or stops a block

cdef struct PlanTable:
    uint8_t[256] tag_class
    uint8_t[256] by_tag  # index into messages, N_MESSAGES if no message has the tag
    MessagePlan[N_MESSAGES] messages
    Keyword[N_MESSAGES] kinds
    Keyword[8] bases

cdef class Plan:
    cdef PlanTable table
    cdef readonly tuple labels

cdef Plan PLAN

cdef int offset_of(const MessagePlan *message, str column) except -1
