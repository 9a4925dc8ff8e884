from collections.abc import Iterable
from typing import Literal

import pyarrow as pa

from pgdecode.types.pgtypes import Decoding

class CodecTree:
    def __init__(self, decoding: Decoding) -> None: ...

def decode_values(
    pg_type: str | Decoding,
    values: pa.Array | Iterable[bytes | None],
    *,
    binary: bool,
    typmod: int = -1,
    unrepresentable: Literal["error", "null"] = "error",
    blocks: bool = True,
) -> pa.Array: ...
