import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source

def decoded_text(source: Source, form: str) -> tuple[int, list[pa.Buffer | None] | None]: ...
