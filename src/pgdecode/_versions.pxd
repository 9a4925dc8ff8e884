"""Which version each relation has for the rows that come next: a hash table by the relation's OID."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint64_t

from pgdecode._fault cimport FaultCode

cdef enum:
    # In place of a version.
    UNKNOWN_RELATION = -1
    BAD_PAYLOAD = -2
    IN_DOUBT = -3          # and below: its last Relation message was bad

cdef struct Slot:
    int64_t relation_id    # -1 where the slot is free
    int32_t version

cdef struct Versions:
    Slot *slots
    uint64_t mask          # one less than there are slots
    size_t n               # slots that are taken


cdef inline Slot *slot_of(const Versions *versions, int64_t relation_id) noexcept nogil:
    """The relation's slot, or the free one where it would be; some slot is always free."""
    cdef uint64_t i = (<uint64_t>relation_id * <uint64_t>0x9E3779B97F4A7C15 >> 32) & versions.mask
    while versions.slots[i].relation_id != relation_id and versions.slots[i].relation_id != -1:
        i = (i + 1) & versions.mask
    return &versions.slots[i]


cdef inline int32_t version_of(const Versions *versions, int64_t relation_id) noexcept nogil:
    """Its version, or one of the enum above."""
    cdef const Slot *slot = slot_of(versions, relation_id)
    return slot.version if slot.relation_id == relation_id else UNKNOWN_RELATION


cdef FaultCode open_versions(Versions *versions) noexcept nogil
cdef FaultCode put_version(Versions *versions, int64_t relation_id, int32_t version) noexcept nogil
cdef void free_versions(Versions *versions) noexcept nogil
