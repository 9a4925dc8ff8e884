"""The dictionary of a column chunk in a Parquet file."""

from __future__ import annotations

import pyarrow as pa

from pgdecode._native.arrow.plain_values import longest
from pgdecode.arrow.thrift import StructReader

# No header of a dictionary page is longer.
_HEADER_BYTES = 256
# Fields of PageHeader, and a value of its type.
_TYPE, _PAGE_BYTES, _COMPRESSED_BYTES, _DICTIONARY_HEADER = 1, 2, 3, 7
_DICTIONARY_PAGE = 2
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}


def longest_value(chunk: pa.Buffer, compression: str, max_bytes: int) -> int | None:
    """Find the length of the longest value in a dictionary of byte arrays.

    pyarrow reads a dictionary only together with the first page of data, and hashes all values, which takes longer.

    Parameters
    ----------
    chunk : pa.Buffer
        From the dictionary page on.
    compression : str
        As in `pyarrow.parquet.ColumnChunkMetaData`.
    max_bytes : int
        Do not decompress more.

    Returns
    -------
    int or None
        None if it is not known, because the dictionary is larger, damaged or compressed in another way.
    """
    header = StructReader(chunk[:_HEADER_BYTES].to_pybytes())
    try:
        fields = header.struct()
        n_bytes = fields[_PAGE_BYTES].value
        if fields[_TYPE].value != _DICTIONARY_PAGE or _DICTIONARY_HEADER not in fields or not 0 <= n_bytes <= max_bytes:
            return None
        page = chunk[header.at : header.at + max(fields[_COMPRESSED_BYTES].value, 0)]
        if compression in _CODECS:
            page = pa.Codec(_CODECS[compression]).decompress(page, n_bytes)
        elif compression != "UNCOMPRESSED":
            return None
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, OSError):
        # The page is damaged. Reading the chunk then raises an error.
        return None
    found = longest(page)
    return found if found >= 0 and page.size == n_bytes else None
