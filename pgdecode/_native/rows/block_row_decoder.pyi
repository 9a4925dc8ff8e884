from typing_extensions import Buffer

from pgdecode._native.arrow.payload_array import Source
from pgdecode.protocol.limits import Limits
from pgdecode.types.pgtypes import Decoding

class RowDecoder:
    n_rows: int
    def __init__(
        self,
        source: Source,
        relation_id: int,
        names: list[str],
        decodings: list[Decoding],
        limits: Limits,
        strict_flags: bool,
        permissive: bool,
        null_unrepresentable: bool,
        selection: Buffer | None,
        streamed: Buffer | None,
        empty_is_null: bool,
    ) -> None: ...
