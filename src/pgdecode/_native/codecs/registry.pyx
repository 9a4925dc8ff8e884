"""Finds a codec by its name, and builds the codecs of nested types."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport CELL_LEAD, Cell
from pgdecode._native.arrow.column_builder cimport Column, expect, finish_column, free_column, open_column, put_null
from pgdecode._native.arrow.payload_array cimport (
    ABSENT, CORRUPT, LAYOUT_OFFSETS32, LAYOUT_OFFSETS64, Presence, Segment, Source, Span, payload_at,
)
from pgdecode._native.codecs.block_decoder cimport put_cells
from pgdecode._native.codecs.codec cimport Cells, Codec
from pgdecode._native.codecs.containers.arrays cimport arrays_codec
from pgdecode._native.codecs.containers.composites cimport composites_codec
from pgdecode._native.codecs.containers.hstore cimport hstore_codec
from pgdecode._native.codecs.containers.ranges cimport ranges_codec
from pgdecode._native.codecs.containers.vectors cimport vectors_codec
from pgdecode._native.codecs.datestyles cimport datestyles_codec, style_of
from pgdecode._native.codecs.datetime cimport datetimes_codec
from pgdecode._native.codecs.geometric cimport geometric_codec
from pgdecode._native.codecs.interval cimport intervals_codec
from pgdecode._native.codecs.money cimport money_codec
from pgdecode._native.codecs.network cimport network_codec
from pgdecode._native.codecs.numbers cimport numbers_codec
from pgdecode._native.codecs.numeric cimport numeric_codec, numeric_floats_codec, numeric_forms_codec
from pgdecode._native.codecs.text cimport bits_codec, texts_codec
from pgdecode._native.codecs.text_forms cimport forms_codec
from pgdecode._native.codecs.textsearch cimport search_codec
from pgdecode._native.codecs.wrappers cimport saturating_codec, transcoded_codec
from pgdecode._native.fault cimport (
    FAULT_BAD_ARRAY, FAULT_TOO_HIGH, FAULT_UNREPRESENTABLE, OK, Fault, FaultCode, error_of,
)
from pgdecode._native.memory.transcoding cimport free_charset, open_charset

import pyarrow as pa

from pgdecode.types import encodings, pgtypes

cdef enum:
    BLOCK_VALUES = 512


cdef class CodecTree:
    def __cinit__(self, decoding):
        memset(&self.codec, 0, sizeof(self.codec))
        name = decoding.codec
        # One line for each family's finder.
        if not (
            numbers_codec(name, &self.codec)
            or texts_codec(name, &self.codec)
            or numeric_codec(name, &self.codec)
            or numeric_forms_codec(name, &self.codec)
            or datetimes_codec(name, &self.codec)
            or bits_codec(name, &self.codec)
            or arrays_codec(name, &self.codec)
            or ranges_codec(name, &self.codec)
            or hstore_codec(name, &self.codec)
            or vectors_codec(name, &self.codec)
            or geometric_codec(name, &self.codec)
            or intervals_codec(name, &self.codec)
            or network_codec(name, &self.codec)
            or search_codec(name, &self.codec)
            or forms_codec(name, &self.codec)
            or saturating_codec(name, &self.codec)
            or money_codec(name, &self.codec)
            or composites_codec(name, &self.codec)
            or datestyles_codec(name, &self.codec)
            or numeric_floats_codec(name, &self.codec)
            or transcoded_codec(name, &self.codec)
        ):
            raise LookupError(f"there is no codec {name!r}")
        self.codec.precision = decoding.precision
        self.codec.scale = decoding.scale
        self.codec.oid = decoding.oid
        self.codec.delimiter = ord(decoding.delimiter)
        if decoding.element is not None:
            self.element = CodecTree(decoding.element)
            self.codec.element = &self.element.codec
        if decoding.fields:
            self.keep_fields(decoding.fields)
        self.codec.declared = decoding.declared
        self.codec.style = style_of(decoding.style)
        if decoding.encoding:
            open_charset(&self.charset, encodings.decoder(decoding.encoding))
            self.codec.charset = &self.charset

    cdef int keep_fields(self, tuple fields) except -1:
        cdef size_t i
        self.trees = [CodecTree(field) for field in fields]
        self.fields = <Codec *>calloc(len(fields), sizeof(Codec))
        if self.fields == NULL:
            raise MemoryError()
        for i in range(<size_t>len(fields)):
            self.fields[i] = (<CodecTree>self.trees[i]).codec
        self.codec.fields = self.fields
        self.codec.n_fields = len(fields)
        return 0

    def __dealloc__(self):
        free(self.fields)
        free_charset(&self.charset)


cdef bint note_offsets(const Segment *segment, size_t first, size_t n, uint8_t kind, Cell *cells) noexcept nogil:
    """Note values of an array of 32-bit offsets without nulls; False where they leave its data."""
    cdef const int32_t *offsets = <const int32_t *>segment.index + segment.first + first
    cdef bint wrong = offsets[0] < 0 or <size_t>offsets[n] > segment.data_size
    cdef size_t i
    for i in range(n):
        wrong |= offsets[i + 1] < offsets[i]
        cells[i].value = segment.data + offsets[i]
        cells[i].length = <uint32_t>(offsets[i + 1] - offsets[i])
        cells[i].kind = kind
    return not wrong


cdef size_t note_values(const Segment *segment, size_t first, uint8_t kind, Cell *cells, bint *has_lead) noexcept nogil:
    """Note up to BLOCK_VALUES of a segment's values as cells of a kind; how many, 0 where the array is corrupt.

    Either all of them have the bytes in front of them that block decoders read, or none.
    """
    cdef Span value
    cdef Presence presence
    cdef bint lead
    cdef size_t n = 0
    has_lead[0] = False
    value.length = 0
    if segment.layout == LAYOUT_OFFSETS32 and segment.validity == NULL:
        n = min(<size_t>segment.n_rows - first, <size_t>BLOCK_VALUES)
        # Offsets ascend, so what the first one has in front of it, all have.
        has_lead[0] = (<const int32_t *>segment.index)[segment.first + <int64_t>first] >= CELL_LEAD
        if has_lead[0]:
            return n if note_offsets(segment, first, n, kind, cells) else 0
        n = 0
    while n < BLOCK_VALUES and first + n < <size_t>segment.n_rows:
        presence = payload_at(segment, <int64_t>(first + n), &value)
        if presence == CORRUPT or value.length > <size_t>0xFFFFFFFF:
            return 0
        if presence == ABSENT:
            cells[n].value = NULL
            cells[n].kind = c"n"
            n += 1
            continue
        # Of a view or a bytes object, what is in front may be anything.
        lead = segment.layout <= LAYOUT_OFFSETS64 and value.data - segment.data >= CELL_LEAD
        if n == 0:
            has_lead[0] = lead
        elif lead != has_lead[0]:
            break
        cells[n].value = value.data
        cells[n].length = <uint32_t>value.length
        cells[n].kind = kind
        n += 1
    return n


def decode_values(pg_type, values, *, binary, typmod=-1, unrepresentable="error", blocks=True):
    """Decode values of one type, a name or a Decoding, as a tuple's cells are decoded.

    `values` is an Arrow array of binary, or an iterable of bytes and None, which stays null. Without `blocks`, the
    decoder of single values is asked for each, as it is for what containers hold.
    """
    cdef CodecTree tree
    cdef Codec alone
    cdef const Codec *codec
    cdef Source source
    cdef Column column
    cdef FaultCode code = OK
    cdef Fault fault
    cdef Cells cells
    cdef Cell *noted = NULL
    cdef const Segment *segment
    cdef size_t at = 0
    cdef size_t first = 0
    cdef uint8_t kind = c"b" if binary else c"t"
    cdef bint has_lead = False
    cdef bint nulls = unrepresentable == "null"
    decoding = pg_type if isinstance(pg_type, pgtypes.Decoding) else pgtypes.named(pg_type, typmod)
    label = pg_type if decoding is not pg_type else decoding.codec
    if decoding is None:
        raise LookupError(f"there is no type {pg_type!r}")
    if not isinstance(values, pa.Array):
        # A first value that is cut off again stands in for what a payload has in front of its cells.
        values = pa.array([bytes(CELL_LEAD), *values], pa.binary()).slice(1)
    source = Source([values])
    segment = source.segments
    tree = CodecTree(decoding)
    alone = tree.codec
    alone.block = NULL
    codec = &tree.codec if blocks else &alone
    memset(&column, 0, sizeof(column))
    cells.stride = 1
    cells.first = noted = <Cell *>calloc(BLOCK_VALUES, sizeof(Cell))
    if noted == NULL:
        raise MemoryError()
    try:
        open_column(&column, decoding.arrow)
        expect(&column, <size_t>source.n_rows)
        with nogil:
            while code == OK and first < <size_t>source.n_rows:
                at = 0
                cells.n = note_values(segment, first, kind, noted, &has_lead)
                if cells.n == 0:
                    code = FAULT_BAD_ARRAY
                while code == OK and at < cells.n:
                    code = put_cells(&cells, &at, &column, codec if has_lead else &alone)
                    if nulls and FAULT_UNREPRESENTABLE <= code <= FAULT_TOO_HIGH:
                        code = put_null(&column)
                        at += 1
                first += at
        if code != OK:
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.row = <int64_t>first
            fault.relation = fault.column = -1
            fault.tag = c"I"
            fault.expected = -1
            fault.seen = noted[at].length
            raise error_of(&fault, (f"{label} value",), True)
        return finish_column(&column, decoding.arrow)
    finally:
        free_column(&column)
        free(noted)
