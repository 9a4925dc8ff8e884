"""One random scenario on a server, read in every mode at two moments, and compared with the server's own output."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from servers.connection import ServerError
from servers.reading import LiveReader, Message, Mode, Slots, modes
from servers.reconnecting import Reconnecting
from servers.scenario import Scenario
from servers.server import Server
from servers.verify import Account, fold, problems, problems_of_sessions

Found = TypeVar("Found")


@dataclass
class Trial:
    """The result of a scenario: differences, and counts of what was read, such as message tags by mode ("v2 A")."""

    seed: int
    problems: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    # Modes (and test_decoding) in which the server failed to read its own slot.
    unreadable: set[str] = field(default_factory=set)
    # Number of rare events: reconnects, DDL in prepared transactions and under savepoints.
    covered: Counter[str] = field(default_factory=Counter)


@dataclass
class Stage:
    """A scenario with its database, its slots, the live subscriber and the subscriber that is cut."""

    scenario: Scenario
    slots: Slots
    live_reader: LiveReader
    reconnecting: Reconnecting

    @property
    def may_be_read(self) -> bool:
        """Whether decoding waits for no locks: before 15, it locks the indexes of a table that it describes."""
        return self.scenario.server.major >= 15 or not self.scenario.changes_catalog


@contextlib.contextmanager
def staged(server: Server, seed: int) -> Iterator[Stage]:
    """A scenario in a new database, which is removed with its slots at the end."""
    database = f"scenario_{seed}"
    admin = server.connect()
    admin.execute(f"CREATE DATABASE {database}")
    with contextlib.ExitStack() as closing:
        closing.callback(admin.close)
        closing.callback(admin.execute, f"DROP DATABASE {database}{' WITH (FORCE)' if server.major >= 13 else ''}")
        scenario = Scenario(server, database, seed)
        closing.callback(scenario.close)
        slots = Slots(server, database)
        closing.callback(slots.close)
        live_reader = LiveReader(server, database, live_mode(server.major, seed))
        closing.callback(live_reader.close)
        reconnecting = Reconnecting(server, database, live_mode(server.major, seed + 1), seed)
        closing.callback(reconnecting.close)
        yield Stage(scenario, slots, live_reader, reconnecting)


def live_mode(major: int, seed: int) -> Mode:
    """The mode of the live subscriber: text, with streaming if the server has it."""
    streaming = [mode for mode in modes(major) if "streaming" in mode.options and not mode.binary]
    return random.Random(f"live {seed}").choice(streaming or [modes(major)[0]])


def steps(stage: Stage, seed: int, n_steps: int) -> Iterator[int]:
    """Run steps and yield the number of each; the live subscriber catches up from time to time."""
    rng = random.Random(f"steps {seed}")
    for number in range(n_steps):
        stage.scenario.step()
        if rng.random() < 0.25 and stage.may_be_read:
            stage.live_reader.catch_up()
        if rng.random() < 0.3 and stage.may_be_read:
            stage.reconnecting.read()
        yield number


def run(server: Server, seed: int, n_steps: int | None = None) -> Trial:
    """Run the scenario of a seed; check it in the middle, with transactions open, and at the end."""
    rng = random.Random(f"trial {seed}")
    n_steps = n_steps or rng.randint(20, 120)
    checked_at = rng.randrange(n_steps)
    trial = Trial(seed)
    is_checked = False
    with staged(server, seed) as stage:
        for number in steps(stage, seed, n_steps):
            if number >= checked_at and not is_checked and stage.may_be_read:
                check(trial, stage, f"after step {number}")
                is_checked = True
        stage.scenario.finish()
        check(trial, stage, "at the end")
        trial.covered += stage.scenario.covered
        trial.covered["reconnects"] += len(stage.reconnecting.reconnects)
    return trial


def check(trial: Trial, stage: Stage, moment: str) -> None:
    account = readable(trial, "test_decoding", lambda: Account(stage.scenario, stage.slots))
    if account is None:
        return
    stage.live_reader.catch_up()
    twins = {}
    for mode in modes(stage.scenario.server.major):
        messages = readable(trial, mode.name, partial(stage.slots.read, mode))
        if messages is None:
            continue
        if not mode.binary:
            twins.setdefault(mode.two_phase, fold(messages)[0])
        note(trial, f"{moment}, {mode.name}", mode, messages, problems(account, mode, messages, twins[mode.two_phase]))
    live, messages = stage.live_reader.mode, stage.live_reader.messages
    note(trial, f"{moment}, live {live.name}", live, messages, problems(account, live, messages, None))
    cut = stage.reconnecting
    cut.catch_up()
    found = problems_of_sessions(account, cut.mode, cut.sessions)
    note(trial, f"{moment}, {len(cut.sessions)} sessions of {cut.mode.name}", cut.mode, cut.messages, found)


def readable(trial: Trial, name: str, read: Callable[[], Found]) -> Found | None:
    """Read a slot, if the server can.

    Servers lose the catalog of some transactions (15 and 18 at least of two-phase ones), and then report that
    a file's relation is unknown.
    """
    try:
        return read()
    except ServerError as error:
        if error.sqlstate != "XX000" or "could not map filen" not in str(error):
            raise
        trial.unreadable.add(name)
        return None


def note(trial: Trial, where: str, mode: Mode, messages: list[Message], found: list[str]) -> None:
    trial.problems += [f"{where}: {problem}" for problem in found]
    trial.seen.update(f"{mode.name} {message.payload[:1].decode()}" for message in messages)
