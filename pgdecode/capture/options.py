"""Options of pgoutput, the server versions that have them, and the settings of the capturing session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pgdecode.capture.errors import RequestError
from pgdecode.relations.table_names import quoted_name

Streaming = Literal["off", "on", "parallel"]
Origin = Literal["any", "none"]

# The first major version of PostgreSQL with each protocol version (src/include/replication/logicalproto.h).
FIRST_MAJOR = {1: 10, 2: 14, 3: 15, 4: 16}
_NEEDED_BY = {"on": 2, "parallel": 4}


@dataclass(frozen=True)
class PinnedSetting:
    """A setting that every connection of a capture sets, so that role, database and server do not decide it.

    Attributes
    ----------
    name, value : str
    why : str
        What another value would change.
    since : int
        The first major version of PostgreSQL that has it.
    """

    name: str
    value: str
    why: str
    since: int = 10


# The timeouts come first, because they may end the statement that sets the rest.
# tests/capture/test_capture_settings.py has the settings that a role can set and that do not matter, with reasons.
PINNED = (
    PinnedSetting("statement_timeout", "0", "ends a statement"),
    PinnedSetting("transaction_timeout", "0", "ends the session while a large transaction is sent", 17),
    PinnedSetting("idle_in_transaction_session_timeout", "0", "ends the session"),
    PinnedSetting("idle_session_timeout", "0", "ends the session", 14),
    PinnedSetting("lock_timeout", "0", "ends a statement"),
    PinnedSetting("tcp_user_timeout", "0", "ends the session on a slow network", 12),
    PinnedSetting("exit_on_error", "off", "ends the session at any error"),
    PinnedSetting("client_min_messages", "warning", "hides the warning that the server leaves out changes"),
    PinnedSetting("role", "none", "changes the permissions of the session"),
    PinnedSetting("standard_conforming_strings", "on", "changes the meaning of a backslash in names"),
    PinnedSetting("default_transaction_isolation", "read committed", "serializable fails on a standby"),
    PinnedSetting("default_transaction_read_only", "off", "queries may wait for other transactions"),
    PinnedSetting("default_transaction_deferrable", "off", "queries may wait for other transactions"),
    PinnedSetting("client_encoding", "UTF8", "text in another encoding"),
    PinnedSetting("datestyle", "ISO", "text of dates and times"),
    PinnedSetting("timezone", "UTC", "text of timestamptz"),
    PinnedSetting("intervalstyle", "postgres", "text of intervals"),
    PinnedSetting("extra_float_digits", "3", "digits of float4 and float8"),
    PinnedSetting("bytea_output", "hex", "text of bytea"),
    PinnedSetting("quote_all_identifiers", "off", "quotes in regclass and in names of types"),
    PinnedSetting("search_path", "", "whether regclass has a schema: always"),
)

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


@dataclass(frozen=True)
class PluginOptions:
    """Options of pgoutput.

    Parameters
    ----------
    protocol : int, optional
        1 to 4; by default the lowest version that the other options need.
    streaming : {"off", "on", "parallel"}
        Whether large transactions are sent before they commit.
    two_phase : bool
        Whether prepared transactions are sent when they are prepared.
    binary : bool
        Whether values are sent in binary form if their type has one.
    messages : bool
        Whether messages of pg_logical_emit_message are sent.
    origin : {"any", "none"}, optional
        "none" leaves out changes that were replicated to the server.

    Raises
    ------
    RequestError
        If pgoutput does not have a value, or options exclude each other.
    """

    protocol: int | None = None
    streaming: Streaming = "off"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.protocol is not None and self.protocol not in FIRST_MAJOR:
            raise RequestError(f"protocol is 1 to 4, not {self.protocol!r}")
        if self.streaming not in ("off", "on", "parallel"):
            raise RequestError(f'streaming is "off", "on" or "parallel", not {self.streaming!r}')
        if self.origin not in (None, "any", "none"):
            raise RequestError(f'origin is "any" or "none", not {self.origin!r}')
        if self.protocol is not None and self.protocol < self._least_protocol:
            what = f"streaming {self.streaming}" if self._by_streaming > self.protocol else "two_phase"
            raise RequestError(f"{what} needs protocol {self._least_protocol}, not {self.protocol}")

    @property
    def _by_streaming(self) -> int:
        return _NEEDED_BY.get(self.streaming, 1)

    @property
    def _least_protocol(self) -> int:
        return max(self._by_streaming, 3 if self.two_phase else 1)

    @property
    def proto_version(self) -> int:
        """The requested protocol version."""
        return self.protocol or self._least_protocol

    def check(self, server_version: int) -> None:
        """Check that a server supports the options.

        Parameters
        ----------
        server_version : int
            `server_version_num`, such as 160004.

        Raises
        ------
        RequestError
            Names the first option that the server does not support.
        """
        major = server_version // 10000
        wanted = [
            (f"protocol {self.proto_version}", self.proto_version > 1, FIRST_MAJOR[self.proto_version]),
            (f"streaming {self.streaming}", self.streaming != "off", 16 if self.streaming == "parallel" else 14),
            ("two_phase", self.two_phase, 15),
            ("binary", self.binary, 14),
            ("messages", self.messages, 14),
            ("origin", self.origin is not None, 16),
        ]
        for name, is_wanted, since in wanted:
            if is_wanted and major < since:
                raise RequestError(f"{name} needs PostgreSQL {since}, the server is {major}")

    @classmethod
    def of(cls, given: Mapping[str, str]) -> PluginOptions:
        """Convert back what `as_dict` returned, without the publications."""
        flags = {name: given.get(name) == "on" for name in ("two_phase", "binary", "messages")}
        protocol = int(given["proto_version"]) if "proto_version" in given else None
        streaming, origin = given.get("streaming", "off"), given.get("origin")
        return cls(protocol, streaming, origin=origin, **flags)  # type: ignore[arg-type]

    def as_dict(self, publications: Sequence[str]) -> dict[str, str]:
        """Make the options of the START_REPLICATION command."""
        options = {
            "proto_version": str(self.proto_version),
            "publication_names": ",".join(quoted_name(name) for name in publications),
        }
        if self.streaming != "off":
            options["streaming"] = self.streaming
        for name in ("two_phase", "binary", "messages"):
            if getattr(self, name):
                options[name] = "on"
        if self.origin is not None:
            options["origin"] = self.origin
        return options


def session_settings(server_version: int) -> dict[str, str]:
    """Choose the pinned settings that a server has, in the order in which they are set."""
    major = server_version // 10000
    return {setting.name: setting.value for setting in PINNED if major >= setting.since}


def quoted_text(text: str) -> str:
    """Quote an SQL string for a server with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def seconds_from_text(text: str) -> float | None:
    """Read a duration such as 30s, 5min, 2h or 7d; None if it is not one. 5M is a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def bytes_from_text(text: str) -> int | None:
    """Read a size such as 512MB or 20 GB, in powers of 1024; None if it is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    return int(float(match[1]) * _SIZES[match[2] + "b" if match[2] else ""]) if match else None
