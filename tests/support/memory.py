"""Peak memory of a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MEASURED = """
import sys
from pgdecode.cli.main import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(code)
"""


def peak_memory(*words: str | Path) -> int:
    """Run a command and return its peak resident bytes.

    The kernel counts them for the process itself. getrusage would include the memory of the parent, the test.
    """
    done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) * 1024
