"""Walks one message by the plan and puts its fields into the envelope's sinks, or into none."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pgdecode._fault cimport Fault, FaultCode
from pgdecode._plan cimport N_ENVELOPE, N_MESSAGES, PlanTable
from pgdecode._sink cimport ColumnsSink, Sink, TupleSink
from pgdecode._source cimport Segment

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

cdef struct Envelope:
    # A NULL sink is a column nobody wants; with all of them NULL a walk only checks.
    Sink *sinks[N_ENVELOPE + 1]
    Slot slots[N_ENVELOPE + 1]
    TupleSink *old
    TupleSink *new
    ColumnsSink *columns
    uint8_t *kinds               # a byte a row: the index of its message
    uint8_t *bases               # a byte a row: how its xid prefix was decided
    uint8_t seen[N_MESSAGES]     # kinds whose columns of constant width are open

cdef Rules rules_of(object limits, bint strict_flags) except *

cdef struct Walk:
    # What a walk carries from payload to payload ...
    const PlanTable *plan
    const Rules *rules
    Envelope *out
    Fault *fault
    const uint8_t *verdicts  # one a row (see _streams), or NULL where `verdict` holds for all
    int64_t first_row        # of the segment
    uint8_t verdict
    bint hopeful             # stop at a stream
    bint has_delimiter       # a well-formed delimiter has come by
    # ... and from field to field, beside its cursor.
    const uint8_t *start
    int64_t row
    uint32_t count           # of the COUNT field
    uint8_t old_type         # of the OLD_TYPE field, 0 where no old tuple was sent

cdef FaultCode walk_rows(Walk *walk, const Segment *segment, int64_t *next) noexcept nogil
cdef FaultCode walk_message(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil
cdef FaultCode judge_fault(
    Walk *walk, Envelope *nothing, const uint8_t *payload, size_t length, bint streamed, FaultCode code
) noexcept nogil

# A verdict is a byte: bit 0 streamed, bit 1 doubtful (order and evidence disagree somewhere in this run),
# from bit 4 how it was decided, an index into messages.XID_BASES.
cdef enum Verdict:
    STREAMED = 1
    DOUBTFUL = 2
    BASIS_SHIFT = 4

cdef enum Basis:
    BASIS_EXPLICIT
    BASIS_ORDER
    BASIS_STRUCTURE
    BASIS_EVIDENCE
    BASIS_GUESS
