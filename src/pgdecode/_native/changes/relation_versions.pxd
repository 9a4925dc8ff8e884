"""The current version of each relation: a hash table by stream and relation."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint64_t

from pgdecode._native.fault cimport FaultCode

cdef enum:
    # In place of the number of a version, as in pgdecode.relations.version_tracker.
    UNKNOWN_RELATION = -1
    BAD_PAYLOAD = -2
    INVALID_RELATION = -3  # the last Relation message was bad
    ASK_CALLER = -4        # the caller decides which version applies in this stream

cdef enum:
    NO_STREAM = -1         # in place of a top-level xid

cdef struct VersionSlot:
    int64_t stream         # top-level xid of the stream that sent it; NO_STREAM for everything else
    int64_t relation_id    # -1 in a free slot
    int32_t version        # UNKNOWN_RELATION if there is no current version
    bint is_contradicted   # without a stream: a Relation message has arrived whose stream is unknown

cdef struct Versions:
    VersionSlot *slots
    uint64_t mask          # number of slots minus 1
    size_t n               # used slots


cdef inline VersionSlot *slot_of(const Versions *versions, int64_t stream, int64_t relation_id) noexcept nogil:
    """The slot of a relation, or the free slot for it. There is always a free slot."""
    cdef uint64_t hashed = <uint64_t>(relation_id ^ ((stream + 1) << 17)) * <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t i = (hashed >> 32) & versions.mask
    cdef VersionSlot *slot = &versions.slots[i]
    while (slot.relation_id != relation_id or slot.stream != stream) and slot.relation_id != -1:
        i = (i + 1) & versions.mask
        slot = &versions.slots[i]
    return slot


cdef inline int32_t version_of(const Versions *versions, int64_t stream, int64_t relation_id) noexcept nogil:
    """The current version for the rows of a stream, or for rows outside streams; or a constant of the enum above."""
    cdef const VersionSlot *own
    cdef const VersionSlot *common = slot_of(versions, NO_STREAM, relation_id)
    if stream != NO_STREAM:
        if common.relation_id == relation_id and common.is_contradicted:
            return ASK_CALLER
        own = slot_of(versions, stream, relation_id)
        if own.relation_id == relation_id and own.version != UNKNOWN_RELATION:
            return own.version
    return common.version if common.relation_id == relation_id else UNKNOWN_RELATION


cdef class VersionTable:
    cdef Versions versions
