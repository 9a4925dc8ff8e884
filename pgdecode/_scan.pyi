from collections.abc import Iterable
from typing import Any

from pgdecode._source import Source
from pgdecode.limits import Limits

SINK_TYPES: dict[str, int]
NAMES: tuple[str, ...]
COLLECTED: tuple[tuple[str, int], ...]

class Scan:
    judged: bytes | None
    def __init__(
        self,
        source: Source,
        fields: Iterable[str],
        limits: Limits,
        strict_flags: bool,
        permissive: bool,
        kind_codes: bool = False,
    ) -> None: ...
    def judge(self, in_stream: Any, carry: bool | None, in_full: bool, n_threads: int = 1) -> bool | None: ...
    def run(self, n_threads: int = 1) -> dict[str, tuple[Any, ...]] | None: ...
