from typing_extensions import Buffer

from pgdecode._source import Source
from pgdecode.limits import Limits

class Notes:
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
    ) -> None: ...
