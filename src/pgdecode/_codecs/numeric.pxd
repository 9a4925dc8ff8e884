"""numeric, as decimals and as text."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t

from pgdecode._codec cimport Codec
from pgdecode._codecs.literal cimport Kind
from pgdecode._fault cimport FaultCode

cdef enum:
    DEC_DIGITS = 4          # of a group, utils/adt/numeric.c

cdef struct Groups:
    # A numeric in binary: groups of four digits without zero groups at either end, big-endian, unaligned.
    Kind kind
    bint negative
    const uint8_t *digits
    size_t n
    int32_t weight          # of the first group: it counts NBASE**weight
    int32_t dscale          # digits to show behind the point

cdef bint numeric_codec(str name, Codec *codec)
cdef FaultCode groups_of(const uint8_t *value, size_t length, Groups *out) noexcept nogil
