import pyarrow as pa
from typing_extensions import Buffer

from pgdecode._source import Source
from pgdecode.limits import Limits
from pgdecode.pgtypes import Decoding

UNCHANGED: pa.DataType

class Rows:
    n_rows: int
    text: int
    most_text: int
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
    ) -> None: ...
    def run(self) -> tuple[list[pa.Array], list[pa.Array], dict[int, str]]: ...
    def named(self, error: Exception) -> Exception: ...
