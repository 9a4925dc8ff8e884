from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pgdecode._source import Source
from pgdecode.limits import Limits
from pgdecode.pgtypes import Decoding

MAP: pa.DataType
NAMES: pa.DataType

class TextLayout:
    names: tuple[str, ...]
    def __init__(
        self, relation_id: int, names: Sequence[str], is_key: Sequence[bool], decodings: Sequence[Decoding]
    ) -> None: ...

class Maps:
    def __init__(
        self, source: Source, layouts: list[TextLayout | None], limits: Limits, strict_flags: bool, permissive: bool
    ) -> None: ...
    def run(self, rows: Any, versions: Any, streamed: Any) -> tuple[list[pa.Array], dict[int, str]]: ...
