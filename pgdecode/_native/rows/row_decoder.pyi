import pyarrow as pa
from typing_extensions import Buffer

from pgdecode._native.arrow.payload_array import Source
from pgdecode.protocol.limits import Limits
from pgdecode.types.pgtypes import Decoding

UNCHANGED_TYPE: pa.DataType

class Rows:
    n_rows: int
    text_bytes: int
    row_errors: dict[int, str]
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
        selection: Buffer | None = None,
        streamed: Buffer | None = None,
        n_threads: int = 1,
        empty_is_null: bool = True,
    ) -> None: ...
    def run(self) -> None: ...
    def results(self) -> tuple[list[pa.Array], list[pa.Array]]: ...
