"""Coverage-guided fuzzing with libFuzzer; needs clang.

In the folder tests:

    python -m fuzz run [--seconds N] [--seed N] [TARGET ...]
                                                    so many seconds in all, after the check with planted bugs
    python -m fuzz planted                          only that check
    python -m fuzz repeat TARGET FILE               what a finding is
    python -m fuzz merge [TARGET ...]               the least inputs that reach as much become the repository's corpus

Corpora grow in build/fuzz/corpus, and what went wrong is kept in build/fuzz/findings.
"""

from __future__ import annotations

import argparse
import sys

from fuzz import build, planted, running
from fuzz.targets import LONGEST

# Exit status where something has to be installed first; 1 is a finding.
LACKING = 3


def fuzz_all(targets: list[str], seconds: int, seed: int) -> int:
    """Fuzz targets one after the other; how many went wrong."""
    n_wrong = 0
    n_executions = 0
    for target in targets:
        found = running.fuzz(target, max(1, seconds // len(targets)), seed)
        n_executions += found.executions
        print(found, flush=True)
        if found.input is not None:
            n_wrong += 1
            print(f"{found.log[-6000:]}\nto repeat: python -m fuzz repeat {target} {found.input}", flush=True)
    print(f"{n_executions:,} executions, {n_wrong} findings")
    return n_wrong


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--seconds", type=int, default=60)
    run.add_argument("--seed", type=int, default=0, help="of the inputs' random changes, to have the same again")
    merge = commands.add_parser("merge")
    for command in (run, merge):
        command.add_argument("targets", nargs="*", metavar="TARGET")
    commands.add_parser("planted")
    repeat = commands.add_parser("repeat")
    repeat.add_argument("target", choices=list(LONGEST))
    repeat.add_argument("file")
    options = parser.parse_args()
    targets = getattr(options, "targets", None) or list(LONGEST)
    if unknown := set(targets) - set(LONGEST):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(LONGEST)}")
    try:
        build.build()
    except build.Lacking as lacking:
        print(f"the fuzzer cannot be built: {lacking}", file=sys.stderr)
        return LACKING
    if options.command == "repeat":
        done = running.call(options.target, options.file)
        print(done.stdout)
        return done.returncode
    if options.command == "merge":
        for target in targets:
            print(running.merge(target), flush=True)
        return 0
    for bug in planted.BUGS:
        print(planted.check_bug(bug), flush=True)
    return 1 if options.command == "run" and fuzz_all(targets, options.seconds, options.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
