"""Which files of a capture may be deleted, and deleting them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pgdecode.capture.errors import StoppedError
from pgdecode.capture.journal import FileEntry, Journal


@dataclass(frozen=True)
class Retention:
    """What is kept at least: the files of the last so many seconds, or the last so many bytes."""

    seconds: float | None = None
    bytes: int | None = None


def deletable(files: Sequence[FileEntry], retention: Retention, now: float) -> list[FileEntry]:
    """Find the files that may go, oldest first.

    Parameters
    ----------
    files : sequence of FileEntry
        In order. All are recorded; what is recorded is confirmed, or will be without a look at the files.
    retention : Retention
    now : float
        Seconds since 1970.

    Returns
    -------
    list of FileEntry
        Never the last file, from which a lost log is restored, and never one that has the beginning of a transaction
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
    """Whether no transaction reaches from one file into the next; streams do not outlive their session."""
    return not last.prepared and (not last.open_streams or last.session != first.session)


def delete_old(journal: Journal, retention: Retention) -> None:
    """Delete files, and say so in the log.

    Raises
    ------
    StoppedError
        If one cannot be deleted.
    """
    for entry in deletable(list(journal.contents.files.values()), retention, time.time()):
        try:
            # The log comes second: a file that it has and the folder has not is known to be deleted.
            (journal.folder / entry.name).unlink(missing_ok=True)
        except OSError as error:
            raise StoppedError(f"{journal.folder / entry.name}: cannot be deleted: {error.strerror}") from error
        journal.append("deleted", name=entry.name)
