"""The status of a capture's folder and of its slot."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgdecode.capture import server
from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import RequestError, ServerError
from pgdecode.capture.journal import LOG_NAME, read_log
from pgdecode.protocol.lsn import lsn_to_text


@dataclass(frozen=True)
class Status:
    """The recorded files, the state of the server, and the lag.

    Attributes
    ----------
    folder : str
    recorded : int or None
        LSN up to which everything is recorded.
    files, rows, bytes : int
        Number of complete files in the folder, their rows and bytes.
    first_seq, last_seq : int or None
    last_sealed_us : int or None
        Completion time of the last file, in microseconds since 1970.
    deleted_files, deleted_bytes : int
        Number and size of the files that retention rules have deleted.
    gaps : list
        Accepted gaps, as in the log.
    publications : list of str
        Publications that the folder has now.
    publication_changes : list
        From which LSN it has other publications than before, as in the log.
    current : int
        LSN up to which the server has WAL.
    lag_bytes : int or None
        Bytes of WAL that are not recorded.
    lag_seconds : float or None
        Seconds since the last file was completed, if more WAL exists; 0 if everything is recorded.
    slot : dict
        The slot's row in pg_replication_slots; empty if there is no such slot.
    obstacle : str or None
        Why the slot cannot be captured to the folder without accepting a gap: it is lost, or does not exist, or changes
        are missing. Also one of the warnings.
    warnings : list of str
    """

    folder: str
    recorded: int | None
    files: int
    rows: int
    bytes: int
    first_seq: int | None
    last_seq: int | None
    last_sealed_us: int | None
    deleted_files: int
    deleted_bytes: int
    gaps: list[dict[str, Any]]
    publications: list[str]
    publication_changes: list[dict[str, Any]]
    current: int
    lag_bytes: int | None
    lag_seconds: float | None
    slot: dict[str, Any] = field(default_factory=dict)
    obstacle: str | None = None
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Convert the status to JSON values, with LSNs in PostgreSQL's text form."""
        lsns = {
            "recorded": None if self.recorded is None else lsn_to_text(self.recorded),
            "current": lsn_to_text(self.current),
        }
        return {**vars(self), **lsns}


def read_status(dsn: str, folder: Path, slot: str) -> Status:
    """Read the log of a folder and the state of the slot. A capture may be running.

    Raises
    ------
    RequestError
        If no capture has written to the folder, or the server cannot be reached.
    """
    if not (folder / LOG_NAME).exists():
        raise RequestError(f"{folder}: no capture has written to it")
    contents = read_log(folder)
    files = list(contents.files.values())
    warnings: list[str] = []
    try:
        with contextlib.closing(Connection(dsn)) as connection:
            state = server.find_slot(connection, slot)
            current = server.current_lsn(connection)
            warnings += server.server_warnings(connection)
    except ServerError as error:
        raise RequestError(str(error)) from error
    obstacle: str | None = None
    if state is None:
        obstacle = f"slot {slot!r} does not exist; {server.MISSING_SLOT}"
    elif state.loss:
        obstacle = f"slot {slot!r} {state.loss}; {server.NEW_SLOT}"
    elif state.columns["confirmed_flush_lsn"] is None:
        warnings.append(f"slot {slot!r} is still being created")
    else:
        warnings += state.warnings()
        if contents.recorded is not None and state.confirmed > contents.recorded:
            obstacle = f"gap: {server.described_gap(contents.recorded, state.confirmed)}; {server.MISSING_CHANGES}"
    warnings += [] if obstacle is None else [obstacle]
    lag = None if contents.recorded is None else max(current - contents.recorded, 0)
    last_us = files[-1].sealed_us if files else None
    since = None if last_us is None else time.time() - last_us / 1e6
    return Status(
        folder=str(folder),
        recorded=contents.recorded,
        files=len(files),
        rows=sum(entry.rows for entry in files),
        bytes=sum(entry.bytes for entry in files),
        first_seq=files[0].first_seq if files else None,
        last_seq=files[-1].last_seq if files else None,
        last_sealed_us=last_us,
        deleted_files=contents.deleted_files,
        deleted_bytes=contents.deleted_bytes,
        gaps=contents.gaps,
        publications=list((contents.origin or {}).get("publications", ())),
        publication_changes=contents.publication_changes,
        current=current,
        lag_bytes=lag,
        lag_seconds=0.0 if lag == 0 else since,
        slot={} if state is None else state.columns,
        obstacle=obstacle,
        warnings=warnings,
    )
