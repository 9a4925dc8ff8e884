"""Which version each relation has for the rows that come next: a hash table by stream and relation."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint64_t

from pgdecode._native.fault cimport FaultCode

cdef enum:
    # In place of a version's number, as in pgdecode.relations.version_tracker.
    UNKNOWN_RELATION = -1
    BAD_PAYLOAD = -2
    INVALID_RELATION = -3  # the last Relation message was bad
    ASK_CALLER = -4        # what counts in this stream is for the caller to say

cdef enum:
    NO_STREAM = -1         # in place of a top-level xid

cdef struct VersionSlot:
    int64_t stream         # top-level xid of the stream that sent it; NO_STREAM for what counts for all others
    int64_t relation_id    # -1 where the slot is free
    int32_t version        # UNKNOWN_RELATION where it counts no longer
    bint is_contradicted   # without a stream: a Relation message came of which nobody knows the stream

cdef struct Versions:
    VersionSlot *slots
    uint64_t mask          # one less than there are slots
    size_t n               # slots that are taken


cdef inline VersionSlot *slot_of(const Versions *versions, int64_t stream, int64_t relation_id) noexcept nogil:
    """The slot of a relation, or the free one where it would be; some slot is always free."""
    cdef uint64_t hashed = <uint64_t>(relation_id ^ ((stream + 1) << 17)) * <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t i = (hashed >> 32) & versions.mask
    cdef VersionSlot *slot = &versions.slots[i]
    while (slot.relation_id != relation_id or slot.stream != stream) and slot.relation_id != -1:
        i = (i + 1) & versions.mask
        slot = &versions.slots[i]
    return slot


cdef inline int32_t version_of(const Versions *versions, int64_t stream, int64_t relation_id) noexcept nogil:
    """Its version for the rows of a stream, or for rows outside streams; or one of the enum above."""
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
