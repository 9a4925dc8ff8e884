"""The payloads of a batch, and the fields of them that transactions are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.scan.scanner import Scan
from pgdecode._native.wire.single_message import decode_one, fields_of
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import ChangeOptions

NO_KIND = 0xFF
_KIND_BY_TAG = {item.tag.encode(): item.kind for item in MESSAGES}


class ScannedBatch:
    """A batch as the rules of transactions see it, a row a payload.

    The scan says of each what message it is, and what is wrong with it; fields are read of the few that the rules ask
    for. Payloads of earlier batches may stand behind those of this one, as further parts.

    Parameters
    ----------
    state : ReplicationState
        As it stood before the batch.
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
        self._read_row = -1  # of the fields that were read last
        self._scan(state)

    def _scan(self, state: ReplicationState) -> None:
        """Say of each payload which message it is, and what is wrong with it."""
        options = self.options
        permissive = options.mode != "FAILFAST"
        self.source = Source([self.payloads])
        found = None
        for in_full in (False, True):
            scan = Scan(
                self.source,
                ("kind", "error"),
                options.limits,
                options.strict_flags,
                permissive,
                kind_codes=True,
                empty_is_null=options.empty == "null",
            )
            scan.resolve_streams(None, state.in_stream, in_full, lookahead=False)
            try:
                found = scan.run()
            except DecodeError as error:
                raise self.moved(error) from None
            if found is not None:
                break
        assert found is not None
        state.journal.set_attribute(state, "in_stream", scan.stream_state)
        self.n_empty = scan.n_empty
        self.stream_flags: bytes | None = scan.stream_flags  # whose lowest bit is "in a stream"; None: none is
        self.kinds = memoryview(found["kind"][1]).cast("B")
        self.relation_ids = found["relations"][1]
        errors = found.get("error")
        self.errors = None if errors is None else pa.Array.from_buffers(pa.string(), self.n_rows, list(errors))

    def release(self) -> None:
        """Let go of what only the rules need, when all is committed: it is larger than what is."""
        del self.source, self.kinds, self.relation_ids, self.errors, self.stream_flags

    def add_part(self, payloads: pa.Array, positions: pa.Array) -> None:
        """Put payloads of earlier batches behind those of this one."""
        self.parts.append(payloads)
        self.all_positions.append(positions)
        self.end += len(payloads)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def value(self, name: str, row: int) -> Any:
        """Field of a good payload by its envelope column, None where the message has it not."""
        if self._read_row != row:
            self._fields = fields_of(self.source, row, self.is_streamed(row))
            self._read_row = row
        return self._fields.get(name)

    def error(self, row: int) -> str | None:
        """Say what is wrong with a payload; None of a null one."""
        return None if self.errors is None else self.errors[row].as_py()

    def is_streamed(self, row: int) -> bool:
        """Whether a payload carries an xid."""
        return self.stream_flags is not None and self.stream_flags[row] & 1 != 0

    def position(self, row: int) -> int:
        """Position of a payload of this batch."""
        return int(self.positions[row].as_py())

    def position_of(self, row: int) -> int:
        """Position of a payload in any part."""
        number, row = self._place(row)
        return int(self.all_positions[number][row].as_py())

    def kind(self, row: int) -> str:
        """Kind of the message in a row of this batch."""
        return MESSAGES[self.kinds[row]].kind

    def kind_of(self, row: int) -> str:
        """Kind of the message in a row of any part."""
        return _KIND_BY_TAG[self.payload_of(row)[:1]]

    def payload_of(self, row: int) -> bytes:
        """Payload of a row of any part."""
        number, row = self._place(row)
        return bytes(self.parts[number][row].as_py())

    def message(self, row: int, streamed: bool) -> Any:
        """Decode the message in a row of this batch."""
        options = self.options
        return decode_one(self.payloads[row].as_py(), streamed, options.limits, options.strict_flags)

    def _place(self, row: int) -> tuple[int, int]:
        """Which part a row lies in, and where: of payloads and of positions alike."""
        for number, part in enumerate(self.parts):
            if row < len(part):
                return number, row
            row -= len(part)
        raise IndexError(row)

    # -- errors --------------------------------------------------------------------------------------------------------

    def placed(self, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Give the error of a committed change the row of its payload, None where that was of an earlier call."""
        row = None if error.row is None else rows[error.row].as_py()
        error.row = row if row is not None and row < self.n_rows else None
        return self.moved(error)

    def moved(self, error: DecodeError) -> DecodeError:
        """Count the error's row from the first payload of the call."""
        row = None if error.row is None else error.row + self.first_row
        known = {name: getattr(error, name) for name in ("offset", "tag", "relation", "column", "expected", "seen")}
        return type(error)(error.detail, row=row, **known)
