"""Errors of a capture: one class for each way in which a caller can react."""

from __future__ import annotations


class CaptureError(Exception):
    """A capture cannot begin or continue. The text is one line without secrets."""


class RequestError(CaptureError):
    """The request cannot be carried out: a wrong option or name, a missing permission, an unreachable server."""


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
