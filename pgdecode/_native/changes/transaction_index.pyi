from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.int64_kernels import ChunkedInt64
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.changes.relation_versions import VersionTable

class TransactionIndex:
    xid: int
    lsn: int
    start: int
    begin_row: int
    block_row: int
    stream: int
    last_lsn: int
    session_lsn: int
    n_repeated: int
    last_lsn_row: int
    has_streamed: bool
    has_relations: bool
    has_boundary: bool
    has_rows: bool
    has_skipped: bool
    first_end: int
    last_end: int
    is_plain: bool
    n: int
    def __init__(
        self,
        source: Source,
        kinds: Any,
        relations: Any,
        stream_flags: Any,
        last_lsn: int,
        session_lsn: int,
        drop_duplicates: bool,
        drop_undecided: bool,
        is_repeated: Callable[[bytes, int], bool],
        table: VersionTable,
        wanted: bytes | None = None,
        streamed: dict[int, Any] | None = None,
    ) -> None: ...
    def begin(self, stream: int = -1) -> None: ...
    def skip(self) -> None: ...
    def end(self) -> None: ...
    def list_changes(self, row: int) -> int: ...
    def taken_blocks(self) -> list[tuple[int, int, int]]: ...
    def list_row(self, row: int, relation_id: int, xid: int, version: int, is_truncate: bool = False) -> None: ...
    def list_bad(self, row: int) -> None: ...
    def list_buffered(self, first_row: int, payloads: Source, relation_ids: Any, xids: Any, versions: Any) -> None: ...
    def add_outcome(self, row: int, xid: int, lsn: int, timestamp: int, committed: int) -> int: ...
    def commit_unaborted(
        self, start: int, end: int, positions: memoryview, aborted: Mapping[int, int], unaborted: bool
    ) -> None: ...
    def undecided_columns(self, ranges: list[tuple[int, int]]) -> tuple[pa.Buffer, ...]: ...
    def row_of(self, change: int) -> int: ...
    def first_unknown(self) -> tuple[int, int, int] | None: ...
    def record_end(self, row: int) -> None: ...
    def record_lsn(self, row: int, lsn: int, xid: int) -> bool: ...
    def committed_columns(
        self, positions: ChunkedInt64, n_versions: int, wanted: bytes | None = None
    ) -> tuple[dict[str, pa.Buffer], bool, bool, bool, bool, list[int]]: ...
