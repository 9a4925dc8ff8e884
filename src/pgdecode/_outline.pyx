"""Lists the changes in a scanned batch and tells which transaction each belongs to.

It follows what nearly all data is made of, Begin, rows and Commit, and stops at everything else for its caller: the
rules of streams and of two-phase commit are in `pgdecode.transactions`.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

from pgdecode._changes cimport Change, Outcome, Range, Wanted, delivered_of, held_of, is_wanted
from pgdecode._cursor cimport be32, be64
from pgdecode._envelope cimport EPOCH_SHIFT_US
from pgdecode._fault cimport FAULT_NO_MEMORY, OK, FaultCode, rarely
from pgdecode._plan cimport PLAN, MessagePlan, PlanTable, offset_of
from pgdecode._source cimport PRESENT, Segment, Source, Span, payload_at
from pgdecode._versions cimport (
    BAD_PAYLOAD,
    IN_DOUBT,
    UNKNOWN_RELATION,
    Versions,
    free_versions,
    open_versions,
    put_version,
    version_of,
)
from pgdecode._walk cimport STREAMED

cdef enum State:
    OUTSIDE   # of any transaction: a row is for the caller to judge
    PLAIN     # in a transaction that Begin opened in this batch; its Commit is followed here
    LISTED    # in another one: rows are listed, and what ends it is for the caller


cdef enum:
    LEAST_ROOM = 256
    MOST_AT_FIRST = 1 << 17
    FEW = 4  # messages of a transaction, with its Begin and Commit


cdef FaultCode make_room(void **items, size_t n, size_t *capacity, size_t width, size_t expected) noexcept nogil:
    """Room for one more item of about so many: moving them from room to room would take longer than listing them."""
    cdef size_t wanted
    cdef void *moved
    if not rarely(n == capacity[0]):
        return OK
    wanted = 2 * capacity[0] if capacity[0] else max(LEAST_ROOM, min(expected, MOST_AT_FIRST))
    moved = realloc(items[0], wanted * width)
    if moved == NULL:
        return FAULT_NO_MEMORY
    items[0] = moved
    capacity[0] = wanted
    return OK


cdef struct Ends:
    # Where the fields of Begin and Commit stand, in bytes from the tag on.
    int begin_xid
    int begin_lsn
    int commit_lsn
    int commit_timestamp


cdef Ends ends_of(const PlanTable *plan) except *:
    cdef Ends ends
    ends.begin_xid = offset_of(&plan.messages[plan.by_tag[c"B"]], "xid")
    ends.begin_lsn = offset_of(&plan.messages[plan.by_tag[c"B"]], "lsn")
    ends.commit_lsn = offset_of(&plan.messages[plan.by_tag[c"C"]], "lsn")
    ends.commit_timestamp = offset_of(&plan.messages[plan.by_tag[c"C"]], "timestamp")
    return ends


cdef Ends ENDS = ends_of(&PLAN.table)


cdef class Outline:
    """The changes of one batch, in the order of their payloads, and the ranges of them to deliver, in order."""

    cdef Source source
    cdef const Segment *payloads
    cdef const uint8_t[::1] kinds
    cdef const uint8_t[::1] verdicts  # of the scan
    cdef bint has_verdicts   # else no payload carries an xid
    cdef const PlanTable *plan
    cdef int64_t n_rows
    cdef uint8_t insert, update, delete, message, origin, begin, commit
    cdef Change *changes
    cdef Range *ranges
    cdef Outcome *outcomes
    cdef size_t n_changes, n_ranges, n_outcomes
    cdef size_t room_changes, room_ranges, room_outcomes
    cdef Versions versions   # of the relations, for the rows that come next
    cdef State state
    cdef bytes wanted        # of each version, a byte whether its changes are; None where all are
    cdef Wanted versions_wanted
    cdef bint drop_duplicates
    cdef bint has_unknown            # a change without a version has come by
    cdef readonly int64_t xid        # of the plain transaction, while the state is PLAIN
    cdef readonly int64_t lsn        # its final LSN
    cdef readonly int64_t start      # its first change
    cdef readonly int64_t begin_row  # of its Begin
    cdef public int64_t last_lsn     # of the newest commit
    cdef readonly bint begun         # a Begin or Commit has come by
    cdef readonly bint has_rows      # an Insert, Update or Delete has
    cdef readonly int64_t first_end  # row of the first Begin or Commit, -1 before one has come by
    cdef readonly int64_t last_end   # row of the last one

    def __cinit__(
        self, Source source, kinds, verdicts, int64_t last_lsn, bint drop_duplicates, bytes wanted=None
    ):
        """Begin before the first row.

        Parameters
        ----------
        source : Source
            One array of payloads, which have been scanned.
        kinds : bytes-like
            A byte a row, the index of its message.
        verdicts : bytes-like or None
            Those of the scan, a byte a row; None where no row is in a stream.
        wanted : bytes, optional
            Of each version, whether its changes are listed and delivered; changes without a version always are. Not
            where the places of changes in their transactions count, see `deliver_alive`.
        """
        if source.n_segments != 1 or len(kinds) < source.n_rows:
            raise ValueError("kinds are not those of one array of payloads")
        self.source = source
        self.payloads = &source.segments[0]
        self.n_rows = source.n_rows
        self.kinds = kinds
        if verdicts is not None:
            if len(verdicts) < source.n_rows:
                raise ValueError("verdicts are fewer than payloads")
            self.verdicts = verdicts
            self.has_verdicts = self.n_rows > 0
        self.wanted = wanted
        if wanted is not None:
            self.versions_wanted.is_chosen = True
            self.versions_wanted.items = wanted
            self.versions_wanted.n = len(wanted)
        self.first_end = self.last_end = -1
        self.last_lsn = last_lsn
        self.drop_duplicates = drop_duplicates
        self.plan = &PLAN.table
        self.insert = self.plan.by_tag[c"I"]
        self.update = self.plan.by_tag[c"U"]
        self.delete = self.plan.by_tag[c"D"]
        self.message = self.plan.by_tag[c"M"]
        self.origin = self.plan.by_tag[c"O"]
        self.begin = self.plan.by_tag[c"B"]
        self.commit = self.plan.by_tag[c"C"]
        if open_versions(&self.versions) != OK:
            raise MemoryError()

    def __dealloc__(self):
        free(self.changes)
        free(self.ranges)
        free(self.outcomes)
        free_versions(&self.versions)

    def learn(self, dict versions):
        """Take over which version these relations have for the rows that come next; -1 is none."""
        for relation_id, version in versions.items():
            # As Python compares: less the last positions there are, IN_DOUBT is past int64.
            if put_version(&self.versions, relation_id, version if version > IN_DOUBT else IN_DOUBT) != OK:
                raise MemoryError()

    def enter(self):
        """A transaction is open that is not for this class to end."""
        self.state = LISTED

    def leave(self):
        """No transaction is open."""
        self.state = OUTSIDE

    @property
    def is_plain(self):
        return self.state == PLAIN

    @property
    def n(self):
        """Changes so far."""
        return self.n_changes

    def follow(self, int64_t row):
        """List the changes from a row on; the first row that is for the caller, or the number of rows."""
        cdef FaultCode code
        with nogil:
            code = self.follow_rows(&row)
        if code != OK:
            raise MemoryError("no memory for the changes of the batch")
        return row

    cdef FaultCode follow_rows(self, int64_t *at) noexcept nogil:
        cdef int64_t row
        cdef uint8_t kind
        for row in range(at[0], self.n_rows):
            kind = self.kinds[row]
            at[0] = row
            if kind == self.insert or kind == self.update or kind == self.delete:
                self.has_rows = True
                if self.state == OUTSIDE:
                    return OK
                if self.list_change(row, &self.plan.messages[kind]) != OK:
                    return FAULT_NO_MEMORY
            elif kind == self.begin and self.state == OUTSIDE:
                self.state = PLAIN
                self.begun = True
                self.end_at(row)
                self.xid = self.uint32_at(row, ENDS.begin_xid)
                self.lsn = self.int64_at(row, ENDS.begin_lsn)
                self.start = <int64_t>self.n_changes
                self.begin_row = row
            elif kind == self.commit and self.state == PLAIN:
                self.state = OUTSIDE
                self.end_at(row)
                if self.put_commit(row) != OK:
                    return FAULT_NO_MEMORY
            elif kind != self.message and kind != self.origin:
                return OK
        at[0] = self.n_rows
        return OK

    cdef inline const uint8_t *field_at(self, int64_t row, size_t at, size_t width) noexcept nogil:
        """A field of a payload, NULL where that ends before: never of one that the scan has found good."""
        cdef Span payload
        if payload_at(self.payloads, row, &payload) != PRESENT or payload.length < at + width:
            return NULL
        return payload.data + at

    cdef inline int64_t uint32_at(self, int64_t row, size_t at) noexcept nogil:
        cdef const uint8_t *p = self.field_at(row, at, 4)
        return 0 if p == NULL else <int64_t>be32(p)

    cdef inline int64_t int64_at(self, int64_t row, size_t at) noexcept nogil:
        cdef const uint8_t *p = self.field_at(row, at, 8)
        return 0 if p == NULL else <int64_t>be64(p)

    cdef inline FaultCode list_change(self, int64_t row, const MessagePlan *message) noexcept nogil:
        cdef int64_t xid = 0, relation_id
        cdef int32_t version
        cdef size_t at = 1 + message.relation_at
        if self.has_verdicts and self.verdicts[row] & STREAMED:
            xid = self.uint32_at(row, 1)
            at += 4
        relation_id = self.uint32_at(row, at)
        version = version_of(&self.versions, relation_id)
        if not is_wanted(&self.versions_wanted, version):
            return OK
        return self.put_change(row, relation_id, xid, version, False)

    cdef inline FaultCode put_change(
        self, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate
    ) noexcept nogil:
        cdef Change *change
        if make_room(
            <void **>&self.changes, self.n_changes, &self.room_changes, sizeof(Change), <size_t>self.n_rows
        ) != OK:
            return FAULT_NO_MEMORY
        change = &self.changes[self.n_changes]
        change.row = row
        change.relation_id = relation_id
        change.xid = xid
        change.version = version
        change.is_truncate = is_truncate
        self.has_unknown |= version < 0
        self.n_changes += 1
        return OK

    cdef inline void end_at(self, int64_t row) noexcept nogil:
        if self.first_end < 0:
            self.first_end = row
        self.last_end = row

    cdef FaultCode put_commit(self, int64_t row) noexcept nogil:
        cdef int64_t lsn = self.int64_at(row, ENDS.commit_lsn)
        cdef int64_t since_2000 = self.int64_at(row, ENDS.commit_timestamp)
        if self.drop_duplicates and lsn <= self.last_lsn:
            return OK
        self.last_lsn = max(self.last_lsn, lsn)
        if self.start == <int64_t>self.n_changes:
            return OK
        # As numbers without sign: the sum may pass the greatest.
        if self.put_outcome(
            row, self.xid, lsn, <int64_t>(<uint64_t>since_2000 + <uint64_t>EPOCH_SHIFT_US), 1
        ) != OK:
            return FAULT_NO_MEMORY
        return self.put_range(self.start, <int64_t>self.n_changes)

    cdef FaultCode put_outcome(
        self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed
    ) noexcept nogil:
        cdef Outcome *outcome
        cdef size_t expected = <size_t>self.n_rows // FEW
        if make_room(<void **>&self.outcomes, self.n_outcomes, &self.room_outcomes, sizeof(Outcome), expected) != OK:
            return FAULT_NO_MEMORY
        outcome = &self.outcomes[self.n_outcomes]
        outcome.row = row
        outcome.xid = xid
        outcome.lsn = lsn
        outcome.timestamp = timestamp
        outcome.committed = committed
        self.n_outcomes += 1
        return OK

    cdef FaultCode put_range(self, int64_t start, int64_t end) noexcept nogil:
        """Deliver changes with the newest outcome."""
        cdef Range *range_
        cdef size_t expected = <size_t>self.n_rows // FEW
        if make_room(<void **>&self.ranges, self.n_ranges, &self.room_ranges, sizeof(Range), expected) != OK:
            return FAULT_NO_MEMORY
        range_ = &self.ranges[self.n_ranges]
        range_.start = start
        range_.end = end
        range_.outcome = <int32_t>(self.n_outcomes - 1)
        range_.is_bad = False
        self.n_ranges += 1
        return OK

    def list_row(self, int64_t row, int64_t relation_id, int64_t xid, bint is_truncate=False):
        """List a change for the caller, perhaps a table that a Truncate names."""
        cdef int32_t version = version_of(&self.versions, relation_id)
        if self.put_change(row, relation_id, xid, version, is_truncate) != OK:
            raise MemoryError("no memory for the changes of the batch")

    def list_bad(self, int64_t row):
        """List a bad payload, and deliver it at once: it belongs to no transaction."""
        if self.put_change(row, -1, 0, BAD_PAYLOAD, False) != OK:
            raise MemoryError("no memory for the changes of the batch")
        self.decide(-1, 0, -1, -1, -1)
        self.deliver(self.n_changes - 1, self.n_changes)
        self.ranges[self.n_ranges - 1].is_bad = True

    def list_held(self, int64_t first_row, Source payloads, const int64_t[::1] relation_ids, const int64_t[::1] xids,
                  const int32_t[::1] versions):
        """List changes of earlier batches, whose payloads, in one array, stand behind this batch's, from a row on."""
        cdef Py_ssize_t i, n = relation_ids.shape[0]
        cdef Span payload
        cdef bint is_truncate
        if payloads.n_segments != 1 or not payloads.n_rows == n == xids.shape[0] == versions.shape[0]:
            raise ValueError("held changes are cut")
        for i in range(n):
            is_truncate = (
                payload_at(&payloads.segments[0], i, &payload) == PRESENT
                and payload.length > 0
                and payload.data[0] == c"T"
            )
            if self.put_change(first_row + i, relation_ids[i], xids[i], versions[i], is_truncate) != OK:
                raise MemoryError("no memory for the changes of the batch")

    def decide(self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed):
        """Make an outcome, for the changes that are delivered next; its number."""
        if self.put_outcome(row, xid, lsn, timestamp, committed) != OK:
            raise MemoryError("no memory for the changes of the batch")
        return self.n_outcomes - 1

    def deliver(self, int64_t start, int64_t end):
        """Deliver changes start to end with the newest outcome."""
        if start < 0 or end > <int64_t>self.n_changes:
            raise IndexError("there are no such changes")
        if start < end and self.put_range(start, end) != OK:
            raise MemoryError("no memory for the changes of the batch")

    def deliver_alive(self, int64_t start, int64_t end, int64_t place, dict aborted, bint alive, int64_t step=1):
        """Deliver those of changes start to end that no abort of their sub-transaction has undone, or the others.

        Parameters
        ----------
        place : int
            Of the first of them in its transaction.
        aborted : dict
            xid of each sub-transaction that was aborted -> how many changes of its transaction came before that.
        step : int
            How far the place moves with each change: 0 where places are positions, and no abort comes in between.
        """
        cdef int64_t i
        cdef int64_t begin = start
        cdef int64_t cut = 0, xid = -1
        cdef bint wanted
        if start < 0 or end > <int64_t>self.n_changes:
            raise IndexError("there are no such changes")
        for i in range(start, end):
            if self.changes[i].xid != xid:
                xid = self.changes[i].xid
                cut = aborted.get(xid, 0)
            wanted = (place + step * (i - start) >= cut) == alive
            if not wanted:
                self.deliver(begin, i)
                begin = i + 1
        self.deliver(begin, end)

    def rows_of(self, list ranges):
        """(rows, relation OIDs, xids, versions, whether it is a Truncate's) of changes to be held, as buffers."""
        return held_of(self.changes, self.n_changes, ranges)

    def row_of(self, int64_t change):
        """Row of a change's payload."""
        if not 0 <= change < <int64_t>self.n_changes:
            raise IndexError("there is no such change")
        return self.changes[change].row

    def first_unknown(self):
        """(row, relation OID, version) of the first row whose relation is not known or in doubt, or None."""
        cdef size_t i
        cdef int32_t version
        if not self.has_unknown:
            return None
        for i in range(self.n_changes):
            version = self.changes[i].version
            if version != UNKNOWN_RELATION and version != IN_DOUBT or self.changes[i].row >= self.n_rows:
                continue
            # A truncate needs no columns, and is good where its table is not known.
            if version == IN_DOUBT or self.kinds[self.changes[i].row] in (self.insert, self.update, self.delete):
                return self.changes[i].row, self.changes[i].relation_id, version
        return None

    def meet_end(self, int64_t row):
        """Take notice of a Begin or Commit that is the caller's to deal with."""
        self.end_at(row)

    def delivered(self):
        """What is delivered, in order, as buffers by name, and what all of it has: see `delivered_of`."""
        return delivered_of(
            self.changes, self.ranges, self.n_ranges, self.outcomes, self.n_outcomes, &self.versions_wanted
        )
