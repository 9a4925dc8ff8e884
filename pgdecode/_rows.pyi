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
    told: dict[int, str]
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
        first: int = 0,
        n_rows: int | None = None,
        n_joined: int | None = None,
    ) -> None: ...
    def run(self) -> None: ...
    def join(self, others: list[Rows], place: int, n_places: int) -> bool: ...
    def results(self) -> tuple[list[pa.Array], list[pa.Array]]: ...
    def named(self, error: Exception) -> Exception: ...
