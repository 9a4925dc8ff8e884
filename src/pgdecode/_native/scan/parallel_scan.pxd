"""Resolves the streams of a batch and decodes its rows by several threads."""

from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.scan.partial_batch cimport Part
from pgdecode._native.wire.stream_state cimport Carry, Window


cdef FaultCode resolve_divided(Window *window, Carry *carry, Source source, Py_ssize_t n_threads) except *
cdef FaultCode scan_divided(Part *output, Source source, Py_ssize_t n_threads) except *
