from typing import Any

import pyarrow as pa

from pgdecode._layouts import TextLayout
from pgdecode._source import Source
from pgdecode.limits import Limits

MAP: pa.DataType
NAMES: pa.DataType

class Maps:
    def __init__(
        self, source: Source, layouts: list[TextLayout | None], limits: Limits, strict_flags: bool, permissive: bool
    ) -> None: ...
    def run(self, rows: Any, versions: Any, streamed: Any) -> tuple[list[pa.Array], dict[int, str]]: ...
