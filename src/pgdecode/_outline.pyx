"""Lists the changes in a scanned batch and tells which transaction each belongs to.

It follows what nearly all data is made of, Begin, rows and Commit, and stops at everything else for its caller: the
rules of streams and of two-phase commit are in `pgdecode.transactions`.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from pgdecode._fault cimport FAULT_NO_MEMORY, OK, FaultCode, rarely
from pgdecode._memory cimport Bytes, free_bytes, grow, hand_over
from pgdecode._plan cimport PLAN

cdef enum:
    # Of a change's version, where it has none.
    UNKNOWN_RELATION = -1
    BAD_PAYLOAD = -2
    IN_DOUBT = -3          # and below: its last Relation message was bad

cdef enum State:
    OUTSIDE   # of any transaction: a row is for the caller to judge
    PLAIN     # in a transaction that Begin opened in this batch; its Commit is followed here
    LISTED    # in another one: rows are listed, and what ends it is for the caller

cdef struct Change:
    int64_t row          # of the payload
    int64_t relation_id  # -1 where the payload is bad
    int64_t xid          # the row's own, of a sub-transaction perhaps; 0 outside a stream
    int32_t version      # of the relation, or one of the enum above
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

cdef struct Slot:
    int64_t relation_id  # -1 where the slot is free
    int32_t version


cdef FaultCode make_room(void **items, size_t n, size_t *capacity, size_t width) noexcept nogil:
    """Room for one more item."""
    cdef size_t wanted
    cdef void *moved
    if not rarely(n == capacity[0]):
        return OK
    wanted = 256 if capacity[0] == 0 else 2 * capacity[0]
    moved = realloc(items[0], wanted * width)
    if moved == NULL:
        return FAULT_NO_MEMORY
    items[0] = moved
    capacity[0] = wanted
    return OK


cdef inline int64_t value_at(const int64_t *values, int64_t row) noexcept nogil:
    return 0 if values == NULL else values[row]


cdef class Outline:
    """The changes of one batch, in the order of their payloads, and the ranges of them to deliver, in order."""

    cdef const uint8_t[::1] kinds
    cdef const int64_t *xids
    cdef const int64_t *relation_ids
    cdef const int64_t *lsns
    cdef const int64_t *timestamps
    cdef list held           # the buffers behind these
    cdef int64_t n_rows
    cdef uint8_t insert, update, delete, message, origin, begin, commit
    cdef Change *changes
    cdef Range *ranges
    cdef Outcome *outcomes
    cdef size_t n_changes, n_ranges, n_outcomes
    cdef size_t room_changes, room_ranges, room_outcomes
    cdef Slot *slots
    cdef uint64_t mask       # one less than there are slots
    cdef size_t n_slots      # that are taken
    cdef State state
    cdef bint drop_duplicates
    cdef readonly int64_t xid        # of the plain transaction, while the state is PLAIN
    cdef readonly int64_t lsn        # its final LSN
    cdef readonly int64_t start      # its first change
    cdef readonly int64_t begin_row  # of its Begin
    cdef public int64_t last_lsn     # of the newest commit
    cdef readonly bint begun         # a Begin or Commit has come by

    def __cinit__(self, kinds, dict columns, int64_t n_rows, int64_t last_lsn, bint drop_duplicates):
        """`kinds`: a byte a row, the index of its message; `columns`: buffers of int64 by envelope column."""
        self.kinds = kinds
        self.held = []
        self.n_rows = n_rows
        self.last_lsn = last_lsn
        self.drop_duplicates = drop_duplicates
        self.xids = self.column(columns, "xid")
        self.relation_ids = self.column(columns, "relation_id")
        self.lsns = self.column(columns, "lsn")
        self.timestamps = self.column(columns, "timestamp")
        by_tag = PLAN.table.by_tag
        self.insert = by_tag[c"I"]
        self.update = by_tag[c"U"]
        self.delete = by_tag[c"D"]
        self.message = by_tag[c"M"]
        self.origin = by_tag[c"O"]
        self.begin = by_tag[c"B"]
        self.commit = by_tag[c"C"]
        self.widen()

    cdef const int64_t *column(self, dict columns, str name) except? NULL:
        """Values of a column, NULL where no row of the batch fills it."""
        cdef const uint8_t[::1] view
        if columns.get(name) is None or self.n_rows == 0:
            return NULL
        view = memoryview(columns[name]).cast("B")
        if view.shape[0] < 8 * self.n_rows:
            raise ValueError(f"column {name} is shorter than its batch")
        self.held.append(view)
        return <const int64_t *>&view[0]

    def __dealloc__(self):
        free(self.changes)
        free(self.ranges)
        free(self.outcomes)
        free(self.slots)

    def learn(self, dict versions):
        """Take over which version these relations have for the rows that come next; -1 is none."""
        cdef size_t i
        for relation_id, version in versions.items():
            if 2 * (self.n_slots + 1) > self.mask:
                self.widen()
            i = self.slot_of(relation_id)
            if self.slots[i].relation_id == -1:
                self.slots[i].relation_id = relation_id
                self.n_slots += 1
            # As Python compares: less the last positions there are, IN_DOUBT is past int64.
            self.slots[i].version = version if version > IN_DOUBT else IN_DOUBT

    cdef int widen(self) except -1:
        """Double the slots, or make the first; more than half of them are always free."""
        cdef Slot *old = self.slots
        cdef size_t n_old = self.mask + 1 if old != NULL else 0
        cdef size_t n = 2 * n_old if n_old else 64
        cdef size_t i
        cdef Slot *wider = <Slot *>calloc(n, sizeof(Slot))
        if wider == NULL:
            raise MemoryError()
        for i in range(n):
            wider[i].relation_id = -1
        self.slots = wider
        self.mask = n - 1
        for i in range(n_old):
            if old[i].relation_id != -1:
                self.slots[self.slot_of(old[i].relation_id)] = old[i]
        free(old)
        return 0

    cdef inline size_t slot_of(self, int64_t relation_id) noexcept nogil:
        """The relation's slot, or the free one where it would be; some slot is always free."""
        cdef uint64_t i = (<uint64_t>relation_id * <uint64_t>0x9E3779B97F4A7C15 >> 32) & self.mask
        while self.slots[i].relation_id != relation_id and self.slots[i].relation_id != -1:
            i = (i + 1) & self.mask
        return i

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
                if self.state == OUTSIDE:
                    return OK
                if self.list_change(row) != OK:
                    return FAULT_NO_MEMORY
            elif kind == self.begin and self.state == OUTSIDE:
                self.state = PLAIN
                self.begun = True
                self.xid = value_at(self.xids, row)
                self.lsn = value_at(self.lsns, row)
                self.start = <int64_t>self.n_changes
                self.begin_row = row
            elif kind == self.commit and self.state == PLAIN:
                self.state = OUTSIDE
                if self.put_commit(row) != OK:
                    return FAULT_NO_MEMORY
            elif kind != self.message and kind != self.origin:
                return OK
        at[0] = self.n_rows
        return OK

    cdef inline FaultCode list_change(self, int64_t row) noexcept nogil:
        cdef Change *change
        cdef int64_t relation_id = value_at(self.relation_ids, row)
        cdef const Slot *slot = &self.slots[self.slot_of(relation_id)]
        if make_room(<void **>&self.changes, self.n_changes, &self.room_changes, sizeof(Change)) != OK:
            return FAULT_NO_MEMORY
        change = &self.changes[self.n_changes]
        change.row = row
        change.relation_id = relation_id
        change.xid = value_at(self.xids, row)
        change.version = slot.version if slot.relation_id == relation_id else UNKNOWN_RELATION
        change.is_truncate = False
        self.n_changes += 1
        return OK

    cdef FaultCode put_commit(self, int64_t row) noexcept nogil:
        cdef int64_t lsn = value_at(self.lsns, row)
        if self.drop_duplicates and lsn <= self.last_lsn:
            return OK
        self.last_lsn = max(self.last_lsn, lsn)
        if self.start == <int64_t>self.n_changes:
            return OK
        if self.put_outcome(row, self.xid, lsn, value_at(self.timestamps, row), 1) != OK:
            return FAULT_NO_MEMORY
        return self.put_range(self.start, <int64_t>self.n_changes)

    cdef FaultCode put_outcome(
        self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed
    ) noexcept nogil:
        cdef Outcome *outcome
        if make_room(<void **>&self.outcomes, self.n_outcomes, &self.room_outcomes, sizeof(Outcome)) != OK:
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
        if make_room(<void **>&self.ranges, self.n_ranges, &self.room_ranges, sizeof(Range)) != OK:
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
        cdef Change *change
        if make_room(<void **>&self.changes, self.n_changes, &self.room_changes, sizeof(Change)) != OK:
            raise MemoryError("no memory for the changes of the batch")
        change = &self.changes[self.n_changes]
        change.row = row
        change.relation_id = relation_id
        change.xid = xid
        change.is_truncate = is_truncate
        change.version = self.slots[self.slot_of(relation_id)].version
        if self.slots[self.slot_of(relation_id)].relation_id != relation_id:
            change.version = UNKNOWN_RELATION
        self.n_changes += 1

    def list_bad(self, int64_t row):
        """List a bad payload, and deliver it at once: it belongs to no transaction."""
        self.list_row(row, -1, 0)
        self.changes[self.n_changes - 1].version = BAD_PAYLOAD
        self.decide(-1, 0, -1, -1, -1)
        self.deliver(self.n_changes - 1, self.n_changes)
        self.ranges[self.n_ranges - 1].is_bad = True

    def list_held(self, int64_t first_row, const int64_t[::1] relation_ids, const int64_t[::1] xids,
                  const int32_t[::1] versions, const uint8_t[::1] truncates):
        """List changes of earlier batches, whose payloads stand behind this batch's, from a row on."""
        cdef Py_ssize_t i
        for i in range(relation_ids.shape[0]):
            if make_room(<void **>&self.changes, self.n_changes, &self.room_changes, sizeof(Change)) != OK:
                raise MemoryError("no memory for the changes of the batch")
            self.changes[self.n_changes].row = first_row + i
            self.changes[self.n_changes].relation_id = relation_ids[i]
            self.changes[self.n_changes].xid = xids[i]
            self.changes[self.n_changes].version = versions[i]
            self.changes[self.n_changes].is_truncate = truncates[i] != 0
            self.n_changes += 1

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
        cdef Bytes[5] out
        cdef size_t n = 0
        cdef size_t k = 0
        cdef int64_t start, end, i
        cdef int j
        cdef size_t[5] widths = [8, 8, 8, 4, 1]
        memset(out, 0, sizeof(out))
        for start, end in ranges:
            if start < 0 or end > <int64_t>self.n_changes:
                raise IndexError("there are no such changes")
            n += <size_t>(end - start)
        try:
            for j in range(5):
                if grow(&out[j], n * widths[j]) != OK:
                    raise MemoryError("no memory for the changes of the batch")
            for start, end in ranges:
                for i in range(start, end):
                    if self.changes[i].version == BAD_PAYLOAD:
                        continue
                    (<int64_t *>out[0].data)[k] = self.changes[i].row
                    (<int64_t *>out[1].data)[k] = self.changes[i].relation_id
                    (<int64_t *>out[2].data)[k] = self.changes[i].xid
                    (<int32_t *>out[3].data)[k] = self.changes[i].version
                    out[4].data[k] = self.changes[i].is_truncate
                    k += 1
            for j in range(5):
                out[j].size = k * widths[j]
            return tuple([hand_over(&out[j]) for j in range(5)])
        finally:
            for j in range(5):
                free_bytes(&out[j])

    def row_of(self, int64_t change):
        """Row of a change's payload."""
        if not 0 <= change < <int64_t>self.n_changes:
            raise IndexError("there is no such change")
        return self.changes[change].row

    def first_unknown(self):
        """(row, relation OID, version) of the first row whose relation is not known or in doubt, or None."""
        cdef size_t i
        cdef int32_t version
        for i in range(self.n_changes):
            version = self.changes[i].version
            if version != UNKNOWN_RELATION and version != IN_DOUBT or self.changes[i].row >= self.n_rows:
                continue
            # A truncate needs no columns, and is good where its table is not known.
            if version == IN_DOUBT or self.kinds[self.changes[i].row] in (self.insert, self.update, self.delete):
                return self.changes[i].row, self.changes[i].relation_id, version
        return None

    def delivered(self):
        """What is delivered, in order, as buffers by name.

        rows, relation_ids, xids, subxids, versions, outcomes, streamed and truncates have an item a change (xids and
        subxids 0 for none, streamed and truncates 1 or 0);
        outcome_rows, lsns, timestamps and committed an item an outcome (-1 for none).
        """
        cdef Bytes[12] out
        cdef Change *change
        cdef Range *range_
        cdef int64_t i, xid
        cdef size_t r, k = 0, n = 0
        cdef int j
        cdef size_t[12] widths = [8, 8, 8, 8, 4, 4, 1, 1, 8, 8, 8, 1]
        memset(out, 0, sizeof(out))
        for r in range(self.n_ranges):
            n += <size_t>(self.ranges[r].end - self.ranges[r].start)
        try:
            for j in range(12):
                if grow(&out[j], (n if j < 8 else self.n_outcomes) * widths[j]) != OK:
                    raise MemoryError("no memory for the changes of the batch")
            with nogil:
                for r in range(self.n_ranges):
                    range_ = &self.ranges[r]
                    xid = self.outcomes[range_.outcome].xid
                    for i in range(range_.start, range_.end):
                        change = &self.changes[i]
                        if change.version == BAD_PAYLOAD and not range_.is_bad:
                            continue
                        (<int64_t *>out[0].data)[k] = change.row
                        (<int64_t *>out[1].data)[k] = change.relation_id
                        (<int64_t *>out[2].data)[k] = xid
                        (<int64_t *>out[3].data)[k] = change.xid if change.xid != xid else 0
                        (<int32_t *>out[4].data)[k] = change.version
                        (<int32_t *>out[5].data)[k] = range_.outcome
                        out[6].data[k] = change.xid != 0
                        out[7].data[k] = change.is_truncate
                        k += 1
                for r in range(self.n_outcomes):
                    (<int64_t *>out[8].data)[r] = self.outcomes[r].row
                    (<int64_t *>out[9].data)[r] = self.outcomes[r].lsn
                    (<int64_t *>out[10].data)[r] = self.outcomes[r].timestamp
                    (<int8_t *>out[11].data)[r] = self.outcomes[r].committed
            for j in range(12):
                out[j].size = (k if j < 8 else self.n_outcomes) * widths[j]
            names = (
                "rows", "relation_ids", "xids", "subxids", "versions", "outcomes", "streamed", "truncates",
                "outcome_rows", "lsns", "timestamps", "committed",
            )
            return {name: hand_over(&out[j]) for j, name in enumerate(names)}
        finally:
            for j in range(12):
                free_bytes(&out[j])
