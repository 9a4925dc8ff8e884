"""Reading a scenario's slots: through the SQL functions in every mode of the protocol, and live by replication."""

from __future__ import annotations

from dataclasses import dataclass

from servers.server import Server


@dataclass(frozen=True)
class Mode:
    """Options of pgoutput, and the first major version that has them."""

    name: str
    since: int
    options: dict[str, str]
    two_phase: bool = False

    @property
    def binary(self) -> bool:
        return "binary" in self.options

    @property
    def slot(self) -> str:
        return "two_phase" if self.two_phase else "plain"


@dataclass(frozen=True)
class Message:
    """One message of a slot with its LSN and xid; xid is None if it was read by replication."""

    lsn: int
    xid: int | None
    payload: bytes


MODES = (
    Mode("v1", 10, {"proto_version": "1"}),
    Mode("v1bin", 14, {"proto_version": "1", "binary": "true"}),
    Mode("v2", 14, {"proto_version": "2", "streaming": "on"}),
    Mode("v2bin", 14, {"proto_version": "2", "streaming": "on", "binary": "true"}),
    Mode("v4", 16, {"proto_version": "4", "streaming": "parallel"}),
    Mode("v4on", 16, {"proto_version": "4", "streaming": "on"}),
    Mode("v3twophase", 15, {"proto_version": "3", "streaming": "on"}, two_phase=True),
    Mode("v3twophasenostream", 15, {"proto_version": "3"}, two_phase=True),
    Mode("v4twophase", 16, {"proto_version": "4", "streaming": "parallel"}, two_phase=True),
    Mode("v4twophasebin", 16, {"proto_version": "4", "streaming": "parallel", "binary": "true"}, two_phase=True),
)


def modes(major: int) -> list[Mode]:
    return [mode for mode in MODES if mode.since <= major]


def options_for(mode: Mode, major: int) -> dict[str, str]:
    return {**mode.options, "publication_names": "everything", **({"messages": "true"} if major >= 14 else {})}


class Slots:
    """The slots of one database: pgoutput and test_decoding over the same WAL, with and without two-phase."""

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self.database = database
        self.connection = server.connect(database)
        kinds = [("plain", "pgoutput", False), ("text", "test_decoding", False)]
        if server.major >= 15:
            kinds += [("two_phase", "pgoutput", True), ("text_two_phase", "test_decoding", True)]
        self.names = [self.create(*kind) for kind in kinds]

    def create(self, name: str, plugin: str, two_phase: bool) -> str:
        """Name of a slot, which must be unique across the databases of a cluster."""
        slot = f"{self.database}_{name}"
        flag = ", false, true" if two_phase else ""
        self.connection.execute(f"SELECT pg_create_logical_replication_slot('{slot}', '{plugin}'{flag})")
        return slot

    def close(self) -> None:
        for slot in self.names:
            self.connection.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        self.connection.close()

    def read(self, mode: Mode) -> list[Message]:
        """The present output of pgoutput for a slot. The slot does not advance."""
        options = ", ".join(f"'{part}'" for item in options_for(mode, self.server.major).items() for part in item)
        rows = self.connection.execute(
            "SELECT lsn - '0/0'::pg_lsn, xid, encode(data, 'hex') "
            f"FROM pg_logical_slot_peek_binary_changes('{self.database}_{mode.slot}', NULL, NULL, {options})"
        )
        return [Message(int(lsn or 0), int(xid or 0), bytes.fromhex(data or "")) for lsn, xid, data in rows]

    def read_text(self, *, two_phase: bool) -> str:
        """The present output of test_decoding for the same WAL.

        Decoding gets enough memory to avoid streaming. With the least memory, test_decoding of PostgreSQL 18.4 crashes
        in pg_decode_stream_abort, at the abort of a large transaction whose stream did not begin.
        """
        slot = f"{self.database}_{'text_two_phase' if two_phase else 'text'}"
        if self.server.major >= 13:
            self.connection.execute("SET logical_decoding_work_mem = '1GB'")
        rows = self.connection.execute(f"SELECT data FROM pg_logical_slot_peek_changes('{slot}', NULL, NULL)")
        if self.server.major >= 13:
            self.connection.execute("RESET logical_decoding_work_mem")
        return "".join(f"{data}\n" for [data] in rows)


class LiveReader:
    """A subscriber that reads while transactions are open, so that many aborted changes are streamed."""

    def __init__(self, server: Server, database: str, mode: Mode) -> None:
        self.server = server
        self.database = database
        self.mode = mode
        self.slot = f"{database}_live"
        self.messages: list[Message] = []
        self.control = server.connect(database)
        flag = ", false, true" if mode.two_phase else ""
        self.control.execute(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput'{flag})")
        options = ", ".join(f"{name} '{value}'" for name, value in options_for(mode, server.major).items())
        self.connection = server.connect(database, replication=True)
        self.connection.execute(f"START_REPLICATION SLOT {self.slot} LOGICAL 0/0 ({options})")

    def catch_up(self) -> None:
        """Read everything that has been written, also by open transactions."""
        # Only flushed WAL is decoded, and a commit flushes it.
        self.control.execute("SELECT pg_logical_emit_message(true, 'flush', '')")
        until = int(self.control.value("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"))
        self.messages += [Message(lsn, None, payload) for lsn, payload in self.connection.stream(until)]

    def close(self) -> None:
        self.connection.close()
        dropper = self.server.connect(self.database, replication=True)
        dropper.execute(f"DROP_REPLICATION_SLOT {self.slot} WAIT")
        dropper.close()
        self.control.close()
