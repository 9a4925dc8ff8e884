"""The current version of each relation."""

from libc.stdlib cimport calloc, free

from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK


cdef FaultCode widen(Versions *versions) noexcept nogil:
    """Make the first slots, or at least four times as many as are in use; then more than half of them are free."""
    cdef VersionSlot *old = versions.slots
    cdef size_t n_old = versions.mask + 1 if old != NULL else 0
    cdef size_t n_kept = 0
    cdef size_t n = 64
    cdef size_t i
    cdef VersionSlot *wider
    for i in range(n_old):
        n_kept += is_kept(&old[i])
    while n < 4 * (n_kept + 1):
        n *= 2
    wider = <VersionSlot *>calloc(n, sizeof(VersionSlot))
    if wider == NULL:
        return FAULT_NO_MEMORY
    for i in range(n):
        wider[i].relation_id = -1
    versions.slots = wider
    versions.mask = n - 1
    versions.n = n_kept
    for i in range(n_old):
        if is_kept(&old[i]):
            slot_of(versions, old[i].stream, old[i].relation_id)[0] = old[i]
    free(old)
    return OK


cdef inline bint is_kept(const VersionSlot *slot) noexcept nogil:
    return slot.relation_id != -1 and (slot.version != UNKNOWN_RELATION or slot.is_contradicted)


cdef VersionSlot *taken_slot(Versions *versions, int64_t stream, int64_t relation_id) noexcept nogil:
    """The slot of a relation, which is used afterwards; NULL without memory."""
    cdef VersionSlot *slot
    if 2 * (versions.n + 1) > versions.mask and widen(versions) != OK:
        return NULL
    slot = slot_of(versions, stream, relation_id)
    if slot.relation_id == -1:
        slot.stream = stream
        slot.relation_id = relation_id
        slot.version = UNKNOWN_RELATION
        slot.is_contradicted = False
        versions.n += 1
    return slot


cdef class VersionTable:
    """The current versions: in each stream those that it has sent, and those that apply everywhere else.

    It is kept from batch to batch. The cost of its operations does not depend on its size.
    """

    def __cinit__(self):
        self.versions.slots = NULL
        self.versions.mask = self.versions.n = 0
        if widen(&self.versions) != OK:
            raise MemoryError("no memory for the versions of relations")

    def __dealloc__(self):
        free(self.versions.slots)

    def set(self, int64_t stream, int64_t relation_id, int32_t version):
        """Set the current version of a relation, in a stream or, with stream -1, outside; -1 for none."""
        cdef VersionSlot *slot = taken_slot(&self.versions, stream, relation_id)
        if slot == NULL:
            raise MemoryError("no memory for the versions of relations")
        slot.version = version

    def set_contradicted(self, int64_t relation_id, bint is_contradicted):
        """Set whether the caller decides about the relation's rows inside streams."""
        cdef VersionSlot *slot = taken_slot(&self.versions, NO_STREAM, relation_id)
        if slot == NULL:
            raise MemoryError("no memory for the versions of relations")
        slot.is_contradicted = is_contradicted
