"""`decode`, `decode_messages` and `MessageDecoder`: payloads to messages and to the envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.single_message import decode_one
from pgdecode.arrow.null_arrays import null_array
from pgdecode.envelope.kind_codes import CODES_TYPE
from pgdecode.envelope.scanning import scan_payloads
from pgdecode.envelope.schema import COLUMN_TYPE, ENVELOPE_TYPES, envelope_schema
from pgdecode.payloads.exclusive import Exclusive
from pgdecode.payloads.payload_input import StreamStates, payload_parts, stream_state
from pgdecode.payloads.thread_counts import check_threads, threads_for
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.messages import Message
from pgdecode.protocol.options import Empty, RowMode, check_limits, check_option, check_row_mode

_from_buffers = pa.Array.from_buffers  # looked up once: small batches are many
_COLUMN_TYPES = [field.type for field in COLUMN_TYPE]
_SHARED_ROWS = 1 << 20  # columns of nulls up to this length are kept for other batches; others take address space


def decode(payload: bytes, *, in_stream: bool = False, strict_flags: bool = True, limits: Limits = LIMITS) -> Message:
    """Decode one payload.

    Parameters
    ----------
    payload : bytes-like
        One pgoutput message, tag byte first, without a frame around it.
    in_stream : bool
        Whether the payload was sent between a Stream Start and a Stream Stop, where some messages carry an xid.
    strict_flags : bool
        Refuse flag bits that no server defines today.
    limits : Limits
        Sizes above which the payload is refused.

    Returns
    -------
    Message
        One of the 19 dataclasses of `pgdecode.protocol.messages`, such as `Insert`. LSNs are int (`lsn_to_text`),
        timestamps are aware datetimes in UTC, tuple values are bytes as they were sent.

    Raises
    ------
    DecodeError
        With `offset` and `tag`, and with `relation` and `column` if known; `row` is None. A payload of zero bytes is
        `EmptyPayload`; `decode_messages` makes a null row of it. A timestamp outside the years 1 to 9999 is an error
        too: datetime cannot hold it, but the columns of `decode_messages` can.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("49 00004001 4e 0001 74 00000001 35"))
    Insert(xid=None, relation_id=16385, new=(b'5',), new_formats='t')
    """
    if not isinstance(in_stream, bool):
        raise TypeError(f"in_stream is a bool, not {type(in_stream).__name__}")
    if type(payload) is not bytes:
        # The fields of the message are copies anyway.
        view = memoryview(payload)
        # The cast refuses a buffer that is not contiguous.
        payload = view.tobytes() if view.c_contiguous else view.cast("B").tobytes()
    return decode_one(payload, in_stream, limits, strict_flags)


def decode_messages(
    payloads: Any,
    *,
    in_stream: StreamStates = "ordered",
    fields: Iterable[str] | None = None,
    mode: RowMode = "FAILFAST",
    limits: Limits = LIMITS,
    strict_flags: bool = True,
    threads: int = 1,
    empty: Empty = "null",
) -> pa.RecordBatch:
    """Decode a column of payloads into the envelope, one row per payload.

    Parameters
    ----------
    payloads : pa.Array or pa.ChunkedArray of binary, large_binary or binary_view; any object with __arrow_c_array__ \
or __arrow_c_stream__ of such; or a sequence of bytes
        One pgoutput message per row, tag byte first. Null rows give null rows. Arrow data is read in place.
    in_stream : {"ordered", "auto"}, bool, or boolean column of the same length
        How to decide which messages carry the xid of a streamed transaction.
        "ordered" (None means the same): the payloads are in slot order. The Stream Start and Stream Stop messages among
        them decide. Input that begins inside a stream is recognised.
        A bool or a column: the caller decides.
        "auto": the payloads are in no order. The structure of each payload decides. This is exact for inserts and
        deletes, and nearly exact for updates. It is a guess where a relation, type, truncate or logical message is
        valid both with and without an xid. The `xid_basis` column shows how each row was decided.
        Payloads that contradict the stream state are errors, for example if a Stream Start is missing. Payloads
        between the same two transaction boundaries that are valid both ways are then errors too.
    fields : iterable of str, optional
        Envelope columns to build, in this order; by default all but `xid_basis`. Other columns cost nothing. Whether a
        payload is bad does not depend on `fields`.
    mode : {"FAILFAST", "PERMISSIVE"}
        Raise on the first bad payload, or null its row and give the reason in the `error` column.
    limits : Limits
        Sizes above which a payload is refused.
    strict_flags : bool
        Refuse flag bits that no server defines today.
    threads : int
        Maximum number of threads. Small inputs use fewer. The result does not depend on it.
    empty : {"null", "error"}
        How to treat a payload of zero bytes. Servers send one for a replication origin without a name. "null": a null
        row and no fault. "error": a bad payload.

    Returns
    -------
    pa.RecordBatch
        One row per payload, in the same order; the schema is `envelope.schema.envelope_schema(fields)`. LSNs, OIDs and
        xids are int64, timestamps are microseconds in UTC. `old` and `new` have one value per tuple column, as bytes
        in the format that `old_formats` and `new_formats` give; null for formats n (null) and u (unchanged TOAST).

    Raises
    ------
    DecodeError
        In FAILFAST mode, with `row` and `offset`. In both modes `BatchTooLarge`, if values exceed 2 GiB.
    TypeError, ValueError
        If the payloads are not binary, or an option is invalid.

    Examples
    --------
    >>> payloads = pq.read_table("tests/data/16.shop.v1.parquet")["data"]
    >>> messages = pgdecode.decode_messages(payloads, fields=["kind", "xid", "relation_id"])
    >>> messages.slice(0, 3).to_pylist()  # doctest: +NORMALIZE_WHITESPACE
    [{'kind': 'begin', 'xid': 102116, 'relation_id': None},
     {'kind': 'relation', 'xid': None, 'relation_id': 19182},
     {'kind': 'insert', 'xid': None, 'relation_id': 19182}]
    """
    decoder = MessageDecoder(
        in_stream=in_stream,
        fields=fields,
        mode=mode,
        limits=limits,
        strict_flags=strict_flags,
        threads=threads,
        empty=empty,
    )
    return decoder.decode(payloads)


class MessageDecoder:
    """`decode_messages` over consecutive batches of one sequence of payloads.

    With `in_stream="ordered"`, each batch starts with the stream state at the end of the previous one, so a long
    sequence in slot order can be decoded in batches. The state is unknown until a batch has a Stream Start, a Stream
    Stop or a message that occurs only outside streams; until then, the state of each batch is decided from that batch
    alone. Options are those of `decode_messages`. Only one thread at a time may use a decoder; a second one gets a
    RuntimeError.

    Attributes
    ----------
    schema : pa.Schema
        Schema of the batches that `decode` returns.
    empty_payloads : int
        Number of payloads of zero bytes so far, if `empty` is "null".

    Examples
    --------
    >>> decoder = pgdecode.MessageDecoder(fields=["kind"])
    >>> with pq.ParquetFile("tests/data/16.shop.v1.parquet") as file:
    ...     sum(len(decoder.decode(batch["data"])) for batch in file.iter_batches(500, columns=["data"]))
    1053
    """

    def __init__(
        self,
        *,
        in_stream: StreamStates = "ordered",
        fields: Iterable[str] | None = None,
        mode: RowMode = "FAILFAST",
        limits: Limits = LIMITS,
        strict_flags: bool = True,
        threads: int = 1,
        empty: Empty = "null",
    ) -> None:
        check_row_mode(mode, "error")
        check_option("empty", empty, Empty)
        check_limits(limits)
        self.schema = envelope_schema(fields)
        self._names = self.schema.names
        self._in_stream = stream_state(in_stream)
        self._permissive = mode == "PERMISSIVE"
        self._limits = limits
        self._strict_flags = strict_flags
        self._threads = check_threads(threads)
        self._empty_is_null = empty == "null"
        self.empty_payloads = 0
        self._carry: bool | None = None
        self._alone = Exclusive()

    def decode(self, payloads: Any) -> pa.RecordBatch:
        """Decode the next payloads; see `decode_messages`."""
        with self._alone:
            batch, self._carry, n_empty = self._decode(payloads, self._carry)
            self.empty_payloads += n_empty
            return batch

    def decode_after(
        self, payloads: Any, streamed: bool | None, *, kind_codes: bool = False
    ) -> tuple[pa.RecordBatch, bool | None]:
        """Decode payloads with a given stream state before them; None if it is unknown.

        Return also the state after them. The state of the decoder itself is neither used nor changed, so several
        threads may call this method at the same time. With `kind_codes`, the column `kind`, which must be one
        of the fields, has codes; see `pgdecode.envelope.kind_codes`.
        """
        return self._decode(payloads, streamed, kind_codes=kind_codes)[:2]

    def decode_apart(self, parts: Sequence[pa.Array]) -> pa.RecordBatch:
        """Decode several arrays of payloads to one batch, with the rows that `decode_after` makes of each alone.

        The order of payloads must not matter: `in_stream` is "auto" or a bool. The state of the decoder is not used.
        """
        source = Source(list(parts))
        in_stream = "by_part" if self._in_stream == "auto" else self._in_stream
        return self._scan(source, None, 1, in_stream)[0]

    def _decode(
        self, payloads: Any, streamed: bool | None, *, kind_codes: bool = False
    ) -> tuple[pa.RecordBatch, bool | None, int]:
        source = Source(payload_parts(payloads))
        n_threads = threads_for(source, self._threads)
        if n_threads > 1:
            # If the threads fail, one thread decodes everything again and raises the error of the first bad row.
            # A DecodeError is a ValueError; bad Arrow offsets raise a ValueError too.
            with suppress(ValueError, MemoryError):
                return self._scan(source, streamed, n_threads, self._in_stream, kind_codes=kind_codes)
        return self._scan(source, streamed, 1, self._in_stream, kind_codes=kind_codes)

    def _scan(
        self, source: Source, streamed: bool | None, n_threads: int, in_stream: Any, *, kind_codes: bool = False
    ) -> tuple[pa.RecordBatch, bool | None, int]:
        scan, buffers, carry = scan_payloads(
            source,
            self._names,
            self._limits,
            strict_flags=self._strict_flags,
            permissive=self._permissive,
            kind_codes=kind_codes,
            empty_is_null=self._empty_is_null,
            in_stream=in_stream,
            streamed=streamed,
            n_threads=n_threads,
        )
        codes = buffers.pop("kind") if kind_codes else None
        arrays = _envelope(buffers, source.n_rows, self._names)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if codes is not None:
            index = self._names.index("kind")
            batch = batch.set_column(index, "kind", pa.Array.from_buffers(CODES_TYPE, source.n_rows, codes))
        return batch, carry, scan.n_empty


def _envelope(buffers: dict[str, tuple[Any, ...]], n_rows: int, names: list[str]) -> list[pa.Array]:
    """Make the columns over the buffers that the scan filled."""
    nulls = _kept_nulls if n_rows <= _SHARED_ROWS else _nulls
    arrays = []
    for name in names:
        parts = buffers.get(name)
        if parts is None:
            arrays.append(nulls(n_rows, name))
        elif name in _NESTED:
            arrays.append(_NESTED[name](ENVELOPE_TYPES[name], n_rows, *parts))
        else:
            arrays.append(_from_buffers(ENVELOPE_TYPES[name], n_rows, parts))
    return arrays


def _nulls(n_rows: int, name: str) -> pa.Array:
    return null_array(n_rows, ENVELOPE_TYPES[name])


@lru_cache(maxsize=64)
def _kept_nulls(n_rows: int, name: str) -> pa.Array:
    """Make a column of nulls; batches of the same length share it."""
    return null_array(n_rows, ENVELOPE_TYPES[name], is_kept=True)


def _cells(type: pa.DataType, length: int, validity: Any, offsets: Any, n_cells: int, cells: Any) -> pa.Array:
    return _list(type, length, validity, offsets, _from_buffers(type.value_type, n_cells, cells))


def _oids(type: pa.DataType, length: int, validity: Any, offsets: Any, items: Any) -> pa.Array:
    return _list(type, length, validity, offsets, _from_buffers(type.value_type, items.size // 8, (None, items)))


def _columns(
    type: pa.DataType,
    length: int,
    validity: Any,
    offsets: Any,
    n: int,
    flags: Any,
    name_ends: Any,
    names: Any,
    type_ids: Any,
    type_modifiers: Any,
) -> pa.Array:
    buffers = ((None, flags), (None, name_ends, names), (None, type_ids), (None, type_modifiers))
    parts = [_from_buffers(type, n, part) for type, part in zip(_COLUMN_TYPES, buffers, strict=True)]
    columns = _from_buffers(COLUMN_TYPE, n, [None], children=parts)
    return _list(type, length, validity, offsets, columns)


def _list(type: pa.DataType, length: int, validity: Any, offsets: Any, items: pa.Array) -> pa.Array:
    return _from_buffers(type, length, (validity, offsets), children=[items])


_NESTED: dict[str, Callable[..., pa.Array]] = {"old": _cells, "new": _cells, "relation_ids": _oids, "columns": _columns}
