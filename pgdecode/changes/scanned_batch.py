"""The scanned payloads of a batch, with access to the fields that the transaction assembler needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.wire.single_message import decode_one, fields_of
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.envelope.scanning import scan_payloads
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.limits import MAX_PAYLOAD
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import ChangeOptions

NO_KIND = 0xFF
_KIND_BY_TAG = {item.tag.encode(): item.kind for item in MESSAGES}


class ScannedBatch:
    """A batch for the transaction assembler, with one row per payload.

    The scan finds the kind and the error of each payload. Other fields are read on demand, because few are needed.
    Buffered payloads of earlier batches may follow those of this batch, as further parts.

    Parameters
    ----------
    state : ReplicationState
        The state before the batch.
    payloads, positions : pa.Array
    options : ChangeOptions
    first_row : int
        Number of the batch's first payload, for errors.

    Raises
    ------
    DecodeError
        In FAILFAST mode for a bad payload.
    """

    def __init__(
        self,
        state: ReplicationState,
        payloads: pa.Array,
        positions: pa.Array,
        options: ChangeOptions,
        first_row: int = 0,
    ) -> None:
        self.payloads = payloads
        self.positions = positions
        self.options = options
        self.first_row = first_row
        self.parts = [payloads]
        self.all_positions = [positions]
        self.n_rows = len(payloads)
        self.end = len(payloads)  # rows in all parts
        self._read_row = -1  # row of the fields in `_fields`
        self._scan(state)

    def _scan(self, state: ReplicationState) -> None:
        """Find the kind, the error and the stream flag of each payload."""
        options = self.options
        self.source = Source([self.payloads])
        try:
            scan, found, stream_state = scan_payloads(
                self.source,
                ("kind", "error"),
                # The limit of values applies where they are decoded, so that the rest of their row is.
                replace(options.limits, max_value_bytes=MAX_PAYLOAD),
                strict_flags=options.strict_flags,
                permissive=options.mode != "FAILFAST",
                kind_codes=True,
                empty_is_null=options.empty == "null",
                streamed=state.in_stream,
                lookahead=False,
            )
        except DecodeError as error:
            raise self.moved(error) from None
        state.undo_log.set_attribute(state, "in_stream", stream_state)
        self.n_empty = scan.n_empty
        self.stream_flags: bytes | None = scan.stream_flags  # lowest bit: in a stream; None if no payload is
        self.kinds = memoryview(found["kind"][1]).cast("B")
        self.relation_ids = found["relations"][1]
        errors = found.get("error")
        self.errors = None if errors is None else pa.Array.from_buffers(pa.string(), self.n_rows, list(errors))

    def release(self) -> None:
        """Release what only the assembler needs. It is larger than the committed changes."""
        del self.source, self.kinds, self.relation_ids, self.errors, self.stream_flags

    def add_part(self, payloads: pa.Array, positions: pa.Array) -> None:
        """Add payloads of earlier batches after those of this batch."""
        self.parts.append(payloads)
        self.all_positions.append(positions)
        self.end += len(payloads)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def value(self, name: str, row: int) -> Any:
        """Return a field of a valid payload by its envelope column; None if the message does not have it."""
        if self._read_row != row:
            self._fields = fields_of(self.source, row, self.is_streamed(row))
            self._read_row = row
        return self._fields.get(name)

    def error(self, row: int) -> str | None:
        """Return the error of a payload; None for a valid or null payload."""
        return None if self.errors is None else self.errors[row].as_py()

    def is_streamed(self, row: int) -> bool:
        """Whether a payload carries an xid."""
        return self.stream_flags is not None and self.stream_flags[row] & 1 != 0

    def position(self, row: int) -> int:
        """Return the position of a payload of this batch."""
        return int(self.positions[row].as_py())

    def position_of(self, row: int) -> int:
        """Return the position of a payload in any part."""
        number, row = self._place(row)
        return int(self.all_positions[number][row].as_py())

    def kind(self, row: int) -> str:
        """Return the kind of the message in a row of this batch."""
        return MESSAGES[self.kinds[row]].kind

    def kind_of(self, row: int) -> str:
        """Return the kind of the message in a row of any part."""
        return _KIND_BY_TAG[self.payload_of(row)[:1]]

    def payload_of(self, row: int) -> bytes:
        """Return the payload of a row of any part."""
        number, row = self._place(row)
        return bytes(self.parts[number][row].as_py())

    def message(self, row: int, streamed: bool) -> Any:
        """Decode the message in a row of this batch."""
        options = self.options
        return decode_one(self.payloads[row].as_py(), streamed, options.limits, options.strict_flags)

    def _place(self, row: int) -> tuple[int, int]:
        """Find the number of a row's part, and the row in that part."""
        for number, part in enumerate(self.parts):
            if row < len(part):
                return number, row
            row -= len(part)
        raise IndexError(row)

    # -- errors --------------------------------------------------------------------------------------------------------

    def moved(self, error: DecodeError) -> DecodeError:
        """Return the error with its row counted from the first payload of the call."""
        row = None if error.row is None else error.row + self.first_row
        known = {name: getattr(error, name) for name in ("offset", "tag", "relation", "column", "expected", "seen")}
        return type(error)(error.detail, row=row, **known)
