"""Which version each relation has for the rows that come next."""

from libc.stdlib cimport calloc, free

from pgdecode._fault cimport FAULT_NO_MEMORY, OK


cdef FaultCode open_versions(Versions *versions) noexcept nogil:
    """Make the first slots. Faults: NO_MEMORY."""
    versions.slots = NULL
    versions.mask = versions.n = 0
    return widen(versions)


cdef FaultCode widen(Versions *versions) noexcept nogil:
    """Double the slots, or make the first; more than half of them are always free."""
    cdef Slot *old = versions.slots
    cdef size_t n_old = versions.mask + 1 if old != NULL else 0
    cdef size_t n = 2 * n_old if n_old else 64
    cdef size_t i
    cdef Slot *wider = <Slot *>calloc(n, sizeof(Slot))
    if wider == NULL:
        return FAULT_NO_MEMORY
    for i in range(n):
        wider[i].relation_id = -1
    versions.slots = wider
    versions.mask = n - 1
    for i in range(n_old):
        if old[i].relation_id != -1:
            slot_of(versions, old[i].relation_id)[0] = old[i]
    free(old)
    return OK


cdef FaultCode put_version(Versions *versions, int64_t relation_id, int32_t version) noexcept nogil:
    """Take over a version. Faults: NO_MEMORY."""
    cdef Slot *slot
    if 2 * (versions.n + 1) > versions.mask and widen(versions) != OK:
        return FAULT_NO_MEMORY
    slot = slot_of(versions, relation_id)
    if slot.relation_id == -1:
        slot.relation_id = relation_id
        versions.n += 1
    slot.version = version
    return OK


cdef void free_versions(Versions *versions) noexcept nogil:
    free(versions.slots)
    versions.slots = NULL
