from typing_extensions import Buffer

from pgdecode._source import Source
from pgdecode.limits import Limits
from pgdecode.pgtypes import Decoding

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
    ) -> None: ...
