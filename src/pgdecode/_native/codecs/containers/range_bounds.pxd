"""The bounds of a range in binary, which must have PostgreSQL's order.

The server makes no range whose lower bound is above the upper one, and equal bounds only as `[a,a]`; others are empty
(range_serialize, utils/adt/rangetypes.c). The members of a multirange neither overlap nor touch
(multirange_canonicalize, utils/adt/multirangetypes.c). Only types whose order is the same everywhere are compared. The
order of text depends on its collation, and that of user-defined types on their operator class; neither is sent.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from pgdecode._native.codecs.codec cimport (
    DATE, FLOAT4, FLOAT8, INT2, INT4, INT8, NUMERIC, TIME, TIMESTAMP, TIMESTAMPTZ, Codec,
)
from pgdecode._native.codecs.containers.items cimport take_item
from pgdecode._native.codecs.numeric cimport Groups, take_groups
from pgdecode._native.cursor cimport Cursor, be16, be32, be64, cursor_of, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode
from pgdecode._native.literals.decimal_literal cimport KIND_FINITE, KIND_NAN

cdef enum RangeFlag:
    # rangetypes.h
    RANGE_EMPTY = 0x01
    RANGE_LB_INC = 0x02
    RANGE_UB_INC = 0x04
    RANGE_LB_INF = 0x08
    RANGE_UB_INF = 0x10

cdef enum:
    UNKNOWN_ORDER = 2

cdef struct Bounds:
    # The binary form of a range. Infinite bounds are NULL, and those of an empty range too.
    uint8_t flags
    const uint8_t *lower
    const uint8_t *upper
    uint32_t n_lower
    uint32_t n_upper


cdef inline FaultCode take_range_flags(Cursor *cursor, uint8_t *flags) noexcept nogil:
    """Take the flags of a range (RangeFlag). Faults: WRONG_SIZE, BAD_VALUE for impossible flags."""
    cdef const uint8_t *p = take(cursor, 1)
    if p == NULL:
        return FAULT_WRONG_SIZE
    flags[0] = p[0]
    # The server masks unknown flags. Here they are a fault, so that nothing is silently dropped.
    if p[0] > 0x1F or (p[0] & RANGE_EMPTY and p[0] != RANGE_EMPTY):
        return FAULT_BAD_VALUE
    if p[0] & RANGE_LB_INF and p[0] & RANGE_LB_INC or p[0] & RANGE_UB_INF and p[0] & RANGE_UB_INC:
        return FAULT_BAD_VALUE
    return OK


cdef inline int sign_of(int64_t left, int64_t right) noexcept nogil:
    return (left > right) - (left < right)


cdef inline int64_t float_rank(uint64_t bits, uint64_t sign, uint64_t infinity) noexcept nogil:
    """A number with PostgreSQL's order of floats: -0 is 0, and all NaN are equal, above infinity."""
    cdef uint64_t magnitude = bits & (sign - 1)
    if magnitude > infinity:
        return <int64_t>infinity + 1
    return -<int64_t>magnitude if bits & sign else <int64_t>magnitude


cdef inline int order_of_groups(const Groups *left, const Groups *right) noexcept nogil:
    """The order of two finite numerics."""
    cdef int sign = -1 if left.negative else 1
    cdef int order
    cdef size_t n
    if left.n == 0 or right.n == 0:
        # One of them is 0.
        if left.n:
            return sign
        return 0 if right.n == 0 else (1 if right.negative else -1)
    if left.negative != right.negative:
        return sign
    if left.weight != right.weight:
        return sign * sign_of(left.weight, right.weight)
    # Groups are big-endian, so that bytes have their order. The last group is not 0, so a longer number is larger.
    n = left.n if left.n < right.n else right.n
    order = memcmp(left.digits, right.digits, 2 * n)
    if order == 0:
        return sign * sign_of(<int64_t>left.n, <int64_t>right.n)
    return sign if order > 0 else -sign


cdef inline int numeric_rank(const Groups *groups) noexcept nogil:
    """Order of -infinity, finite numbers, infinity, NaN."""
    if groups.kind == KIND_FINITE:
        return 0
    if groups.kind == KIND_NAN:
        return 2
    return -1 if groups.negative else 1


cdef inline int order_of_numerics(
    const uint8_t *left, size_t n_left, const uint8_t *right, size_t n_right
) noexcept nogil:
    cdef Groups one, other
    cdef int rank
    if take_groups(left, n_left, &one) != OK or take_groups(right, n_right, &other) != OK:
        return UNKNOWN_ORDER
    rank = numeric_rank(&one)
    if rank != numeric_rank(&other):
        return sign_of(rank, numeric_rank(&other))
    return 0 if rank else order_of_groups(&one, &other)


cdef inline int order_of_bounds(
    const Codec *codec, const uint8_t *left, size_t n_left, const uint8_t *right, size_t n_right
) noexcept nogil:
    """-1, 0 or 1 as the left value is before, equal to, or after the right one; or UNKNOWN_ORDER."""
    cdef uint32_t oid = codec.oid
    if oid == NUMERIC:
        return order_of_numerics(left, n_left, right, n_right)
    if n_left != n_right:
        return UNKNOWN_ORDER
    if n_left == 4 and (oid == INT4 or oid == DATE):
        return sign_of(<int32_t>be32(left), <int32_t>be32(right))
    if n_left == 8 and (oid == INT8 or oid == TIMESTAMP or oid == TIMESTAMPTZ or oid == TIME):
        return sign_of(<int64_t>be64(left), <int64_t>be64(right))
    if n_left == 8 and oid == FLOAT8:
        return sign_of(
            float_rank(be64(left), <uint64_t>1 << 63, <uint64_t>0x7FF << 52),
            float_rank(be64(right), <uint64_t>1 << 63, <uint64_t>0x7FF << 52),
        )
    if n_left == 4 and oid == FLOAT4:
        return sign_of(
            float_rank(be32(left), <uint64_t>1 << 31, 0x7F800000),
            float_rank(be32(right), <uint64_t>1 << 31, 0x7F800000),
        )
    if n_left == 2 and oid == INT2:
        return sign_of(<int16_t>be16(left), <int16_t>be16(right))
    # Equal bytes are equal in any order.
    return 0 if memcmp(left, right, n_left) == 0 else UNKNOWN_ORDER


cdef inline FaultCode take_bounds(
    const uint8_t *value, size_t length, const Codec *element, Bounds *out
) noexcept nogil:
    """Find the bounds of a range, whose values are not checked.

    Faults: WRONG_SIZE, BAD_VALUE for ranges that no server sends.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef FaultCode code
    cdef int order
    out.lower = out.upper = NULL
    out.n_lower = out.n_upper = 0
    code = take_range_flags(&cursor, &out.flags)
    if code == OK and not out.flags & (RANGE_EMPTY | RANGE_LB_INF):
        code = take_item(&cursor, &out.lower, &out.n_lower)
    if code == OK and not out.flags & (RANGE_EMPTY | RANGE_UB_INF):
        code = take_item(&cursor, &out.upper, &out.n_upper)
    if code != OK or out.lower == NULL or out.upper == NULL:
        return code
    order = order_of_bounds(element, out.lower, out.n_lower, out.upper, out.n_upper)
    if order == 1:
        return FAULT_BAD_VALUE
    if order == 0 and not (out.flags & RANGE_LB_INC and out.flags & RANGE_UB_INC):
        return FAULT_BAD_VALUE
    return OK


cdef inline bint is_behind(const Bounds *before, const Bounds *range, const Codec *element) noexcept nogil:
    """Whether a member of a multirange may follow another: it is not empty, and they neither overlap nor touch."""
    cdef int order
    if range.flags & RANGE_EMPTY:
        return False
    if before == NULL:
        return True
    if before.upper == NULL or range.lower == NULL:
        return False
    order = order_of_bounds(element, before.upper, before.n_upper, range.lower, range.n_lower)
    if order == 0:
        return not (before.flags & RANGE_UB_INC or range.flags & RANGE_LB_INC)
    return order != 1
