from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.changes.text_layouts import TextLayout
from pgdecode.protocol.limits import Limits

MAP: pa.DataType
NAMES: pa.DataType

def repeated(places: Any, counts: list[int], texts: list[str]) -> pa.Array: ...

class TextMapBuilder:
    text_bytes: int
    def __init__(
        self,
        source: Source,
        layouts: list[TextLayout | None],
        limits: Limits,
        strict_flags: bool,
        permissive: bool,
        made: int = 0,
    ) -> None: ...
    def run(self, rows: Any, versions: Any, streamed: Any) -> tuple[list[pa.Array], dict[int, str]]: ...
