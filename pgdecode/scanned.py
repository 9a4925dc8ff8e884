"""The payloads of a batch, and the fields of them that transactions are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgdecode._message import fields_of
from pgdecode._outline import Outline
from pgdecode._scan import Scan
from pgdecode._source import Source
from pgdecode.errors import DecodeError
from pgdecode.ledger import Ledger, Options
from pgdecode.messages import MESSAGES

NO_KIND = 0xFF
_KIND_BY_TAG = {item.tag.encode(): item.kind for item in MESSAGES}


class ScannedBatch:
    """A batch as the rules of transactions see it, a row a payload; what is wrong with one is told of its row.

    The scan says of each what message it is; fields are read of the few that the rules ask for.

    Parameters
    ----------
    ledger : Ledger
        As it stood before the batch.
    payloads, positions : pa.Array
    first_row : int
        Number of the batch's first payload, for errors.
    """

    notes_lost = False  # whether it matters that a transaction has lost its outcome, though nothing of it is delivered

    def __init__(
        self, ledger: Ledger, payloads: pa.Array, positions: pa.Array, options: Options, first_row: int = 0
    ) -> None:
        self.ledger = ledger
        ledger.catalog.limits = options.limits
        self.payloads = payloads
        self.positions = positions
        self.options = options
        self.first_row = first_row
        self.parts = [payloads]
        self.all_positions = [positions]
        self.n_rows = len(payloads)
        self.end = len(payloads)  # rows in all parts
        self.gids: dict[int, str] = {}
        self.told: dict[int, str] = {}
        self.judged: bytes | None = None  # verdicts of the scan, whose lowest bit is "in a stream"; None: none is
        self._read_row = -1  # of the fields that were read last
        self.wanted: bytes | None = None  # versions whose changes are delivered, a byte each; None: all changes are
        self.since = 0  # the first change since a transaction was entered
        # Rows that the outline has left to the rules; not Relation messages that say again what counts already.
        self.met: list[int] = []
        self.of_stream: list[int] = []  # relations for which the outline knows the versions of a stream

    def _read(self) -> None:
        """Check all payloads, and make the outline, which has no changes yet."""
        self.source = Source([self.payloads])
        found = self._scan()
        self.kinds = memoryview(found["kind"][1]).cast("B")
        error = found.get("error")
        self.errors = None if error is None else pa.Array.from_buffers(pa.string(), self.n_rows, list(error))
        self.outline = Outline(
            self.source,
            self.kinds,
            found["relations"][1],
            self.judged,
            self.ledger.last_lsn,
            self.options.drop_duplicates,
            not (self.notes_lost or self.options.include_uncommitted),
            self.ledger.catalog.is_said_again,
            self.wanted,
        )

    def _scan(self) -> dict[str, tuple[Any, ...]]:
        """Say of each payload which message it is, and what is wrong with it."""
        carry = None
        if self.ledger.stream is not None:
            carry = True
        elif self.ledger.begun:
            carry = False
        permissive = self.options.mode != "FAILFAST"
        found = None
        for in_full in (False, True):
            options = self.options.limits, self.options.strict_flags, permissive
            scan = Scan(self.source, ("kind", "error"), *options, kind_codes=True)
            scan.judge(None, carry, in_full)
            try:
                found = scan.run()
            except DecodeError as error:
                raise self._moved(error) from None
            if found is not None:
                break
        assert found is not None
        self.judged = scan.judged
        return found

    def release(self) -> None:
        """Let go of what only following needs, when all is delivered: it is larger than what is delivered."""
        del self.outline, self.source, self.kinds, self.errors, self.judged, self.met

    def add_part(self, payloads: pa.Array, positions: pa.Array) -> None:
        """Put payloads of earlier batches behind those of this one."""
        self.parts.append(payloads)
        self.all_positions.append(positions)
        self.end += len(payloads)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _value(self, name: str, row: int) -> Any:
        """Field of a good payload by its envelope column, None where the message has it not."""
        if self._read_row != row:
            self._fields = fields_of(self.source, row, self._is_streamed(row))
            self._read_row = row
        return self._fields.get(name)

    def _error(self, row: int) -> str | None:
        """Say what is wrong with a payload; None of a null one."""
        return None if self.errors is None else self.errors[row].as_py()

    def _is_streamed(self, row: int) -> bool:
        return self.judged is not None and self.judged[row] & 1 != 0

    def _position(self, row: int) -> int:
        return int(self.positions[row].as_py())

    def kind_of(self, row: int) -> str:
        """Kind of the message in a row, also in one that is held."""
        return _KIND_BY_TAG[self.payload_of(row)[:1]]

    def payload_of(self, row: int) -> bytes:
        """Payload of a row, also of one that is held."""
        number, row = self._place(row)
        return bytes(self.parts[number][row].as_py())

    def _place(self, row: int) -> tuple[int, int]:
        """Which part a row lies in, and where: of payloads and of positions alike."""
        for number, part in enumerate(self.parts):
            if row < len(part):
                return number, row
            row -= len(part)
        raise IndexError(row)

    def _kind(self, row: int) -> str:
        return MESSAGES[self.kinds[row]].kind

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fault(self, row: int, cls: type[DecodeError], detail: str) -> None:
        """Raise, or tell it of the row."""
        self._tell(row, cls(detail, row=row, tag=MESSAGES[self.kinds[row]].tag))

    def _tell(self, row: int, error: DecodeError) -> None:
        error.row = row
        if self.options.mode == "FAILFAST":
            raise self._moved(error) from None
        self.told[row] = error.cell
        self.outline.list_bad(row)

    def placed(self, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Give the error of a delivered change the row of its payload, None where that was of an earlier call."""
        row = None if error.row is None else rows[error.row].as_py()
        error.row = row if row is not None and row < self.n_rows else None
        return self._moved(error)

    def _moved(self, error: DecodeError) -> DecodeError:
        """Count the error's row from the first payload of the call."""
        row = None if error.row is None else error.row + self.first_row
        known = {name: getattr(error, name) for name in ("offset", "tag", "relation", "column", "expected", "seen")}
        return type(error)(error.detail, row=row, **known)
