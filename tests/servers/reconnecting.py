"""A subscriber whose connection is cut at random places, and which begins again at a confirmed LSN."""

from __future__ import annotations

import random
import struct
import time

from servers.connection import Connection, ServerError
from servers.reading import Message, Mode, options_for
from servers.server import Server
from support.oracles import reference

# Messages after which a subscriber may confirm their end LSN.
ENDINGS = b"CcPpKr"
SLOT_IS_ACTIVE = "55006"


class Reconnecting:
    """Reads a slot by START_REPLICATION while the workload runs.

    Attributes
    ----------
    sessions : list of list of Message
        The messages that each connection received before it was cut.
    """

    def __init__(self, server: Server, database: str, mode: Mode, seed: int) -> None:
        self.server = server
        self.database = database
        self.mode = mode
        self.rng = random.Random(f"cuts {seed}")
        self.slot = f"{database}_cut"
        self.sessions: list[list[Message]] = []
        self.confirmed = 0
        self.control = server.connect(database)
        flag = ", false, true" if mode.two_phase else ""
        self.control.execute(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput'{flag})")
        self.connection: Connection | None = None

    def read(self) -> None:
        """Read the messages so far; the connection is cut during that or at the end."""
        self.receive(self.rng.choice([None, self.rng.randrange(1, 20), self.rng.randrange(1, 200)]))
        if self.rng.random() < 0.3:
            self.cut()

    def catch_up(self) -> None:
        """Read all messages so far."""
        self.receive(None)

    def receive(self, limit: int | None) -> None:
        # Only flushed WAL is decoded, and a commit flushes it.
        self.control.execute("SELECT pg_logical_emit_message(true, 'flush', '')")
        until = int(self.control.value("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"))
        self.connection = connection = self.connection or self.connect()
        for number, (lsn, payload) in enumerate(connection.stream(until), 1):
            self.sessions[-1].append(Message(lsn, None, payload))
            if number == limit:
                self.cut()
                return

    def connect(self) -> Connection:
        """Start again at the last confirmed LSN. The server may still hold the slot for a moment."""
        options = ", ".join(f"{name} '{value}'" for name, value in options_for(self.mode, self.server.major).items())
        lsn = f"{self.confirmed >> 32:X}/{self.confirmed & 0xFFFFFFFF:X}"
        deadline = time.monotonic() + 30
        while True:
            connection = self.server.connect(self.database, replication=True)
            try:
                connection.execute(f"START_REPLICATION SLOT {self.slot} LOGICAL {lsn} ({options})")
            except ServerError as error:
                connection.close()
                if error.sqlstate != SLOT_IS_ACTIVE or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                self.sessions.append([])
                return connection

    def cut(self) -> None:
        """Lose the connection after confirming any transaction; the server may not have received the confirmation."""
        if self.connection is None:
            return
        endings = [message.payload for message in self.sessions[-1] if message.payload[0] in ENDINGS]
        lsns = [reference.decode_payload(payload, in_stream=False)["end_lsn"] for payload in endings]
        self.confirmed = self.rng.choice([self.confirmed, *(lsn for lsn in lsns if lsn > self.confirmed)])
        if self.rng.random() < 0.5:
            self.connection.send(b"d", struct.pack("!cQQQqB", b"r", *[self.confirmed] * 3, 0, 0))
        self.connection.close()
        self.connection = None

    @property
    def messages(self) -> list[Message]:
        return [message for session in self.sessions for message in session]

    @property
    def reconnects(self) -> set[int]:
        """Indices of the first message of each session after the first."""
        places, at = set(), 0
        for session in self.sessions[:-1]:
            at += len(session)
            places.add(at)
        return places

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        dropper = self.server.connect(self.database, replication=True)
        dropper.execute(f"DROP_REPLICATION_SLOT {self.slot} WAIT")
        dropper.close()
        self.control.close()
