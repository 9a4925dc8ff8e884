import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source

def tagged(source: Source, wanted: bytes, at_ends: bytes) -> tuple[pa.Buffer | None, int, int, bytes]: ...
