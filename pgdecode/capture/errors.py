"""Errors of a capture: one class for each way in which a caller can react."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa


class CaptureError(Exception):
    """A capture cannot begin or continue. The text is one line without secrets."""


class RequestError(CaptureError):
    """The request cannot be carried out: a wrong option or name, a missing permission, an unreachable server."""


class FolderBusyError(RequestError):
    """Another capture writes to the folder. A later attempt may succeed."""


class StoppedError(CaptureError):
    """The state of the server or of the folder prevented or ended the capture. Its files are complete."""


class GapError(StoppedError):
    """Changes are missing between what is recorded and what the server will send.

    Attributes
    ----------
    recorded : int or None
        LSN up to which the folder has everything.
    confirmed : int
        LSN from which the server will send.
    """

    def __init__(self, text: str, recorded: int | None, confirmed: int) -> None:
        super().__init__(text)
        self.recorded = recorded
        self.confirmed = confirmed


# SQLSTATE of a lock that was not granted in time (lock_not_available).
LOCKED = "55P03"
# SQLSTATE of a slot or a publication that does not exist (undefined_object).
UNDEFINED_OBJECT = "42704"


class ServerError(CaptureError):
    """An error that the server reported, with its SQLSTATE, which is empty if the connection itself failed."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate

    @property
    def may_pass(self) -> bool:
        """Whether a new connection may succeed.

        True for lost connections and operator intervention (classes 08 and 57), too many connections (53300), and a
        slot that another session still holds (55006), because the server has not yet noticed that its client is gone.
        """
        return self.sqlstate[:2] in ("", "08", "57") or self.sqlstate in ("53300", "55006")


class StopRequestedError(ServerError):
    """The capture was asked to stop while it waited for the server."""

    def __init__(self) -> None:
        super().__init__("stopped while waiting for the server")


@contextmanager
def reported(path: Path, action: str = "cannot be written", kind: type[CaptureError] = StoppedError) -> Iterator[None]:
    """Convert an error of a file to one of a capture, which names the path and the cause."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise kind(f"{path}: {action}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the operating system's text for an error. Arrow has the error number at the end of its text."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    _, separator, detail = text.partition("[errno ")
    number = detail.partition("]")[0]
    return os.strerror(int(number)) if separator and number.isdigit() else text
