"""Checks the footer of a Parquet file for values that make pyarrow end the process: C++ exceptions that it does not
catch when it describes a column chunk (`SizeStatistics::Validate`, cpp/src/parquet/size_statistics.cc).

The footer is a structure of Thrift in the compact protocol (parquet.thrift of the format).
"""

from libc.stdint cimport int64_t, uint8_t

# Types of the compact protocol.
cdef enum:
    STOP = 0
    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12

# The kind of a structure or list. The names are those of parquet.thrift.
cdef enum:
    OTHER
    FILE_METADATA
    SCHEMA
    SCHEMA_ELEMENT
    ROW_GROUPS
    ROW_GROUP
    COLUMNS
    COLUMN_CHUNK
    COLUMN_METADATA
    SIZE_STATISTICS
    REPETITION_HISTOGRAM
    DEFINITION_HISTOGRAM

cdef enum:
    MOST_DEPTH = 64        # of structures and of the schema; real ones have less than ten
    BYTE_ARRAY = 6         # the physical type
    REQUIRED = 0
    REPEATED = 2

cdef struct Frame:
    int kind
    bint is_list
    int64_t left           # items of a list
    int item_type
    int64_t number         # of the last field of a structure


cdef struct Group:
    int64_t left           # children
    int repetition_level
    int definition_level


cdef class _Reader:
    """Reads structures, one value after the other."""

    cdef const uint8_t[::1] data
    cdef Py_ssize_t at
    cdef Frame frames[MOST_DEPTH]
    cdef int depth
    cdef Group groups[MOST_DEPTH]
    cdef int n_groups
    # Of the current element of the schema.
    cdef int64_t type, repetition, n_children
    cdef list leaves       # (greatest repetition level, greatest definition level, physical type)
    cdef int64_t column    # number of the current column chunk in its row group

    def __cinit__(self, const uint8_t[::1] data):
        self.data = data
        self.leaves = []

    cdef int64_t varint(self) except? -1:
        cdef uint8_t byte
        cdef int64_t found = 0
        cdef int shift = 0
        while True:
            if self.at >= self.data.shape[0]:
                raise ValueError("it ends within a value")
            byte = self.data[self.at]
            self.at += 1
            if shift < 63:
                found |= <int64_t>(byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found
            if shift > 63:
                raise ValueError("a number has more than ten bytes")

    cdef int64_t integer(self) except? -1:
        cdef int64_t found = self.varint()
        return (found >> 1) ^ -(found & 1)

    cdef int skip(self, int64_t n) except -1:
        if not 0 <= n <= self.data.shape[0] - self.at:
            raise ValueError("it ends within a value")
        self.at += n
        return 0

    cdef int byte(self) except -1:
        if self.at >= self.data.shape[0]:
            raise ValueError("it ends within a structure")
        self.at += 1
        return self.data[self.at - 1]

    cdef int push(self, int kind, bint is_list, int64_t left, int item_type) except -1:
        if self.depth == MOST_DEPTH:
            raise ValueError("its structures are nested too deeply")
        self.frames[self.depth] = Frame(kind, is_list, left, item_type, 0)
        self.depth += 1
        return 0

    cdef int run(self) except -1:
        """Read the footer."""
        cdef Frame *frame
        cdef int header, kind
        cdef int64_t number
        self.push(FILE_METADATA, False, 0, 0)
        while self.depth:
            frame = &self.frames[self.depth - 1]
            if frame.is_list:
                if frame.left == 0:
                    self.depth -= 1
                    continue
                frame.left -= 1
                if frame.kind == COLUMNS:
                    self.column += 1
                self.value(frame.kind, 0, frame.item_type, True)
                continue
            header = self.byte()
            if header == STOP:
                kind = frame.kind
                self.depth -= 1
                if kind == SCHEMA_ELEMENT:
                    self.end_element()
                continue
            number = frame.number + (header >> 4) if header >> 4 else self.integer()
            frame.number = number
            self.value(frame.kind, number, header & 15, False)
        return 0

    cdef int value(self, int parent, int64_t number, int type, bint in_list) except -1:
        """Read a value, or begin a structure or list."""
        cdef int64_t n, found
        cdef int header
        if type in (TRUE, FALSE):
            # A boolean is a byte in a list. The type of a boolean field is its value.
            return self.skip(1) if in_list else 0
        if type in (I16, I32, I64):
            found = self.integer()
            if parent == SCHEMA_ELEMENT:
                self.take_element(number, found)
            elif parent == SIZE_STATISTICS and number == 1:
                self.check_unencoded()
            return 0
        if type == BYTE:
            return self.skip(1)
        if type == DOUBLE:
            return self.skip(8)
        if type == BINARY:
            return self.skip(self.varint())
        if type == STRUCT:
            if parent == SCHEMA:
                self.type, self.repetition, self.n_children = -1, REQUIRED, 0
            return self.push(kind_of(parent, number, in_list), False, 0, 0)
        if type in (LIST, SET):
            header = self.byte()
            n = header >> 4 if header >> 4 != 15 else self.varint()
            # Each item has at least one byte.
            if not 0 <= n <= self.data.shape[0] - self.at:
                raise ValueError("it ends within a list")
            kind = kind_of(parent, number, in_list)
            if kind == COLUMNS:
                self.column = -1
            elif kind in (REPETITION_HISTOGRAM, DEFINITION_HISTOGRAM):
                self.check_histogram(kind == REPETITION_HISTOGRAM, n)
            return self.push(kind, True, n, header & 15)
        raise ValueError("a value has a type that Parquet does not use")

    cdef int take_element(self, int64_t number, int64_t found) except -1:
        if number == 1:
            self.type = found
        elif number == 3:
            self.repetition = found
        elif number == 5:
            self.n_children = found
        return 0

    cdef int end_element(self) except -1:
        """Add an element of the schema. Groups come before their children."""
        cdef int repetition = 0, definition = 0
        cdef Group *group
        if self.n_groups:
            group = &self.groups[self.n_groups - 1]
            group.left -= 1
            repetition = group.repetition_level + (self.repetition == REPEATED)
            definition = group.definition_level + (self.repetition != REQUIRED)
        if self.n_children > 0:
            if self.n_groups == MOST_DEPTH:
                raise ValueError("its schema is nested too deeply")
            self.groups[self.n_groups] = Group(self.n_children, repetition, definition)
            self.n_groups += 1
        else:
            self.leaves.append((repetition, definition, self.type))
        while self.n_groups and self.groups[self.n_groups - 1].left <= 0:
            self.n_groups -= 1
        return 0

    cdef tuple leaf(self):
        if not 0 <= self.column < len(self.leaves):
            raise ValueError("a row group has more columns than the schema")
        return self.leaves[self.column]

    cdef int check_histogram(self, bint is_repetition, int64_t n) except -1:
        repetition, definition, _ = self.leaf()
        if n and n != (repetition if is_repetition else definition) + 1:
            raise ValueError("a histogram of levels does not fit its column")
        return 0

    cdef int check_unencoded(self) except -1:
        if self.leaf()[2] != BYTE_ARRAY:
            raise ValueError("a column that is not of strings has a size of strings")
        return 0


cdef int kind_of(int parent, int64_t number, bint in_list) noexcept:
    """The kind of a structure or list inside another one."""
    if in_list:
        if parent == SCHEMA:
            return SCHEMA_ELEMENT
        if parent == ROW_GROUPS:
            return ROW_GROUP
        return COLUMN_CHUNK if parent == COLUMNS else OTHER
    if parent == FILE_METADATA and number == 2:
        return SCHEMA
    if parent == FILE_METADATA and number == 4:
        return ROW_GROUPS
    if parent == ROW_GROUP and number == 1:
        return COLUMNS
    if parent == COLUMN_CHUNK and number == 3:
        return COLUMN_METADATA
    if parent == COLUMN_METADATA and number == 16:
        return SIZE_STATISTICS
    if parent == SIZE_STATISTICS and number == 2:
        return REPETITION_HISTOGRAM
    return DEFINITION_HISTOGRAM if parent == SIZE_STATISTICS and number == 3 else OTHER


def check_footer(const uint8_t[::1] footer not None):
    """Check the metadata of a Parquet file, which pyarrow has parsed.

    Raises
    ------
    ValueError
        If statistics of sizes do not fit their columns.
    """
    (<_Reader>_Reader(footer)).run()
