"""Capture random workloads on PostgreSQL servers under kills, restarts and lost connections, and compare the results.

    make capture-servers                                          servers 10 to 18 from npm (needs node), all scenarios
    PYTHONPATH=tests:tests/capture python -m campaign --majors 15 --scenarios 2

Each scenario is that of tests/servers: interleaved sessions, streams, savepoints, DDL, truncates, TOAST, partitions,
user-defined types, prepared transactions. `pgdecode capture` runs at the same time as a process, over a proxy. At
random moments the process gets SIGKILL, the proxy cuts its connections, or the server is restarted (fast or immediate).
At the end the files are read in order, in FAILFAST, and compared with test_decoding's text of the same WAL, with the
tables, and with what each session knows.

Tables are copied under load while the process is killed (tests/capture/copies.py), about 100 times in total.
Other workloads are cut after every single frame, in every mode (tests/capture/cuts.py). From PostgreSQL 16, standbys
are promoted while they are captured (tests/capture/promotion.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import copies
import cuts
import many_tables
import promotion
import pyarrow as pa
import pyarrow.parquet as pq
from cluster import Cluster, Proxy, running

from pgdecode import ChangeDecoder
from pgdecode.capture.journal import read_log
from servers.__main__ import MAJORS, found, install
from servers.connection import ServerError
from servers.reading import Message, Mode, Slots, modes
from servers.scenario import Scenario
from servers.verify import Account, fold, problems
from support.change_rows import changes_of
from support.footers import check_footers, types_of
from support.oracles.reference_changes import Change

# Tests of the suite: roles with every pinned setting, other publications, slots whose creation waits, silent
# connections, synchronous standbys, databases that are not UTF-8.
SITUATIONS = (
    "settings",
    "publications",
    "slot_creation",
    "silence",
    "standby",
    "encodings",
    "forms",
    "copy_rows",
    "copy",
)


@dataclass
class Trial:
    """The result of a scenario."""

    seed: int
    mode: str = ""
    problems: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    changes: int = 0
    sessions: int = 0


class Captor:
    """The process of a capture, which is started again whenever it has ended."""

    def __init__(self, cluster: Cluster, database: str, folder: Path, mode: Mode, rng: random.Random) -> None:
        self.proxy = Proxy(cluster.server.socket_path)
        self.folder = folder
        self.slot = f"{database}_capture"
        self._log = folder.with_suffix(".log")
        dsn = f"host=127.0.0.1 port={self.proxy.port} user=postgres dbname={database}"
        self.arguments = [dsn, str(folder), "--slot", self.slot, "--publication", "everything", "--retry", "60s"]
        self.arguments += ["--file-size", rng.choice(("1kB", "16kB", "1MB")), "--file-time", rng.choice(("50ms", "1s"))]
        self.arguments += ["--protocol", mode.options["proto_version"]]
        self.arguments += ["--streaming", mode.options.get("streaming", "off")]
        self.arguments += ["--binary"] * ("binary" in mode.options)
        self.arguments += ["--two-phase"] * mode.two_phase
        self.arguments += ["--messages"] * (cluster.major >= 14)
        self.process: subprocess.Popen[bytes] | None = None
        self.hung = False

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            command = [sys.executable, "-X", "faulthandler", "-m", "pgdecode", "capture", *self.arguments, *more]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self.process

    def ensure(self, seconds: float) -> None:
        """Start the process if it has ended, and wait until it streams, but not longer than some seconds."""
        if self.process is not None and self.process.poll() is None:
            return
        before = read_log(self.folder).sessions
        self.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and read_log(self.folder).sessions == before:
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait(60)
                return
            # An import may swallow the interrupt, so it is sent again.
            for _ in range(2):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(15)
                    return
                self.process.send_signal(number)
            self.wait(60)

    def finish(self) -> list[str]:
        """Capture the rest with a normal run."""
        self.kill(signal.SIGKILL)
        self.start("--until", "now")
        code = self.wait(120)
        return [] if code == 0 else [f"the last capture ended with {code}: {self.log()[-500:]}"]

    def wait(self, seconds: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            # Writes the threads' stacks to the log.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(60)
            self.hung = True
            return -signal.SIGABRT

    def log(self) -> str:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        left_out = ("Extension modules", "pgdecode: warning: tables")
        return "\n".join(line for line in lines if not line.startswith(left_out))

    def close(self) -> None:
        self.kill(signal.SIGKILL)
        self.proxy.close()


def run(cluster: Cluster, seed: int, n_events: int, weights: dict[str, float], folder: Path) -> Trial:
    """Run the scenario of a seed with a number of events."""
    rng = random.Random(f"campaign {seed}")
    mode = rng.choice(modes(cluster.major))
    trial = Trial(seed, mode.name)
    database = f"capture_{seed}"
    with contextlib.ExitStack() as closing:
        admin = cluster.connect()
        admin.execute(f"CREATE DATABASE {database}")
        admin.close()
        scenario = Scenario(cluster.server, database, seed)
        slots = Slots(cluster.server, database)
        set_alike(scenario, slots)
        captor = Captor(cluster, database, folder / database, mode, rng)
        closing.callback(captor.close)
        # The slot begins at the same LSN as the slots for the comparison.
        flag = ", false, true" if mode.two_phase else ""
        slots.connection.execute(f"SELECT pg_create_logical_replication_slot('{captor.slot}', 'pgoutput'{flag})")
        for _ in range(n_events):
            # Some events meet a process that is still starting.
            captor.ensure(rng.choice((0, 60, 60, 60)))
            busy_until = time.monotonic() + rng.choice((0.2, 0.7, 1.0, 1.5, 2.5)) * rng.random() + 0.1
            while time.monotonic() < busy_until:
                for _ in range(rng.randint(1, 6)):
                    scenario.step()
                time.sleep(rng.random() * 0.1)
            event = rng.choices(list(weights), weights=list(weights.values()))[0]
            act(event, cluster, scenario, slots, captor, rng)
            trial.events[event] += 1
        scenario.finish()
        left = captor.finish()
        if left and "could not map filen" in captor.log():
            # Servers lose the catalog of some transactions, and then cannot read their own slot.
            trial.events["unreadable by the server"] += 1
        else:
            trial.problems += left
        trial.problems += ["a capture did not end"] * captor.hung
        try:
            if not trial.events["unreadable by the server"]:
                verify(trial, scenario, slots, mode, captor.folder)
        except ServerError as error:
            if "could not map filen" not in str(error):
                raise
            trial.events["unreadable by the server"] += 1
        scenario.close()
        slots.connection.execute(f"SELECT pg_drop_replication_slot('{captor.slot}')")
        slots.close()
        admin = cluster.connect()
        admin.execute(f"DROP DATABASE {database}")
        admin.close()
        if trial.problems:
            trial.problems.append(f"log: {captor.log()[-8000:]}")
    return trial


def set_alike(scenario: Scenario, slots: Slots) -> None:
    """Make the server write floats as for the capture, which is not the default before PostgreSQL 12."""
    for connection in (scenario.watcher, slots.connection):
        connection.execute("SET extra_float_digits = 3")


def act(event: str, cluster: Cluster, scenario: Scenario, slots: Slots, captor: Captor, rng: random.Random) -> None:
    if event == "kill":
        captor.kill(signal.SIGKILL)
    elif event == "stop":
        captor.kill(rng.choice((signal.SIGINT, signal.SIGTERM)))
    elif event == "cut":
        captor.proxy.cut()
    else:
        # Sessions end with the server; prepared transactions survive.
        for session in scenario.sessions:
            if session.transaction is not None:
                scenario.rollback(session)
        try:
            cluster.restart(event)
        except subprocess.CalledProcessError:
            # The walsender waits until everything it sent is confirmed.
            captor.kill(signal.SIGABRT)
            captor.hung = True
            log = (cluster.place / "log").read_text().splitlines()[-15:]
            print(f"no {event} shutdown: {log}\n{(captor.folder / '_capture.jsonl').read_text()[-1500:]}", flush=True)
            cluster.restart("immediate")
        for connection in (scenario.watcher, slots.connection, *(session.connection for session in scenario.sessions)):
            connection.close()
        scenario.watcher = cluster.connect(scenario.database)
        slots.connection = cluster.connect(scenario.database)
        for session in scenario.sessions:
            session.connection = cluster.connect(scenario.database)
        set_alike(scenario, slots)
        if scenario.origin is not None:
            first = scenario.sessions[0].connection
            first.execute(f"SELECT pg_replication_origin_session_setup('{scenario.origin}')")
            first.execute("SELECT pg_replication_origin_xact_setup('0/ABCD', now())")


def verify(trial: Trial, scenario: Scenario, slots: Slots, mode: Mode, folder: Path) -> None:
    """Compare the files with the server's own information."""
    messages: list[Message] = []
    seqs: list[int] = []
    cut_off: set[int] = set()
    types = types_of(sorted(folder.glob("*.parquet")))
    before: int | None = None
    for path in sorted(folder.glob("*.parquet")):
        footer = pq.read_metadata(path).metadata
        metadata = json.loads(footer[b"pgdecode.capture"])
        table = pq.read_table(path)
        if metadata["file"]["session"] != before:
            trial.sessions += 1
            cut_off |= open_streams(messages)
        before = metadata["file"]["session"]
        seqs += table["seq"].to_pylist()
        lsns, payloads = table["lsn"].to_pylist(), table["data"].to_pylist()
        messages += [Message(lsn, None, payload) for lsn, payload in zip(lsns, payloads, strict=True)]
        if is_open(messages):
            trial.problems.append(f"{path.name} ends inside a transaction")
    try:
        trial.events["indices from footers"] += check_footers(folder)
    except AssertionError:
        trial.problems.append("the footers give another index than the rows")
    # The last sessions may have written nothing.
    cut_off |= open_streams(messages)
    trial.rows = len(messages)
    if seqs != list(range(len(seqs))):
        trial.problems.append("seq has gaps or repeats")
    try:
        trial.changes = len(changes_of(ChangeDecoder(types=types).decode([message.payload for message in messages])))
    except Exception as error:
        trial.problems.append(f"FAILFAST: {error}")
        return
    account = Account(scenario, slots)
    twin = None
    if mode.binary:
        plain = Mode("twin", mode.since, {"proto_version": "1"}, two_phase=False)
        if mode.two_phase:
            plain = Mode("twin", mode.since, {"proto_version": "3"}, two_phase=True)
        twin = fold(slots.read(plain))[0]
    try:
        wrong = problems(account, mode, messages, twin)
    except AssertionError as error:
        wrong = [str(error)]
    # A stream whose session ended is sent again only if its transaction had not ended in the meantime.
    # Its first copy, among the uncommitted changes, is not compared.
    known = {f"{xid} is undecided" for xid in cut_off}
    known |= {"ChangeDecoder gives other changes with those that were not committed"} if cut_off else set()
    wrong = [problem for problem in wrong if problem not in known]
    # pgoutput and test_decoding do not always agree, nor does pgoutput always describe a table again after a prepared
    # transaction that changed it was rolled back. What is captured then has to be what pgoutput says of the same WAL by
    # SQL.
    if wrong and without_places(fold(messages)[0]) == without_places(fold(slots.read(mode))[0]):
        trial.events["held to pgoutput by SQL"] += 1
        wrong = []
    trial.problems += wrong


def without_places(changes: list[Change]) -> list[dict[str, object]]:
    return [
        {name: value for name, value in change.items() if name not in ("position", "commit_position", "subxid")}
        for change in changes
    ]


def is_open(messages: list[Message]) -> bool:
    for message in reversed(messages):
        if message.payload[:1] in (b"C", b"P", b"E"):
            return False
        if message.payload[:1] in (b"B", b"b", b"S"):
            return True
    return False


def open_streams(messages: list[Message]) -> set[int]:
    found: set[int] = set()
    for message in messages:
        tag, body = message.payload[:1], message.payload[1:]
        xid = int.from_bytes(body[:4], "big")
        if tag == b"S":
            found.add(xid)
        elif tag == b"c" or (tag == b"A" and body[:4] == body[4:8]):
            found.discard(xid)
        elif tag == b"p":
            found.discard(int.from_bytes(body[25:29], "big"))
    return found


def cut_after_every_frame(cluster: Cluster, seed: int, folder: Path) -> bool:
    """Cut the workload of a seed after every frame, in every mode; return whether all ends were right."""
    begun = time.monotonic()
    total = cuts.CutTrial()
    for number, mode in enumerate(cuts.text_modes(cluster.major)):
        place = folder / f"cuts {seed} {mode.name}"
        place.mkdir()
        try:
            trial = cuts.run(cluster, seed + number, mode, 80, place)
        except ServerError as error:
            if "could not map filen" not in str(error):
                raise
            # The server loses the catalog of some transactions, and then cannot read its own slot.
            continue
        total.problems += [f"{mode.name}, seed {seed + number}: {problem}" for problem in trial.problems]
        for name in ("frames", "keepalives", "cuts", "messages"):
            setattr(total, name, getattr(total, name) + getattr(trial, name))
    print(
        f"PostgreSQL {cluster.major}, seed {seed}: cut after each of {total.frames} frames, {total.keepalives} of them "
        f"keepalives, {total.messages} messages outside transactions; {total.cuts} sessions, "
        f"{time.monotonic() - begun:.0f} s: {'; '.join(total.problems) or 'equal'}",
        flush=True,
    )
    return not total.problems


def stopped_after_a_message(cluster: Cluster, number: int, folder: Path) -> bool:
    """Stop a capture by a signal while the rows of a large transaction are sent whose message was sent before them."""
    name = f"message_{signal.Signals(number).name.lower()}"
    n_rows = 100_000
    mode = Mode("v1", 10, {"proto_version": "1"})
    with contextlib.ExitStack() as closing:
        admin = cluster.connect()
        closing.callback(admin.close)
        admin.execute(f"CREATE DATABASE {name}")
        session = cluster.connect(name)
        captor = Captor(cluster, name, folder / name, mode, random.Random(number))
        closing.callback(captor.close)
        session.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION everything FOR ALL TABLES")
        session.execute(f"SELECT pg_create_logical_replication_slot('{captor.slot}', 'pgoutput')")
        session.execute(
            f"BEGIN; INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, {n_rows}) i; "
            "SELECT pg_logical_emit_message(false, 'm', 'loaded'); COMMIT"
        )
        captor.start()
        deadline = time.monotonic() + 60
        # The server reads the whole transaction, sends the message, and then the rows.
        while not read_log(captor.folder).files and time.monotonic() < deadline:
            time.sleep(0.005)
        captor.kill(number)
        n_before = sum(entry.rows for entry in read_log(captor.folder).files.values())
        found = captor.finish()
        payloads = pa.concat_tables([pq.read_table(path) for path in sorted(captor.folder.glob("*.parquet"))])["data"]
        count = ChangeDecoder().decode(payloads).num_rows
        found += [f"{count} rows are captured, the table has {n_rows}"] * (count != n_rows)
        session.execute(f"SELECT pg_drop_replication_slot('{captor.slot}')")
        session.close()
        admin.execute(f"DROP DATABASE {name}")
    print(
        f"PostgreSQL {cluster.major}: {signal.Signals(number).name} after {n_before} messages of a large transaction "
        f"with a message: {'; '.join(found) or 'equal'}",
        flush=True,
    )
    return not found


def copied_under_kills(cluster: Cluster, seed: int, n_kills: int, folder: Path) -> bool:
    """Copy tables under load and kills, and return whether all were right."""
    begun = time.monotonic()
    found, counts = copies.run(cluster, seed, n_kills, folder / "copies")
    print(
        f"PostgreSQL {cluster.major}, copies, seed {seed}: "
        f"{', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}, {time.monotonic() - begun:.0f} s: "
        f"{'; '.join(found) or 'equal'}",
        flush=True,
    )
    return not found


def captured_many_tables(cluster: Cluster, n_tables: int, folder: Path) -> bool:
    """Capture many tables, and return whether all were right."""
    begun = time.monotonic()
    found = many_tables.run(cluster, n_tables, folder / "many tables")
    print(
        f"PostgreSQL {cluster.major}: {n_tables:,} tables with types, {time.monotonic() - begun:.0f} s: "
        f"{'; '.join(found) or 'equal'}",
        flush=True,
    )
    return not found


def situations(programs: Path, major: int) -> bool:
    """Run the suite's tests of sessions on a server, with their long forms."""
    begun = time.monotonic()
    folder = Path(__file__).parent
    files = [str(folder / f"test_capture_{name}.py") for name in SITUATIONS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PGDECODE_TEST_PGBIN": str(programs)},
        cwd=folder.parents[1],
    )
    lines = done.stdout.splitlines()
    shown = lines if done.returncode else lines[-1:]
    print(f"PostgreSQL {major}, situations: {time.monotonic() - begun:.0f} s: " + "\n".join(shown), flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--majors", type=int, nargs="+", choices=MAJORS, default=list(MAJORS), metavar="N")
    parser.add_argument("--install", type=Path, metavar="FOLDER")
    parser.add_argument("--scenarios", type=int, default=3, metavar="N", help="for each server")
    parser.add_argument("--events", type=int, default=12, metavar="N", help="in each scenario")
    parser.add_argument("--cuts", type=int, default=2, metavar="N", help="cut workloads, in each mode of each server")
    parser.add_argument(
        "--copies", type=int, default=12, metavar="N", help="kills while tables are copied, on each server"
    )
    parser.add_argument("--tables", type=int, default=5000, metavar="N", help="in one database of each server")
    parser.add_argument("--situations", action=argparse.BooleanOptionalAction, default=True, help="tests of the suite")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--weights", default="kill=8,cut=2.2,fast=0.5,immediate=0.5,stop=0.8")
    arguments = parser.parse_args()
    if arguments.install is not None:
        install(arguments.install.resolve(), arguments.majors)
    servers = found(arguments.install and arguments.install.resolve())
    weights = {
        name: float(weight) for name, _, weight in (item.partition("=") for item in arguments.weights.split(","))
    }
    totals: Counter[str] = Counter()
    failed = False
    base = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    for major in arguments.majors:
        if major not in servers:
            print(f"PostgreSQL {major}: no server", flush=True)
            continue
        failed |= arguments.situations and not situations(servers[major], major)
        with running(servers[major]) as cluster, tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.scenarios):
                begun = time.monotonic()
                trial = run(cluster, base + number, arguments.events, weights, Path(folder))
                totals += trial.events
                totals.update(scenarios=1, messages=trial.rows, changes=trial.changes, sessions=trial.sessions)
                events = ", ".join(f"{count} {name}" for name, count in sorted(trial.events.items()))
                print(
                    f"PostgreSQL {major}, seed {trial.seed}, {trial.mode}: {events}; {trial.sessions} sessions with "
                    f"files, {trial.rows} messages, {trial.changes} changes, {time.monotonic() - begun:.0f} s: "
                    f"{'; '.join(trial.problems) or 'equal'}",
                    flush=True,
                )
                failed |= bool(trial.problems)
            for number in range(arguments.cuts):
                failed |= not cut_after_every_frame(cluster, base + 10 * number, Path(folder))
            for number in (signal.SIGTERM, signal.SIGKILL):
                if major >= 14:
                    failed |= not stopped_after_a_message(cluster, number, Path(folder))
                if major >= 16:
                    wrong = promotion.follow(servers[major], Path(folder) / f"promotion {number}", number)
                    print(f"PostgreSQL {major}: promotion of a captured standby, {number.name}: {wrong or 'equal'}")
                    failed |= bool(wrong)
            if arguments.copies:
                failed |= not copied_under_kills(cluster, base, arguments.copies, Path(folder))
            if arguments.tables:
                failed |= not captured_many_tables(cluster, arguments.tables, Path(folder))
    print("in total: " + ", ".join(f"{count:,} {name}" for name, count in totals.items()), flush=True)
    return int(failed)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
