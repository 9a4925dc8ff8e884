from typing_extensions import Buffer

from pgdecode._native.arrow.payload_array import Source
from pgdecode.protocol.limits import Limits

class CellIndex:
    n_rows: int
    def __init__(
        self,
        source: Source,
        relation_id: int,
        n_columns: int,
        limits: Limits,
        strict_flags: bool,
        selection: Buffer | None,
        streamed: Buffer | None,
        empty_is_null: bool,
    ) -> None: ...
