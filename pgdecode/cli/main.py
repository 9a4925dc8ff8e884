"""Entry of the `pgdecode` command: one line for each mistake, and the exit code that tells which kind it was."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import pyarrow as pa

from pgdecode.files.atomic_output import TargetExists
from pgdecode.files.change_reader import TableError
from pgdecode.files.envelope_batches import ANY_ORDER
from pgdecode.files.envelope_text import printable
from pgdecode.files.payload_files import FileFault, PathError

FINE, DATA_FAULT, MISUSE, INTERRUPTED = 0, 1, 2, 130
_EXTRA = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands after `pgdecode`; by default the process's own.

    Returns
    -------
    int
        0: done. 1: data that cannot be read or decoded, or an output that cannot be written. 2: what was asked for
        cannot be done. 130: interrupted.
    """
    try:
        import click

        from pgdecode.cli.commands import pgdecode
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _say("the command line needs: pip install 'pgdecode[cli]'", MISUSE)
    try:
        with _signals():
            code = pgdecode.main(args=arguments, prog_name="pgdecode", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pgdecode"
        return _say(f"{error.format_message().rstrip('.')} (see {command} --help)", MISUSE)
    except TableError as error:
        return _say(f"--table {error.relation}: {error.reason}", MISUSE)
    except TargetExists as error:
        return _say(f"{error} (--overwrite replaces it)", MISUSE)
    except PathError as error:
        return _say(str(error), MISUSE)
    except FileFault as error:
        return _say(str(error).replace(ANY_ORDER, "--in-stream auto"), DATA_FAULT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}", DATA_FAULT)
    except (pa.ArrowException, OverflowError) as error:
        return _say(str(error), DATA_FAULT)
    except UnicodeEncodeError as error:
        return _say(f"{error.object!a}: not a name that can be written as UTF-8", MISUSE)
    except click.Abort:
        return _say("interrupted", INTERRUPTED)
    return code or FINE


@contextmanager
def _signals() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on Ctrl-C: by way of the code that removes what is half written."""
    # Only the main thread may say what a signal does.
    ours = threading.current_thread() is threading.main_thread()
    names = [name for name in ("SIGTERM", "SIGHUP") if ours and hasattr(signal, name)]
    former = {name: signal.signal(getattr(signal, name), _leave) for name in names}
    try:
        yield
    finally:
        for name, handler in former.items():
            signal.signal(getattr(signal, name), handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _say(text: str, code: int) -> int:
    print(f"pgdecode: {printable(text)}", file=sys.stderr)
    return code
