"""Deletion of a capture's old files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pgdecode.capture.errors import reported
from pgdecode.capture.journal import FileEntry, Journal


@dataclass(frozen=True)
class Retention:
    """The minimum to keep: the files of the last `seconds`, or the last `bytes` of files."""

    seconds: float | None = None
    bytes: int | None = None


def deletable(files: Sequence[FileEntry], retention: Retention, now: float) -> list[FileEntry]:
    """Find the files that may be deleted, oldest first.

    Parameters
    ----------
    files : sequence of FileEntry
        In order. All of them are recorded, so the server is not asked to send them again.
    retention : Retention
    now : float
        Seconds since 1970.

    Returns
    -------
    list of FileEntry
        Never the last file, because a lost log is restored from it. Never a file with the beginning of a transaction
        whose end is in a file that is kept.
    """
    n_old = 0
    kept_bytes = 0
    for number in range(len(files), 0, -1):
        kept_bytes += files[number - 1].bytes
        is_old = retention.seconds is not None and files[number - 1].sealed_us / 1e6 < now - retention.seconds
        is_beyond = retention.bytes is not None and kept_bytes > retention.bytes
        if is_old or is_beyond:
            n_old = number
            break
    n_old = min(n_old, len(files) - 1)
    while n_old > 0 and not _is_clean(files[n_old - 1], files[n_old]):
        n_old -= 1
    return list(files[: max(n_old, 0)])


def _is_clean(last: FileEntry, first: FileEntry) -> bool:
    """Whether no transaction continues from one file into the next. Streams end with their session."""
    return not last.prepared and (not last.open_streams or last.session != first.session)


def delete_old(journal: Journal, retention: Retention) -> None:
    """Delete old files, and record the deletions in the log.

    Raises
    ------
    StoppedError
        If a file cannot be deleted.
    """
    for entry in deletable(list(journal.contents.files.values()), retention, time.time()):
        # The file is deleted first: a file that is in the log but not in the folder is treated as deleted.
        with reported(journal.folder / entry.name, "cannot be deleted"):
            (journal.folder / entry.name).unlink(missing_ok=True)
        journal.append("deleted", name=entry.name)
