"""The changes of a batch, what of them is delivered, and how their transactions came out."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

cdef struct Change:
    int64_t row          # of the payload
    int64_t relation_id  # -1 where the payload is bad
    int64_t xid          # the row's own, of a sub-transaction perhaps; 0 outside a stream
    int32_t version      # of the relation, or what stands in its place, see _versions
    bint is_truncate

cdef struct Range:
    # Changes of one transaction that follow each other.
    int64_t start
    int64_t end
    int32_t outcome
    bint is_bad          # one bad payload; elsewhere bad payloads are passed over

cdef struct Outcome:
    int64_t row          # of the message that committed the transaction, -1 where there is none
    int64_t xid          # 0 where not known
    int64_t lsn
    int64_t timestamp
    int8_t committed     # 1, 0 aborted, -1 undecided

cdef struct VersionFilter:
    # The versions whose changes are delivered.
    bint is_chosen        # else all are
    const uint8_t *items  # a byte a version, not 0 for those; versions past the end are not
    int64_t n


cdef inline bint passes(const VersionFilter *filter, int32_t version) noexcept nogil:
    """Whether changes of a version pass the filter; those without one always do."""
    return not filter.is_chosen or version < 0 or (version < filter.n and filter.items[version] != 0)


cdef tuple buffered_of(const Change *changes, size_t n_changes, list ranges)
cdef object commit_rows_of(const Outcome *outcomes, size_t n_outcomes)
cdef tuple delivered_of(
    const Change *changes, const Range *ranges, size_t n_ranges, const Outcome *outcomes, size_t n_outcomes,
    const int64_t *commit_positions, const VersionFilter *filter, int64_t n_versions
)
