from collections.abc import Iterable
from typing import Any

from pgdecode._native.arrow.payload_array import Source
from pgdecode.protocol.limits import Limits

BUILDER_TYPES: dict[str, int]
NAMES: tuple[str, ...]
COLLECTED: tuple[tuple[str, int], ...]

class Scan:
    stream_flags: bytes | None
    stream_state: bool | None
    n_empty: int
    def __init__(
        self,
        source: Source,
        fields: Iterable[str],
        limits: Limits,
        strict_flags: bool,
        permissive: bool,
        kind_codes: bool = False,
        empty_is_null: bool = True,
    ) -> None: ...
    def resolve_streams(
        self, in_stream: Any, carry: bool | None, check_contradictions: bool, n_threads: int = 1, lookahead: bool = True
    ) -> bool | None: ...
    def run(self, n_threads: int = 1) -> dict[str, tuple[Any, ...]] | None: ...
