"""Finds the messages in a file of pg_recvlogical: payloads without lengths, each followed by a newline."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport append_int64
from pgdecode._native.fault cimport FAULT_NO_MEMORY, FAULT_TRAILING, OK, Fault, FaultCode
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, hand_over, reserve
from pgdecode._native.wire.envelope_builder cimport Envelope, Rules, Walk, open_check, rules_of
from pgdecode._native.wire.walker cimport walk_message
from pgdecode._native.wire.wire_plan cimport PLAN

from pgdecode.protocol.limits import LIMITS

cdef enum:
    MOST_BYTES = 1 << 26   # of the payloads in one array, before its last message

cdef struct Place:
    const uint8_t *at
    const uint8_t *end
    bint in_stream


def whole_messages(const uint8_t[::1] content, Py_ssize_t at, bint in_stream, Py_ssize_t abort_bytes, Py_ssize_t most):
    """Copy up to `most` messages from byte `at` on. Stops before the first message that is not well-formed.

    Returns (number of messages, buffers of a large_binary array, the byte after them, whether a stream is open there).
    `abort_bytes`: the length of a Stream Abort, which the file does not contain.
    """
    cdef Walk walk
    cdef Envelope nothing
    cdef Fault fault
    cdef Rules rules = rules_of(LIMITS, False)
    cdef Bytes offsets, data
    cdef Place place
    cdef FaultCode code
    if not 0 <= at < content.shape[0]:
        raise IndexError("there is no such byte")
    memset(&offsets, 0, sizeof(offsets))
    memset(&data, 0, sizeof(data))
    open_check(&walk, &PLAN.table, &rules, &nothing, &fault)
    place.at = &content[at]
    place.end = &content[0] + content.shape[0]
    place.in_stream = in_stream
    try:
        with nogil:
            code = copy_messages(&walk, &place, <size_t>abort_bytes, <size_t>most, &offsets, &data)
        if code != OK:
            raise MemoryError("no memory for the messages of a file")
        n = offsets.size // sizeof(int64_t) - 1
        buffers = [None, hand_over(&offsets), hand_over(&data)]
        return n, buffers, place.at - &content[0], place.in_stream
    finally:
        free_bytes(&offsets)
        free_bytes(&data)


cdef FaultCode copy_messages(
    Walk *walk, Place *place, size_t abort_bytes, size_t most, Bytes *offsets, Bytes *data
) noexcept nogil:
    cdef size_t n = 0
    cdef size_t left, length
    if append_int64(offsets, 0) != OK or reserve(data, 0) != OK:
        return FAULT_NO_MEMORY
    while n < most and data.size < MOST_BYTES and place.at != place.end:
        left = <size_t>(place.end - place.at)
        length = message_length(walk, place.at, left, place.in_stream, abort_bytes)
        if length >= left or place.at[length] != c"\n":
            break
        if reserve(data, length) != OK or append_int64(offsets, <int64_t>(data.size + length)) != OK:
            return FAULT_NO_MEMORY
        memcpy(data.data + data.size, place.at, length)
        data.size += length
        if length:
            place.in_stream = (place.in_stream or place.at[0] == c"S") and place.at[0] != c"E"
        place.at += length + 1
        n += 1
    return OK


cdef inline size_t message_length(
    Walk *walk, const uint8_t *at, size_t left, bint in_stream, size_t abort_bytes
) noexcept nogil:
    """The length of the message at `at`; the rest of the file if the message is not well-formed."""
    if at[0] == c"\n":
        # Servers send an empty payload for an origin without a name.
        return 0
    if at[0] == c"A":
        return abort_bytes
    # As one payload, the rest of the file has bytes after the message. The fault says where they begin.
    if walk_message(walk, at, min(left, walk.rules.max_payload_bytes), in_stream) != FAULT_TRAILING:
        return left
    return walk.fault.offset
