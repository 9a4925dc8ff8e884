from typing import Any

LAYOUTS: tuple[str, ...]

class Source:
    n_rows: int
    def __init__(self, parts: list[Any]) -> None: ...
    @property
    def payload_bytes(self) -> int: ...
