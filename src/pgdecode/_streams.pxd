"""Decides for every payload whether it lies inside a stream, and so carries an xid prefix."""

from libc.stdint cimport int64_t, uint8_t

from pgdecode._fault cimport FaultCode
from pgdecode._plan cimport PlanTable
from pgdecode._source cimport Segment
from pgdecode._walk cimport Envelope, Rules

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

cdef enum Carry:
    # The nearest delimiter before the first row.
    CARRY_NONE
    CARRY_PLAIN
    CARRY_STREAMED

cdef struct Window:
    # The rows to judge, and the walker that judges their structure.
    const Segment *segments
    Py_ssize_t n_segments
    const PlanTable *plan
    const Rules *rules
    Envelope *nothing    # all sinks NULL
    uint8_t *verdicts    # one a row, in and out

cdef bint judge_plain(Window *window, Carry *carry) noexcept nogil
cdef FaultCode judge_by_order(Window *window, Carry *carry) noexcept nogil
cdef FaultCode judge_each(Window *window) noexcept nogil
cdef bint may_carry_xid(const PlanTable *plan, uint8_t tag) noexcept nogil
