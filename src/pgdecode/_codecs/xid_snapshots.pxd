"""Snapshots of transactions."""

from pgdecode._codec cimport Codec


cdef bint xid_snapshots_codec(str name, Codec *codec)
