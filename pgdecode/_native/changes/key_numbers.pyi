from typing import Any

import pyarrow as pa

class KeyTable:
    def __init__(self, is_number: bool) -> None: ...
    def __len__(self) -> int: ...
    def numbered(
        self, columns: list[tuple[int, int, int, Any, Any, Any]], n: int, is_added: bool = True
    ) -> tuple[pa.Buffer, pa.Buffer]: ...
