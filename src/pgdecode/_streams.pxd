"""Decides for every payload whether it lies inside a stream, and so carries an xid prefix."""

from libc.stdint cimport int64_t, uint8_t

from pgdecode._fault cimport FaultCode
from pgdecode._plan cimport PlanTable
from pgdecode._source cimport Segment
from pgdecode._walk cimport Walk

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
    Walk *walk           # into no sinks
    uint8_t *verdicts    # one a row, in and out

cdef FaultCode judge_by_order(Window *window, Carry *carry) noexcept nogil
cdef FaultCode judge_each(Window *window) noexcept nogil
cdef bint may_carry_xid(const PlanTable *plan, uint8_t tag) noexcept nogil
