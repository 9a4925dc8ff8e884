"""How the bytes of an input are read, by each target.

walk      options, payload
scan      options, 4 bytes of wanted fields, payloads
batch     the same
text      2 bytes of variant, value
binary    the same
encoded   options, values as payloads
file      options, the bytes of a file
rows      options, a byte that chooses the relation, payloads
changes   options, a byte of how the payloads are cut into batches, payloads

Payloads are each a 2-byte length and as many bytes, or as are left; 0xFFFF is a null. The native targets read inputs
by the same rules: a change here is one there, and makes a new corpus necessary.
"""

from __future__ import annotations

from collections.abc import Sequence

# More than two of the blocks of 64 rows in which a batch is walked.
MAX_ROWS = 160
NULL = 0xFFFF

# Options of walk and scan. A scan has two bits of STATES, and two of LAYOUTS.
STREAMED = 0x01
STATES = (False, True, None, "auto")
LAYOUTS = ("spans", "binary", "large_binary", "binary_view")
LAYOUT_SHIFT = 2
STRICT = 0x10
TIGHT = 0x20
# Of a batch: the payloads are one Arrow array, not each a chunk of its own.
JOINED = 0x40
TIGHT_LIMITS = {"max_payload_bytes": 64, "max_columns": 3, "max_name_bytes": 5, "max_value_bytes": 8}


def payloads_of(data: bytes) -> list[bytes | None]:
    """Read payloads until the bytes end."""
    found: list[bytes | None] = []
    while len(data) >= 2 and len(found) < MAX_ROWS:
        length = int.from_bytes(data[:2], "big")
        data = data[2:]
        if length == NULL:
            found.append(None)
            continue
        found.append(data[:length])
        data = data[length:]
    return found


def written(payloads: Sequence[bytes | None]) -> bytes:
    """Write payloads as `payloads_of` reads them."""
    return b"".join(
        NULL.to_bytes(2, "big") if item is None else len(item).to_bytes(2, "big") + item for item in payloads
    )
