"""The envelope that a walk fills, the state of a walk, and how it records a fault."""

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
    # Where a column of constant width lies, once a message came that may fill it.
    uint8_t *values
    uint8_t *validity

cdef struct FastField:
    # A wanted field of constant width of a message of the fast path.
    uint8_t *values
    uint8_t *validity
    uint64_t added               # to an int64: the epoch's shift
    uint8_t shift                # bits by which 8 bytes are more than an int64's field
    uint8_t at                   # bytes from the tag on

cdef enum:
    IN_STREAM = N_MESSAGES + 1   # where in an array of them the kinds of messages with an xid prefix begin
    N_FAST = 2 * IN_STREAM      # with the kind that no message has

cdef struct FastMessage:
    # What `scan/fast_path` knows of a kind of messages, once the first of them has come.
    uint8_t kind                 # a FastKind
    uint8_t length               # FIXED: bytes, with the tag
    uint8_t has_old              # NEW: an old tuple may stand before the new one
    uint32_t least_xid           # in a stream
    int n_fields
    int n_numbers                # of these the first, which have 4 or 8 bytes; the others are flags, and 0
    uint64_t marks               # a bit a row of the block: where the fast path has put messages of this kind
    uint64_t[MASK_WORDS] mask
    FastField fields[MAX_FAST_FIELDS]

cdef struct Envelope:
    # A NULL builder is a column that is not wanted; with all of them NULL a walk only checks.
    Builder *builders[N_ENVELOPE + 1]
    Slot slots[N_ENVELOPE + 1]
    TupleBuilder *old
    TupleBuilder *new
    ColumnsBuilder *columns
    uint8_t *kinds               # a byte a row: the index of its message
    uint8_t *bases               # a byte a row: how its xid prefix was decided
    uint32_t *relations          # the relation's OID of each insert, update and delete; elsewhere it may be anything
    uint8_t seen[N_MESSAGES]     # kinds whose columns of constant width are open
    Builder *old_type               # of `builders`
    # Columns of constant width that are open: zeros have been put into the first `n_zeroed` rows of each.
    int n_open
    uint8_t *open_values[N_ENVELOPE]
    size_t open_widths[N_ENVELOPE]
    int64_t n_zeroed
    FastMessage *fast            # N_FAST, for `scan/fast_path`; NULL where nothing is wanted

# 946684800000000 us = 2000-01-01 minus 1970-01-01
cdef extern from *:
    """
    #define PGDECODE_EPOCH_SHIFT_US 946684800000000LL
    """
    const int64_t EPOCH_SHIFT_US "PGDECODE_EPOCH_SHIFT_US"

cdef struct Walk:
    # What a walk carries from payload to payload ...
    const PlanTable *plan
    const Rules *rules
    Envelope *out
    Fault *fault
    const uint8_t *stream_flags  # one a row (see wire/stream_state), or NULL where `stream_flag` holds for all
    int64_t first_row        # of the segment
    uint8_t stream_flag
    bint assume_unstreamed   # stop at a stream
    bint has_delimiter       # there is a well-formed delimiter
    bint empty_is_null       # an empty payload is a null row, and no fault
    int64_t n_empty          # such rows
    # ... and from field to field, beside its cursor.
    const uint8_t *start
    int64_t row
    uint32_t count           # of the COUNT field
    uint8_t old_type         # of the OLD_TYPE field, 0 where no old tuple was sent

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
