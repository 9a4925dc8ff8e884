"""Cuts a capture after every single frame, and checks that the next session gets the rest: nothing lost, nothing twice.

The frames of a random workload are received once, from a slot that is never confirmed. They go through the recorder one
by one, which tells after each what a capture that ended there would have recorded: a number of messages and an LSN. For
each such pair, the slot is read again from the LSN. The recorded messages and the new ones together must give what the
uncut stream gives, which in turn must be what test_decoding and the tables give.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from cluster import Cluster

from pgdecode import ChangeDecoder
from pgdecode.capture.catalog.file_catalog import CatalogContents
from pgdecode.capture.channel import Channel, Item, Keepalive, Session
from pgdecode.capture.frames import Chunk
from pgdecode.capture.journal import Journal
from pgdecode.capture.recorder import FileRules, Recorder, Target
from pgdecode.capture.server import Identity
from pgdecode.protocol.lsn import lsn_to_text
from servers.connection import Connection, ServerError
from servers.reading import Message, Mode, Slots, modes, options_for
from servers.reconnecting import SLOT_IS_ACTIVE
from servers.scenario import Scenario
from servers.verify import Account, problems
from support.change_rows import changes_of

# Messages that end a transaction or its preparation.
OUTCOMES = b"CcPpKr"


@dataclass
class CutTrial:
    """The result of a scenario.

    Attributes
    ----------
    problems : list of str
    frames, keepalives, cuts : int
        Numbers of frames, of keepalives among them, and of different places from which the slot was read again.
    messages : int
        Number of messages that are not transactional.
    """

    problems: list[str] = field(default_factory=list)
    frames: int = 0
    keepalives: int = 0
    cuts: int = 0
    messages: int = 0


class Script(Channel):
    """Gives a recorder prepared items, and notes after each what is recorded."""

    def __init__(self, items: list[Item], note: Callable[[], None]) -> None:
        super().__init__(1)
        self._left = iter(items)
        self._note = note
        self.recorder: Recorder

    def take(self, timeout: float) -> Item | None:
        self._note()
        item = next(self._left, None)
        if item is None:
            self.recorder.close()
        return item


def recorded_after_each(items: list[Item], start: int, folder: Path) -> list[tuple[int, int]]:
    """Pass items to a recorder; return the number of messages and the LSN that are recorded after each of them."""
    found: list[tuple[int, int]] = []
    journal = Journal(folder)
    try:
        journal.begin(Identity("1", 1, "d", 180000), "s", ("p",), start)
        script = Script(
            [Session(cast("Any", None), 1, 0.0, {}), *items],
            lambda: found.append((journal.contents.next_seq, recorder.recorded)),
        )
        rules = FileRules(max_bytes=1, position_seconds=0, compression="none")
        recorder = Recorder(
            script, journal, rules, Target(), None, set(), lambda *_: CatalogContents(), lambda: None, lambda: None
        )
        script.recorder = recorder
        recorder.run()
        if recorder.failure is not None:
            raise recorder.failure
    finally:
        journal.close()
    # The first two were noted before the first item.
    return found[2:]


def items_of(frames: list[bytes], most: Callable[[], int]) -> Iterator[tuple[int, Item]]:
    """Yield the items in which a receiver passes frames on, each with the number of frames up to its end.

    `most` gives the number of frames after which a chunk ends. A chunk also ends before each keepalive.
    """
    chunk, left = Chunk(), most()
    for number, frame in enumerate(frames):
        is_keepalive = frame[:1] == b"k"
        if len(chunk) and (is_keepalive or len(chunk) >= left):
            yield number, chunk
            chunk, left = Chunk(), most()
        if is_keepalive:
            yield number + 1, Keepalive(int.from_bytes(frame[1:9], "big"), wants_reply=frame[17] != 0)
        else:
            chunk.content += frame
            chunk.ends.append(len(chunk.content))
    if len(chunk):
        yield len(frames), chunk


class Slot:
    """A slot that is read by replication and never confirmed."""

    def __init__(self, cluster: Cluster, database: str, mode: Mode) -> None:
        self.cluster = cluster
        self.database = database
        self.mode = mode
        self.name = f"{database}_cuts"
        flag = ", false, true" if mode.two_phase else ""
        self.control = cluster.connect(database)
        self.control.execute(f"SELECT pg_create_logical_replication_slot('{self.name}', 'pgoutput'{flag})")
        self.start = int(
            self.control.value(
                "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots "
                f"WHERE slot_name = '{self.name}'"
            )
        )

    def connect(self, start: int) -> Connection:
        """Start replication. The server may still hold the slot for a moment."""
        options = ", ".join(f"{name} '{text}'" for name, text in options_for(self.mode, self.cluster.major).items())
        deadline = time.monotonic() + 30
        while True:
            connection = self.cluster.server.connect(self.database, replication=True)
            try:
                connection.execute(f"START_REPLICATION SLOT {self.name} LOGICAL {lsn_to_text(start)} ({options})")
            except ServerError as error:
                connection.close()
                if error.sqlstate != SLOT_IS_ACTIVE or time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
            else:
                return connection

    def flushed(self) -> int:
        return int(self.control.value("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"))

    def close(self) -> None:
        dropper = self.cluster.server.connect(self.database, replication=True)
        dropper.execute(f"DROP_REPLICATION_SLOT {self.name} WAIT")
        dropper.close()
        self.control.close()


@contextlib.contextmanager
def staged(cluster: Cluster, seed: int, mode: Mode) -> Iterator[tuple[Scenario, Slots, Slot]]:
    """A scenario in a new database, which is removed with its slots at the end."""
    database = f"cuts_{seed}"
    with contextlib.ExitStack() as closing:
        admin = cluster.connect()
        closing.callback(admin.close)
        admin.execute(f"CREATE DATABASE {database}")
        closing.callback(admin.execute, f"DROP DATABASE {database}{' WITH (FORCE)' if cluster.major >= 13 else ''}")
        scenario = Scenario(cluster.server, database, seed)
        closing.callback(scenario.close)
        slots = Slots(cluster.server, database)
        closing.callback(slots.close)
        slot = Slot(cluster, database, mode)
        closing.callback(slot.close)
        yield scenario, slots, slot


def text_modes(major: int) -> list[Mode]:
    """The modes in which values are text: the form of values has no effect on positions."""
    return [mode for mode in modes(major) if not mode.binary]


def run(cluster: Cluster, seed: int, mode: Mode, n_steps: int, folder: Path) -> CutTrial:
    """Run the scenario of a seed, and cut it after every frame."""
    trial = CutTrial()
    with staged(cluster, seed, mode) as (scenario, slots, slot):
        frames = received(scenario, slot, n_steps, random.Random(f"cuts {seed}"))
        whole = [message_of(frame) for frame in frames if frame[:1] == b"w"]
        trial.frames, trial.keepalives = len(frames), len(frames) - len(whole)
        trial.messages = len(messages_outside(whole))
        # The uncut stream is held to the server's own information.
        trial.problems += problems(Account(scenario, slots), mode, whole, None)
        expected = outcome_of([whole])
        # The last record may be one that completes nothing.
        until = slot.flushed()
        one_by_one = [item for _, item in items_of(frames, lambda: 1)]
        recorded = [(0, slot.start), *recorded_after_each(one_by_one, slot.start, folder / "one by one")]
        # How frames are divided into chunks makes no difference.
        rng = random.Random(f"chunks {seed}")
        ends, chunks = zip(*items_of(frames, lambda: rng.choice((1, 2, 5, 50, 1000))), strict=True)
        if recorded_after_each(list(chunks), slot.start, folder / "chunks") != [recorded[end] for end in ends]:
            trial.problems.append("chunks of frames give other positions than single frames")
        for count, lsn in dict.fromkeys(recorded):
            trial.cuts += 1
            with contextlib.closing(slot.connect(lsn)) as connection:
                rest = [message_of(frame) for frame in connection.frames(until) if frame[:1] == b"w"]
            found = outcome_of([whole[:count], rest])
            trial.problems += [
                f"cut after {count} messages at {lsn_to_text(lsn)}: {name} differ: {difference(found[name], wanted)}"
                for name, wanted in expected.items()
                if found[name] != wanted
            ]
    return trial


def received(scenario: Scenario, slot: Slot, n_steps: int, rng: random.Random) -> list[bytes]:
    """Run the workload, and receive its frames while it runs and after it."""
    frames: list[bytes] = []
    with contextlib.closing(slot.connect(slot.start)) as connection:
        for _ in range(n_steps):
            scenario.step()
            # Before PostgreSQL 15, decoding waits for locks on the indexes of a table that it describes.
            if rng.random() < 0.4 and (slot.cluster.major >= 15 or not scenario.changes_catalog):
                if slot.cluster.major >= 17 and rng.random() < 0.3:
                    # The last record that is sent is a message, while transactions are open.
                    slot.control.execute("SELECT pg_logical_emit_message(false, 'prefix', 'flushed', flush => true)")
                frames += connection.frames(slot.flushed())
        scenario.finish()
        # Only flushed WAL is sent, and a commit flushes it.
        slot.control.execute("SELECT pg_logical_emit_message(true, 'prefix', 'the end')")
        frames += connection.frames(slot.flushed())
    # An idle server repeats the keepalive that is asked for, which makes no difference.
    alike = [first[:1] == b"k" and first[:9] == second[:9] for first, second in pairwise(frames)]
    return [frame for frame, is_repeated in zip(frames, [False, *alike], strict=True) if not is_repeated]


def message_of(frame: bytes) -> Message:
    return Message(int.from_bytes(frame[1:9], "big"), None, frame[25:])


def outcome_of(sessions: list[list[Message]]) -> dict[str, list[Any]]:
    """The result of sessions: their changes, their messages outside transactions, and the ends of transactions."""
    messages = [message for session in sessions for message in session]
    changes = changes_of(ChangeDecoder().decode([message.payload for message in messages]))
    for change in changes:
        # Only the order counts. A transaction that was streamed in one session may not be streamed in another.
        for name in ("position", "commit_position", "subxid"):
            del change[name]
    return {
        "changes": changes,
        "messages": messages_outside(messages),
        "outcomes": [end_of(message.payload) for message in messages if message.payload[0] in OUTCOMES],
    }


def messages_outside(messages: list[Message]) -> list[bytes]:
    """The messages that are not transactional. Those in a stream block are, and have an xid where others have flags."""
    found, in_stream = [], False
    for message in messages:
        tag = message.payload[:1]
        in_stream = tag == b"S" or (in_stream and tag != b"E")
        if tag == b"M" and not in_stream and message.payload[1] == 0:
            found.append(message.payload)
    return found


def end_of(payload: bytes) -> tuple[str, int]:
    """Kind of outcome, and the LSN of the end of its record."""
    at = 14 if payload[:1] == b"c" else 10
    return payload[:1].decode().replace("c", "C").replace("p", "P"), int.from_bytes(payload[at : at + 8], "big")


def difference(found: list[Any], wanted: list[Any]) -> str:
    missing = [repr(item)[:200] for item in wanted if item not in found]
    more = [repr(item)[:200] for item in found if found.count(item) > wanted.count(item)]
    return f"{len(missing)} missing {missing[:2]}, {len(more)} too many {more[:2]}"
