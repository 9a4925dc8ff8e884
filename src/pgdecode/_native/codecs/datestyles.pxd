"""Dates and timestamps written under another DateStyle than ISO."""


cdef int style_of(str name) except -1
