"""The envelope that a walk fills, the state of a walk, and the functions that record a fault."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pgdecode._native.arrow.builder cimport ColumnsBuilder, Builder, TupleBuilder
from pgdecode._native.cursor cimport Cursor
from pgdecode._native.fault cimport Fault, FaultCode
from pgdecode._native.wire.wire_plan cimport (
    MASK_WORDS, MAX_FAST_FIELDS, N_ENVELOPE, N_MESSAGES, OLD_TYPE, MessagePlan, PlanTable,
)

cdef struct Rules:
    # Limits of the public API, and whether unknown flag bits are faults.
    size_t max_payload_bytes
    size_t max_name_bytes
    size_t max_value_bytes
    uint32_t max_columns
    bint strict_flags

cdef struct Slot:
    # A column of constant width, opened by the first message that may fill it.
    uint8_t *values
    uint8_t *validity

cdef struct FastField:
    # A requested field of constant width, in a message of the fast path.
    uint8_t *values
    uint8_t *validity
    uint64_t added               # added to an int64: the epoch shift
    uint8_t shift                # number of bits in 8 bytes that do not belong to the field
    uint8_t at                   # offset from the tag, in bytes

cdef enum:
    IN_STREAM = N_MESSAGES + 1   # in arrays of kinds, where kinds of messages with an xid prefix begin
    N_FAST = 2 * IN_STREAM      # including the kind of unknown messages

cdef struct FastMessage:
    # What `scan/fast_path` needs of a kind of messages. Set by the first message of the kind.
    uint8_t kind                 # a FastKind
    uint8_t length               # FIXED: bytes, including the tag
    uint8_t has_old              # NEW: an old tuple may come before the new one
    uint32_t least_xid           # smallest xid in a stream
    int n_fields
    int n_numbers                # the first fields, which have 4 or 8 bytes; the others are flags, and this is 0
    uint64_t marks               # one bit for each row of the block: messages of this kind from the fast path
    uint64_t[MASK_WORDS] mask
    FastField fields[MAX_FAST_FIELDS]

cdef struct Envelope:
    # A NULL builder is a column that is not requested. If all are NULL, a walk only checks.
    Builder *builders[N_ENVELOPE + 1]
    Slot slots[N_ENVELOPE + 1]
    TupleBuilder *old
    TupleBuilder *new
    ColumnsBuilder *columns
    uint8_t *kinds               # one byte for each row: the index of its message
    uint8_t *bases               # one byte for each row: how its xid prefix was decided
    uint32_t *relations          # the relation's OID of each insert, update and delete; undefined for other messages
    uint8_t seen[N_MESSAGES]     # kinds whose columns of constant width are open
    Builder *old_type               # one of `builders`
    # Open columns of constant width. The first `n_zeroed` rows of each have been set to zero.
    int n_open
    uint8_t *open_values[N_ENVELOPE]
    size_t open_widths[N_ENVELOPE]
    int64_t n_zeroed
    FastMessage *fast            # N_FAST items, for `scan/fast_path`; NULL if nothing is requested

# 946684800000000 us = 2000-01-01 minus 1970-01-01
cdef extern from *:
    """
    #define PGDECODE_EPOCH_SHIFT_US 946684800000000LL
    """
    const int64_t EPOCH_SHIFT_US "PGDECODE_EPOCH_SHIFT_US"

cdef struct Walk:
    # The state of a walk from payload to payload:
    const PlanTable *plan
    const Rules *rules
    Envelope *out
    Fault *fault
    const uint8_t *stream_flags  # one for each row (see wire/stream_state), or NULL if `stream_flag` applies to all
    int64_t first_row        # of the segment
    uint8_t stream_flag
    bint assume_unstreamed   # stop at a stream
    bint has_delimiter       # there was a well-formed delimiter
    bint empty_is_null       # an empty payload is a null row, not a fault
    int64_t n_empty          # number of those rows
    # The state from field to field, besides the cursor:
    const uint8_t *start
    int64_t row
    uint32_t count           # of the COUNT field
    uint8_t old_type         # of the OLD_TYPE field, 0 without old tuple

cdef Cursor fail(
    Walk *walk, FaultCode code, int label, const uint8_t *at, int64_t expected, int64_t seen, int32_t column
) noexcept nogil
cdef Cursor fail_truncated(Walk *walk, int label, Cursor cursor, int64_t needed, int32_t column) noexcept nogil
cdef Cursor fail_in_builder(Walk *walk, FaultCode code, int label) noexcept nogil
cdef void keep_zeroed(Envelope *out, const Builder *builder) noexcept nogil
cdef FaultCode open_slots(Envelope *out, const MessagePlan *message, int index) noexcept nogil
cdef void open_nothing(Envelope *nothing) noexcept nogil
cdef void open_check(
    Walk *walk, const PlanTable *plan, const Rules *rules, Envelope *nothing, Fault *fault
) noexcept nogil
cdef Rules rules_of(object limits, bint strict_flags) except *
