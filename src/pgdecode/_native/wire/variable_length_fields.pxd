"""Fields of variable length, except tuples."""

from libc.stdint cimport int32_t

from pgdecode._native.arrow.payload_array cimport Span
from pgdecode._native.cursor cimport Cursor
from pgdecode._native.wire.envelope_builder cimport Walk
from pgdecode._native.wire.wire_plan cimport Op


cdef Cursor value_of(Walk *walk, int label, Cursor cursor, Span *value, int32_t column) noexcept nogil
cdef Cursor text_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil
cdef Cursor relation_ids_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil
cdef Cursor columns_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil
