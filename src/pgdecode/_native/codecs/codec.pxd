"""What a codec is, a pair of functions that append one decoded value to a column; and the table of all codecs."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t

from pgdecode._native.arrow.builder cimport Cell
from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.transcoding cimport Charset

# A decoder gets exactly the bytes of a value: there is no NUL after them. It appends exactly one item, or returns a
# fault; it may then leave an incomplete item, which the caller removes. Faults: FAULT_BAD_VALUE for a value that the
# type does not have, FAULT_WRONG_SIZE for a binary value of another length, FAULT_ENCODING for text that is not UTF-8,
# FAULT_UNREPRESENTABLE, FAULT_TOO_LOW or FAULT_TOO_HIGH for a value that PostgreSQL has but the Arrow type does not
# (NaN; below or above its range), FAULT_SETTING for text written under a setting that was not declared.
ctypedef FaultCode (*Decoder)(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil

cdef struct Cells:
    # One column of a block of rows.
    const Cell *first
    size_t stride          # cells from one row to the next
    size_t n

# A block decoder appends the values of cells from `start` on: text, binary values and nulls, up to the first that does
# not have the common form. Returns the index of that cell. The decoders above handle other forms, and all faults.
ctypedef size_t (*BlockDecoder)(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil

# Writes the text of a binary value, up to MOST_WRITTEN bytes. Returns its end, or NULL for an invalid value.
ctypedef uint8_t *(*TextWriter)(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil

cdef enum:
    MOST_WRITTEN = 36      # bytes: 294276-12-31 23:59:59.999999+00 BC, which does not exist, would have 35

cdef enum:
    # OIDs from pg_type.
    INT8 = 20
    INT2 = 21
    INT4 = 23
    FLOAT4 = 700
    FLOAT8 = 701
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    INTERVAL = 1186
    NUMERIC = 1700

cdef struct Codec:
    Decoder from_text
    Decoder from_binary
    BlockDecoder block     # NULL if the type has none
    TextWriter write_binary  # of a text form; NULL if it has none
    size_t binary_bytes    # of each value that `write_binary` can write
    const Codec *element   # of an array, range, multirange or vector; otherwise NULL
    const Codec *fields    # of a composite, in order; of a record, all types that its fields may have, ascending by OID
    size_t n_fields
    int32_t precision      # of a decimal
    int32_t scale
    uint32_t oid           # of the type, if its binary form contains OIDs
    uint8_t delimiter      # between elements of an array of the type: a comma, but a semicolon for box
    bint declared          # by the caller: a domain is accepted, although its OID is not that of its base type
    int style              # of dates that are not written in style ISO: numbered by datestyles
    Charset *charset       # of the text in the binary form; NULL for UTF-8


cdef inline bint is_of_type(const Codec *codec, uint32_t oid) noexcept nogil:
    """Whether the OID that a container sends with an element or field is the expected one."""
    # FirstGenbkiObjectId, access/transam.h: OIDs from there on are of user-defined types, or domains of
    # information_schema.
    return codec.oid == 0 or codec.oid == oid or (codec.declared and oid >= 10000)


cdef class CodecEntry:
    """An entry of `CODECS`."""

    cdef Codec codec

cdef dict CODECS  # name -> CodecEntry


# A family calls these for its codecs when its module is imported.
cdef int add_codec(str name, Decoder from_text, Decoder from_binary, BlockDecoder block=*) except -1
