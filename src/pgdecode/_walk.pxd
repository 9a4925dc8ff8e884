"""Walks one message by the plan and puts its fields into the envelope's sinks, or into none."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pgdecode._fault cimport Fault, FaultCode
from pgdecode._plan cimport N_ENVELOPE, N_MESSAGES, PlanTable
from pgdecode._sink cimport ColumnsSink, Sink, TupleSink

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
    uint8_t seen[N_MESSAGES]     # kinds whose columns of constant width are open

cdef Rules rules_of(object limits, bint strict_flags) except *

cdef FaultCode walk_message(
    const PlanTable *plan,
    const uint8_t *payload,
    size_t length,
    bint streamed,
    const Rules *rules,
    Envelope *out,
    int64_t row,
    Fault *fault,
) noexcept nogil

cdef FaultCode judge_fault(
    const PlanTable *plan,
    const uint8_t *payload,
    size_t length,
    bint streamed,
    const Rules *rules,
    Envelope *nothing,
    FaultCode code,
    Fault *fault,
) noexcept nogil
