"""What stops a capture: one class for each kind of answer that a caller can give."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture cannot begin or go on; the text is one line without secrets."""


class RequestError(CaptureError):
    """What was asked for cannot be done: an option, a name, a permission, a server that is not there."""


class StoppedError(CaptureError):
    """The capture was refused or ended by the state of the server or of the folder; its files are whole."""


class GapError(StoppedError):
    """Changes are missing between what is recorded and what the server will send.

    Attributes
    ----------
    recorded : int or None
        LSN up to which the folder has everything.
    confirmed : int
        LSN from which on the server sends.
    """

    def __init__(self, text: str, recorded: int | None, confirmed: int) -> None:
        super().__init__(text)
        self.recorded = recorded
        self.confirmed = confirmed


class ServerError(CaptureError):
    """An error that the server reported, with its SQLSTATE; empty where the connection itself failed."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate

    @property
    def may_pass(self) -> bool:
        """Whether a new connection may succeed.

        Lost connections and operator intervention (classes 08 and 57), too many connections (53300), and a slot that
        another session still holds (55006): the server has not noticed yet that the former client is gone.
        """
        return self.sqlstate[:2] in ("", "08", "57") or self.sqlstate in ("53300", "55006")
