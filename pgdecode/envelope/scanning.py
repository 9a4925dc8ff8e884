"""One scan of a batch of payloads, which resolves streams completely only where it must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.scan.scanner import Scan
from pgdecode.payloads.thread_counts import resolvers_for
from pgdecode.protocol.limits import Limits


class Scanned(NamedTuple):
    """A finished scan.

    Attributes
    ----------
    scan : Scan
    columns : dict
        Buffers by column, without the columns that no row fills.
    stream_state : bool or None
        Whether a stream is open after the last row; None if it is unknown.
    """

    scan: Scan
    columns: dict[str, tuple[Any, ...]]
    stream_state: bool | None


def scan_payloads(
    source: Source,
    names: Sequence[str],
    limits: Limits,
    *,
    strict_flags: bool,
    permissive: bool,
    kind_codes: bool,
    empty_is_null: bool,
    in_stream: Any = None,
    streamed: bool | None = None,
    n_threads: int = 1,
    lookahead: bool = True,
) -> Scanned:
    """Scan payloads. Parameters are those of `Scan` and its methods; `streamed` is the stream state before the rows.

    Raises
    ------
    DecodeError
        In FAILFAST mode for a bad payload.
    """
    # Most batches have no stream. The first attempt assumes that, and returns None if it may be wrong.
    for check_contradictions in (False, True):
        scan = Scan(source, names, limits, strict_flags, permissive, kind_codes=kind_codes, empty_is_null=empty_is_null)
        resolvers = resolvers_for(source, n_threads)
        state = scan.resolve_streams(in_stream, streamed, check_contradictions, resolvers, lookahead)
        columns = scan.run(n_threads)
        if columns is not None:
            break
    assert columns is not None
    return Scanned(scan, columns, state)
