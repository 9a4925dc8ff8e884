"""The changes of a batch, the ranges of them that are output, and the outcomes of their transactions."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from pgdecode._native.capacity cimport ensure_capacity
from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK, FaultCode

cdef enum:
    MAX_INITIAL = 1 << 17  # items

cdef struct Change:
    int64_t row          # of the payload
    int64_t relation_id  # -1 if the payload is bad
    int64_t xid          # of the row itself, perhaps of a sub-transaction; 0 outside a stream
    int32_t version      # of the relation, or a negative constant of relation_versions
    bint is_truncate

cdef struct Range:
    # Consecutive changes of one transaction.
    int64_t start
    int64_t end
    int32_t outcome
    bint is_bad          # one bad payload; other ranges leave bad payloads out

cdef struct Outcome:
    int64_t row          # of the message that committed the transaction, -1 without one
    int64_t xid          # -1 if unknown
    int64_t lsn
    int64_t timestamp
    int8_t committed     # 1, 0 aborted, -1 undecided

cdef struct VersionFilter:
    # The versions whose changes are output.
    bint is_chosen        # otherwise all are
    const uint8_t *items  # one byte for each version, not 0 for those; later versions are not
    int64_t n

cdef struct ChangeBuffers:
    Change *changes
    Range *ranges
    Outcome *outcomes
    size_t n_changes, n_ranges, n_outcomes
    size_t change_capacity, range_capacity, outcome_capacity
    size_t expected_changes   # how many to reserve memory for at first
    size_t expected_outcomes  # likewise, of outcomes and ranges
    bint has_unknown          # whether a change has no version


cdef inline bint passes(const VersionFilter *filter, int32_t version) noexcept nogil:
    """Whether changes of a version pass the filter; changes without a version always do."""
    return not filter.is_chosen or version < 0 or (version < filter.n and filter.items[version] != 0)


cdef inline FaultCode put_change(
    ChangeBuffers *out, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate
) noexcept nogil:
    cdef Change *change
    if not ensure_capacity(
        <void **>&out.changes, out.n_changes, &out.change_capacity, sizeof(Change), out.expected_changes
    ):
        return FAULT_NO_MEMORY
    change = &out.changes[out.n_changes]
    change.row = row
    change.relation_id = relation_id
    change.xid = xid
    change.version = version
    change.is_truncate = is_truncate
    out.has_unknown |= version < 0
    out.n_changes += 1
    return OK


cdef FaultCode put_outcome(
    ChangeBuffers *out, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed
) noexcept nogil
cdef FaultCode put_range(ChangeBuffers *out, int64_t start, int64_t end) noexcept nogil
cdef void open_changes(ChangeBuffers *out, int64_t n_rows) noexcept nogil
cdef void free_changes(ChangeBuffers *out) noexcept nogil
cdef int check_range(const ChangeBuffers *buffers, int64_t start, int64_t end) except -1
cdef tuple undecided_columns(const ChangeBuffers *buffers, list ranges)
cdef object commit_rows(const ChangeBuffers *buffers)
cdef tuple committed_columns(
    const ChangeBuffers *buffers, const int64_t *commit_positions, const VersionFilter *filter, int64_t n_versions
)
