"""Decodes payload files to envelope batches, each with the location of its rows in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.message_filter import tagged
from pgdecode.changes.record_batches import code_of
from pgdecode.envelope.decoder import MessageDecoder
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files.payload_batches import are_payloads, read_files, read_together
from pgdecode.files.payload_file import (
    BATCH_ROWS,
    IS_KEEPALIVE,
    FileFault,
    PayloadFile,
    RawBatch,
    fingerprint_of,
    one_batch,
)
from pgdecode.files.writers import BAD_PAYLOADS
from pgdecode.payloads.unwrap import hint
from pgdecode.payloads.workers import ONE_WORKER, Workers
from pgdecode.protocol.boundaries import DELIMITERS
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import LIMITS, Limits
from pgdecode.protocol.options import Empty, InStream, Mode
from pgdecode.storage.object_path import FilePath

# How an error names the option that may help; the command line has another name for it.
_ANY_ORDER = 'in_stream="auto"'

_LAST_ROWS = 64  # that are searched for a boundary first

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class MessageOptions:
    """How payloads are decoded to messages. The fields are parameters of `decode_messages`.

    Attributes
    ----------
    fields : sequence of str, optional
        Envelope columns; by default all but `xid_basis`.
    in_stream : {"ordered", "auto"} or bool
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        At a bad row: yield the rows before it and raise; return the row with its `error`; leave the row out.
    empty : {"null", "error"}
    limits : Limits
    """

    fields: Sequence[str] | None = None
    in_stream: InStream | bool = "ordered"
    mode: Mode = "FAILFAST"
    empty: Empty = "null"
    limits: Limits = LIMITS

    def decoder(self) -> MessageDecoder:
        """Make the decoder. It is always PERMISSIVE, so that FAILFAST can yield the rows before a bad row."""
        names = dict.fromkeys((*envelope_schema(self.fields).names, "error"))
        return MessageDecoder(
            in_stream=self.in_stream, fields=names, mode="PERMISSIVE", empty=self.empty, limits=self.limits
        )


USUAL = MessageOptions()


@dataclass(frozen=True)
class DecodedBatch:
    """Consecutive rows of a file.

    Attributes
    ----------
    start : int
        Number of the first row in the file, counted from 0. Later rows follow only if none was dropped.
    source : pa.RecordBatch
        The payload and `keep` columns.
    envelope : pa.RecordBatch
        The requested columns, then `error` if it was not requested. It has the same rows as `source`.
    n_read : int
        Number of rows read from the file, including dropped ones.
    n_bytes : int
        Size of their payloads.
    n_bad : int
        Number of bad payloads.
    bad_rows : mapping
        Number of bad payloads by error code.
    messages : sequence of int, optional
        Numbers of the rows in the file, if keepalives between them are left out.
    bad : pa.RecordBatch, optional
        The bad payloads, if there are any, as `writers.BAD_PAYLOADS`.
    seconds : float
        How long decoding took.
    """

    start: int
    source: pa.RecordBatch
    envelope: pa.RecordBatch
    n_read: int
    n_bytes: int
    n_bad: int
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    messages: Sequence[int] | None = None
    bad: pa.RecordBatch | None = None
    seconds: float = 0.0

    @property
    def rows(self) -> Sequence[int]:
        """Numbers of the rows in the file."""
        return range(self.start, self.start + len(self.envelope)) if self.messages is None else self.messages


def decoded_batches(
    files: Sequence[PayloadFile], options: MessageOptions = USUAL, batch_rows: int = BATCH_ROWS
) -> Iterator[tuple[PayloadFile, DecodedBatch]]:
    """Decode the payloads of files one after the other, in order. Yield each batch with its file.

    The stream state is kept between the batches of a file. `batch_rows` is the greatest number of rows in a batch.

    Raises
    ------
    FileFault
        If a file is damaged, or in FAILFAST mode at a bad row, with its location.
    """
    prepared = prepared_batches(files, _nothing, options, batch_rows=batch_rows)
    return ((file, batch) for file, batch, _ in prepared)


def _nothing(file: PayloadFile, batch: DecodedBatch) -> None:
    return None


def prepared_batches(
    files: Sequence[PayloadFile],
    prepare: Callable[[PayloadFile, DecodedBatch], Prepared],
    options: MessageOptions = USUAL,
    *,
    batch_rows: int = BATCH_ROWS,
    workers: Workers = ONE_WORKER,
    kind_codes: bool = False,
    ends: dict[FilePath, FileEnd] | None = None,
) -> Generator[tuple[PayloadFile, DecodedBatch, Prepared], None, None]:
    """Decode files one after the other, as `decoded_batches` does, with several workers.

    Yield each batch with its file, and with the result of `prepare`, which a worker calls. A worker decodes a batch
    before the batches before it, with the stream state that their last boundary tells. If this state was wrong, because
    that message is bad, the batch is decoded again. With `kind_codes`, the column `kind` has codes. `ends` are the ends
    of the rows before, for files that are not read from their beginning, and then those of all files.
    """
    decoder = options.decoder()
    ends = {} if ends is None else ends
    starts = {path: end.streamed for path, end in ends.items()}
    streamed: bool | None = None

    def items() -> Iterator[_Item]:
        last, start, expected = None, 0, None
        for file, source in read_files(files, batch_rows, workers):
            if file is not last:
                last, start, expected = file, file.start, starts.get(file.path)
            yield _Item(file, start, source, expected)
            start += source.num_rows
            if options.in_stream != "ordered":
                continue
            # A single worker has decoded the rows before.
            expected = streamed if workers.n == 1 else _state_after(source.column(file.payload), expected)

    def decode(item: _Item) -> _Result[Prepared]:
        batch, fault, after = _decode(decoder, item, options, kind_codes=kind_codes)
        return _Result(item, None if batch is None else (batch, prepare(item.file, batch)), fault, after)

    last: PayloadFile | None = None
    for result in workers.map(decode, items()):
        item = result.item
        if item.file is not last:
            last, streamed = item.file, starts.get(item.file.path)
        if item.streamed != streamed:
            result = decode(item._replace(streamed=streamed))
        streamed = result.after
        if len(item.source):
            payloads = item.source.column(item.file.payload)
            ends[item.file.path] = FileEnd(fingerprint_of(payloads[-1]), streamed)
        if result.found is not None:
            yield (item.file, *result.found)
        if result.fault is not None:
            raise result.fault


def joined_batches(
    files: Sequence[PayloadFile], options: MessageOptions, batch_rows: int = BATCH_ROWS
) -> Iterator[tuple[PayloadFile, DecodedBatch]]:
    """Decode files to the same rows as `decoded_batches`, but join the batches of small files.

    `in_stream` is not "ordered".
    A joined batch has no bad payloads. Its file and its `start` are those of the first row.

    Raises
    ------
    FileFault
        As in `decoded_batches`.
    """
    decoder = options.decoder()
    for batches in read_together(files, batch_rows):
        joined = _joined(decoder, batches) if len(batches) > 1 and are_payloads(batches) else None
        if joined is not None:
            yield batches[0].file, joined
            continue
        for file, start, source in batches:
            item = _Item(file, start, file.unwrapped(source, start), None)
            batch, fault, _ = _decode(decoder, item, options)
            if batch is not None:
                yield file, batch
            if fault is not None:
                raise fault


def _joined(decoder: MessageDecoder, batches: Sequence[RawBatch]) -> DecodedBatch | None:
    """Decode batches to one; None if a payload is bad."""
    started = perf_counter()
    try:
        envelope = decoder.decode_apart([batch.payloads for batch in batches])
    except DecodeError:
        return None
    errors = envelope.column("error")
    if errors.null_count < len(errors):
        return None
    file, start, _ = batches[0]
    source = one_batch([batch.source for batch in batches])
    n_bytes = _payload_bytes(source, file)
    return DecodedBatch(start, source, envelope, len(source), n_bytes, 0, seconds=perf_counter() - started)


def _decode(
    decoder: MessageDecoder, item: _Item, options: MessageOptions, *, kind_codes: bool = False
) -> tuple[DecodedBatch | None, FileFault | None, bool | None]:
    """Decode rows. Return their batch, the error after it, and the stream state at their end."""
    file, start, source, streamed = item
    started = perf_counter()
    try:
        envelope, after = decoder.decode_after(source.column(file.payload), streamed, kind_codes=kind_codes)
    except DecodeError as error:
        fault = FileFault(f"{file.path}: rows from {start}: {error.detail}")
        fault.__cause__ = error
        return None, fault, None
    batch, failed = _decoded(item, envelope, options)
    return replace(batch, seconds=perf_counter() - started), failed, after


class FileEnd(NamedTuple):
    """The end of a file: the fingerprint of its last row, and the stream state after it."""

    fingerprint: str | None
    streamed: bool | None


class _Item(NamedTuple):
    """Rows of a file, and the stream state before them."""

    file: PayloadFile
    start: int
    source: pa.RecordBatch
    streamed: bool | None


@dataclass(frozen=True)
class _Result(Generic[Prepared]):
    """Decoded rows, the error after them, and the stream state at their end."""

    item: _Item
    found: tuple[DecodedBatch, Prepared] | None
    fault: FileFault | None
    after: bool | None


def _state_after(payloads: pa.Array, streamed: bool | None) -> bool | None:
    """Return the stream state after payloads, by the tag of their last boundary. It is usually near the end."""
    end, n_rows = len(payloads), _LAST_ROWS
    while end:
        start = max(end - n_rows, 0)
        last = tagged(Source([payloads.slice(start, end - start)]), b"", DELIMITERS)[2]
        if last >= 0:
            return bytes(payloads[start + last].as_buffer()[:1]) == b"S"
        end, n_rows = start, n_rows * 8
    return streamed


def _decoded(item: _Item, envelope: pa.RecordBatch, options: MessageOptions) -> tuple[DecodedBatch, FileFault | None]:
    """Make the batch that `decoded_batches` yields, and its error."""
    file, start, source, _ = item
    errors = envelope.column("error")
    n_bad = len(errors) - errors.null_count
    if n_bad and options.mode == "FAILFAST":
        bad = errors.is_valid().index(True).as_py()
        text = errors[bad].as_py()
        good_rows, good, rows = _without_keepalives(source.slice(0, bad), envelope.slice(0, bad), start)
        form = hint(source.column(file.payload)[bad].as_py())
        fault = FileFault(f"{file.path}: row {start + bad}: {text}{_hint(text, options.in_stream)}{form}")
        n_bytes = _payload_bytes(good_rows, file)
        return DecodedBatch(start, good_rows, good, bad, n_bytes, 0, messages=rows), fault
    n_read, n_bytes = source.num_rows, _payload_bytes(source, file)
    bad_payloads = None
    if n_bad:
        chosen = pc.indices_nonzero(errors.is_valid())
        bad_payloads = bad_batch(file, start, chosen, None, source.column(file.payload), errors.take(chosen))
    source, envelope, rows = _without_keepalives(source, envelope, start)
    errors = envelope.column("error")
    if n_bad and options.mode == "DROPMALFORMED":
        good = errors.is_null()
        source, envelope, rows = source.filter(good), envelope.filter(good), None
    bad_rows = Counter(code_of(text) for text in errors.drop_null().to_pylist()) if n_bad else {}
    return DecodedBatch(start, source, envelope, n_read, n_bytes, n_bad, bad_rows, rows, bad_payloads), None


def _without_keepalives(
    source: pa.RecordBatch, envelope: pa.RecordBatch, start: int
) -> tuple[pa.RecordBatch, pa.RecordBatch, list[int] | None]:
    """Leave keepalives out. Return also the numbers of the other rows in the file, if there are keepalives."""
    if IS_KEEPALIVE not in source.schema.names:
        return source, envelope, None
    kept = pc.invert(source.column(IS_KEEPALIVE))
    rows = [start + row for row in pc.indices_nonzero(kept).to_pylist()]
    return source.drop_columns([IS_KEEPALIVE]).filter(kept), envelope.filter(kept), rows


def bad_batch(
    file: PayloadFile, start: int, rows: pa.Array, positions: pa.Array | None, payloads: pa.Array, errors: pa.Array
) -> pa.RecordBatch:
    """Make a batch of `writers.BAD_PAYLOADS` from some rows of a batch that begins at row `start` of its file."""
    columns = [
        pa.repeat(pa.scalar(str(file.path), pa.string()), len(rows)),
        pc.add(rows.cast(pa.int64()), start),
        pa.nulls(len(rows), pa.int64()) if positions is None else positions.take(rows),
        payloads.take(rows).cast(pa.large_binary()),
        errors,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BAD_PAYLOADS)


def _payload_bytes(batch: pa.RecordBatch, file: PayloadFile) -> int:
    n_bytes: int | None = pc.sum(pc.binary_length(batch.column(file.payload))).as_py()
    return n_bytes or 0


def _hint(error: str, in_stream: InStream | bool) -> str:
    if in_stream == "ordered" and error.startswith("STATE_DESYNC"):
        return f" ({_ANY_ORDER} reads payloads in any order)"
    return ""
