"""Judges and decodes the rows of a batch by several threads."""

from pgdecode._fault cimport FaultCode
from pgdecode._part cimport Part
from pgdecode._source cimport Source
from pgdecode._streams cimport Carry, Window

cdef FaultCode judge_divided(Window *window, Carry *carry, Source source, Py_ssize_t n_threads) except *
cdef FaultCode scan_divided(Part *whole, Source source, Py_ssize_t n_threads) except *
