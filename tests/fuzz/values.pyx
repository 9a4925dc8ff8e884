"""Targets `text` and `binary`: a value through one codec, without Python; what is wrong ends the process."""

from exact cimport Block, Target, exact, fail
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset
from plain_memory cimport free_bytes, live_blocks

from pgdecode._native.arrow.builder cimport CELL_LEAD, Cell
from pgdecode._native.arrow.column_builder cimport (
    SHAPE_BYTES, SHAPE_FIXED, SHAPE_STRUCT, Column, open_column, put_null, take_back,
)
from pgdecode._native.codecs.block_decoder cimport decode_cells
from pgdecode._native.codecs.codec cimport Cells, Codec
from pgdecode._native.codecs.registry cimport CodecTree
from pgdecode._native.cursor cimport be16
from pgdecode._native.fault cimport FAULT_ENCODING, FAULT_LIMIT_VALUE, FAULT_OUT_OF_RANGE, FAULT_TOO_HIGH, OK, FaultCode
from pgdecode._native.memory.buffers cimport Bytes
from pgdecode._native.memory.utf8 cimport utf8_prefix

import pyarrow as pa
from fuzz.variants import VARIANTS

cdef struct Variant:
    const Codec *codec
    const uint8_t *texts     # of the columns below it, itself first: 1 where it holds text, which must be UTF-8
    Column alone
    Column together

cdef Variant *variants
cdef size_t n_variants
TREES = []      # what the pointers in `variants` point into


# -- columns ---------------------------------------------------------------------------------------------------------

cdef void reset(Bytes *bytes) noexcept nogil:
    free_bytes(bytes)
    memset(bytes, 0, sizeof(Bytes))


cdef void clear(Column *column) noexcept nogil:
    """Make a column as it was when it was opened."""
    cdef int i
    reset(&column.valid)
    reset(&column.values)
    reset(&column.ends)
    reset(&column.data)
    column.n = column.n_null = column.expected = column.postponed = 0
    for i in range(column.n_children):
        clear(&column.children[i])


cdef const uint8_t *check(const Column *column, const uint8_t *texts) noexcept nogil:
    """A column is as Arrow wants it; returns the marks behind its own."""
    cdef const int32_t *ends = <const int32_t *>column.ends.data
    cdef bint is_text = texts[0]
    cdef size_t n_items = 0
    cdef size_t n_null = 0
    cdef size_t i, length
    cdef int child
    texts += 1
    if column.valid.size:
        for i in range(column.valid.size):
            n_null += column.valid.data[i] == 0
            if column.valid.data[i] > 1:
                fail("a mark of validity is neither 0 nor 1")
        if column.valid.size != column.n:
            fail("a column has another number of marks than of items")
    if n_null != column.n_null or column.postponed:
        fail("a column has another number of nulls than it says")
    for child in range(column.n_children):
        texts = check(&column.children[child], texts)
        if column.shape == SHAPE_STRUCT and column.children[child].n != column.n:
            fail("a struct's child has another length")
    if column.shape == SHAPE_FIXED:
        if column.values.size != column.n * <size_t>column.width:
            fail("a column has another number of values than of items")
    elif column.shape != SHAPE_STRUCT:
        n_items = column.data.size if column.shape == SHAPE_BYTES else column.children[0].n
        if column.ends.size == 0:
            if column.n or n_items:
                fail("a column has items without ends")
        elif column.ends.size != (column.n + 1) * 4 or ends[0] != 0 or <size_t>ends[column.n] != n_items:
            fail("ends do not fit their items")
        else:
            for i in range(column.n):
                if ends[i] > ends[i + 1]:
                    fail("ends do not ascend")
                length = <size_t>(ends[i + 1] - ends[i])
                if is_text and length and utf8_prefix(column.data.data + ends[i], length) != length:
                    fail("text is not UTF-8")
    return texts


cdef bint same_bytes(const Bytes *left, const Bytes *right) noexcept nogil:
    return left.size == right.size and (left.size == 0 or memcmp(left.data, right.data, left.size) == 0)


cdef bint same(const Column *left, const Column *right) noexcept nogil:
    """Whether two columns hold the same; one of them may have written down that none of its items is null."""
    cdef int i
    if left.n != right.n or left.n_null != right.n_null:
        return False
    if left.n_null and not same_bytes(&left.valid, &right.valid):
        return False
    if left.n and not same_bytes(&left.ends, &right.ends):
        return False
    if not same_bytes(&left.values, &right.values) or not same_bytes(&left.data, &right.data):
        return False
    for i in range(left.n_children):
        if not same(&left.children[i], &right.children[i]):
            return False
    return True


# -- targets ---------------------------------------------------------------------------------------------------------

cdef void decode_value(const uint8_t *data, size_t size, uint8_t kind) noexcept nogil:
    """A value by the decoder of single values, and as a cell in a block: the same must come of it."""
    cdef Variant *variant
    cdef const Codec *codec
    cdef Block block, led
    cdef Cell[3] three
    cdef Cells cells
    cdef FaultCode code, other
    cdef size_t at = 0
    cdef size_t i
    if size < 2:
        return
    variant = &variants[be16(data) % n_variants]
    codec = variant.codec
    data += 2
    size -= 2
    block = exact(data, size, 0)
    code = by_itself(block.data, size, &variant.alone, codec, kind)
    if code != OK:
        if not (FAULT_ENCODING <= code <= FAULT_OUT_OF_RANGE or FAULT_LIMIT_VALUE <= code <= FAULT_TOO_HIGH):
            fail("a codec returned a fault that is not of values")
        take_back(&variant.alone, 0)
    elif variant.alone.n != 1:
        fail("a codec put not one item")
    check(&variant.alone, variant.texts)
    # In a payload there are bytes in front, which block decoders may read; behind it may be nothing.
    led = exact(data, size, CELL_LEAD)
    for i in range(3):
        three[i].value = led.data
        three[i].length = <uint32_t>size
        three[i].kind = kind
    three[1].value = NULL
    three[1].kind = c"n"
    cells.first = three
    cells.stride = 1
    cells.n = 3
    other = decode_cells(&cells, &at, &variant.together, codec)
    if other != code:
        fail("a codec and its block decoder have two verdicts")
    check(&variant.together, variant.texts)
    if code == OK:
        if put_null(&variant.alone) != OK or by_itself(block.data, size, &variant.alone, codec, kind) != OK:
            fail("a codec took a value once, and not twice")
        check(&variant.alone, variant.texts)
    elif at != 0:
        fail("a block decoder passed over a fault")
    if not same(&variant.alone, &variant.together):
        fail("a codec and its block decoder made two values")
    free(block.owner)
    free(led.owner)
    clear(&variant.alone)
    clear(&variant.together)
    if live_blocks():
        fail("memory was not given back")


cdef inline FaultCode by_itself(
    const uint8_t *value, size_t size, Column *out, const Codec *codec, uint8_t kind
) noexcept nogil:
    if kind == c"t":
        return codec.from_text(value, size, out, codec)
    return codec.from_binary(value, size, out, codec)


cdef void text_target(const uint8_t *data, size_t size) noexcept nogil:
    decode_value(data, size, c"t")


cdef void binary_target(const uint8_t *data, size_t size) noexcept nogil:
    decode_value(data, size, c"b")


def marks(arrow_type):
    """The marks of `Variant.texts`, by the same way through the type as `open_column` takes."""
    found = [pa.types.is_string(arrow_type)]
    if pa.types.is_map(arrow_type):
        return found + marks(pa.struct([arrow_type.key_field, arrow_type.item_field]))
    if pa.types.is_nested(arrow_type):
        for i in range(arrow_type.num_fields):
            found += marks(arrow_type.field(i).type)
    return found


def target(str name):
    """Address of a target's function."""
    global variants, n_variants
    cdef Target function = text_target if name == "text" else binary_target
    cdef CodecTree tree
    cdef bytes texts
    n_variants = len(VARIANTS)
    variants = <Variant *>calloc(n_variants, sizeof(Variant))
    if variants == NULL:
        raise MemoryError()
    for i, decoding in enumerate(VARIANTS.values()):
        tree = CodecTree(decoding)
        texts = bytes(marks(decoding.arrow))
        TREES.append((tree, texts))
        variants[i].codec = &tree.codec
        variants[i].texts = texts
        open_column(&variants[i].alone, decoding.arrow)
        open_column(&variants[i].together, decoding.arrow)
    return <uintptr_t>function
