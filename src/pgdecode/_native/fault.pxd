"""Fault codes, and the record of a fault."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pgdecode._native.capacity cimport ensure_capacity

# One code per class of pgdecode.protocol.errors, in the order of `fault.CLASSES`.
cdef enum FaultCode:
    OK = 0
    FAULT_EMPTY
    FAULT_UNKNOWN_TAG
    FAULT_TRUNCATED
    FAULT_TRAILING
    FAULT_BAD_LENGTH
    FAULT_NO_NUL
    FAULT_EMPTY_NAME
    FAULT_ENCODING
    FAULT_BAD_FLAGS
    FAULT_BAD_VALUE
    FAULT_OUT_OF_RANGE
    FAULT_BAD_TUPLE_TAG
    FAULT_BAD_COLUMN_KIND
    FAULT_STATE_DESYNC
    FAULT_ARITY
    FAULT_OTHER_RELATION
    FAULT_NOT_A_ROW
    FAULT_LIMIT_PAYLOAD
    FAULT_LIMIT_COLUMNS
    FAULT_LIMIT_NAME
    FAULT_LIMIT_VALUE
    # Of values inside a tuple. codecs/codec has their meanings.
    FAULT_WRONG_SIZE
    FAULT_UNKNOWN_TYPE
    FAULT_SETTING
    FAULT_ZONE
    FAULT_UNREPRESENTABLE
    FAULT_TOO_LOW
    FAULT_TOO_HIGH
    FAULT_LIMIT_BATCH
    FAULT_LIMIT_EXPANSION
    # Not about the payload: these become MemoryError and ValueError.
    FAULT_NO_MEMORY
    FAULT_BAD_ARRAY
    # Not a fault: a scan that assumed no stream has found one. The caller resolves the streams completely.
    STREAM_SEEN

cdef extern from *:
    # Helps the compiler to lay out code: faults are rare, and must not use the registers of the hot path.
    bint unlikely "unlikely"(bint condition) noexcept nogil

cdef struct Fault:
    FaultCode code
    uint8_t tag
    int16_t label       # index into the plan's labels, -1 if the fault is about the whole payload
    int32_t column      # ordinal in a tuple or Relation, -1 outside
    int64_t row
    int64_t relation    # OID, -1 if the message has none or it could not be read
    size_t offset
    int64_t expected
    int64_t seen

cdef struct Faults:
    # Faults of a batch, kept until the GIL is held and they become texts.
    Fault *items
    size_t n
    size_t capacity


cdef inline FaultCode keep_fault(Faults *faults, const Fault *fault) noexcept nogil:
    if not ensure_capacity(<void **>&faults.items, faults.n, &faults.capacity, sizeof(Fault), 0):
        return FAULT_NO_MEMORY
    faults.items[faults.n] = fault[0]
    faults.n += 1
    return OK


cdef object error_of(const Fault *fault, tuple labels, bint with_row)
