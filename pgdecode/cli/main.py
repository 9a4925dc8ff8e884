"""Entry point of the `pgdecode` command: converts exceptions to one line and an exit code."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import FrameType, ModuleType
from typing import NoReturn

import pyarrow as pa

from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.files.change_reader import TableError
from pgdecode.files.envelope_text import printable
from pgdecode.files.payload_file import FileFault
from pgdecode.protocol.options import declared_options
from pgdecode.rows.options import Options
from pgdecode.storage.errors import PathError, TargetExists
from pgdecode.types.type_parser import InvalidTypes

FINE, DATA_FAULT, MISUSE, INTERRUPTED = 0, 1, 2, 130
_EXTRA = ("click", "rich")
# The extras of libraries that some commands need.
_EXTRAS = {
    "obstore": "cloud",
    "boto3": "cloud",
    "botocore": "cloud",
    "pyspark": "spark",
    "pandas": "spark",
    "psycopg": "capture",
}
_TYPE = re.compile(r'types=\{"?([^{}]+?)"?: "([^"]+)"\}')
_OPTIONS = {
    "pass state= of the previous decoder": "decode to the same OUT as the messages before",
    "(session=, reconnected())": "(--session COLUMN)",
    "call reconnected()": "name the column of the connection by --session",
    "choose with unrepresentable=": "choose with --unrepresentable null, clamp or text",
}
_FLAGS = {name: f"--{item.flag or name}".replace("_", "-") for name, item in declared_options(Options).items()}
_FLAGS |= {
    name: f"--{name}".replace("_", "-")
    for name in ("catalog", "accept_gap", "unwrap", "in_stream", "overwrite", "schema_changes")
}
_COPY = re.compile(r"capture with copy='([^'\n]+)'")
_PARAMETER = re.compile(rf"""\b({"|".join(_FLAGS)})=(?:True|"(\w+)"|'(\w+)')?""")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments after `pgdecode`; by default those of the process.

    Returns
    -------
    int
        0: done. 1: data cannot be read or decoded, or an output cannot be written. 2: not possible as requested.
        130: interrupted.
    """
    if arguments is None:
        _without_pandas()
    try:
        import click
        import rich  # noqa: F401 - the commands need it, and are imported later

        from pgdecode.cli.commands import pgdecode
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _fail("the command line needs: pip install 'pgdecode[cli]'", MISUSE)
    if any("\0" in word for word in arguments or ()):
        # No process has such arguments, because NUL ends them.
        return _fail("an argument has a NUL character", MISUSE)
    try:
        with _signals(), _interruptions(click.Abort):
            code = pgdecode.main(args=arguments, prog_name="pgdecode", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pgdecode"
        return _fail(f"{error.format_message().rstrip('.')} (see {command} --help)", MISUSE)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        remedy = f"pip install 'pgdecode[{_EXTRAS[missing]}]'"
        return _fail(str(error) if remedy in str(error) else f"{missing} is not installed: {remedy}", MISUSE)
    except TableError as error:
        return _fail(in_shell(f"--{error.what} {error.relation}: {error.reason}"), MISUSE)
    except InvalidTypes as error:
        return _fail(f"--types: {error}", MISUSE)
    except TargetExists as error:
        return _fail(f"{error} (--overwrite replaces it)", MISUSE)
    except PathError as error:
        return _fail(str(error), MISUSE)
    except RunError as error:
        return _fail(in_shell(str(error)), MISUSE)
    except RunFault as error:
        return _fail(str(error), DATA_FAULT)
    except FileFault as error:
        return _fail(in_shell(str(error)), DATA_FAULT)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", DATA_FAULT)
    except (pa.ArrowException, OverflowError) as error:
        return _fail(str(error), DATA_FAULT)
    except UnicodeEncodeError as error:
        return _fail(f"{error.object!a}: this name cannot be encoded as UTF-8", MISUSE)
    except click.Abort:
        return _fail("interrupted", INTERRUPTED)
    return code or FINE


class _PandasHidden(MetaPathFinder):
    """Finds all modules as usual, but not pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Find a module."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def _without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes half of the time of all imports.

    pyarrow tries to import it at the first conversion of Python objects, and then again only to make pandas objects. In
    this process, `pyarrow.array` will not recognise those, of which the commands have none.
    """
    hidden = _PandasHidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)


@contextmanager
def _signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise an exception, as Ctrl-C does, so that incomplete outputs are removed."""
    # Only the main thread can set signal handlers.
    ours = threading.current_thread() is threading.main_thread()
    names = [name for name in ("SIGTERM", "SIGHUP") if ours and hasattr(signal, name)]
    former = {name: signal.signal(getattr(signal, name), SignalExit()) for name in names}
    try:
        yield
    finally:
        for name, handler in former.items():
            signal.signal(getattr(signal, name), handler)


@contextmanager
def _interruptions(abort: type[Exception]) -> Iterator[None]:
    """Raise `abort` for an interrupt, also where code that handled it has raised another exception.

    The standard library does: an interrupt between two steps of `threading.Condition.wait` becomes a RuntimeError.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, KeyboardInterrupt):
            found = found.__cause__ or found.__context__
        if found is None:
            raise
        raise abort from error


class SignalExit:
    """A signal handler that ends the process by an exception.

    Some libraries catch all exceptions while they are imported, so what then runs on calls `repeat`.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        """End the process."""
        self._number = number
        raise SystemExit(128 + number)

    def repeat(self) -> None:
        """Raise the exception again, if there was a signal."""
        if self._number is not None:
            self(self._number, None)


def in_shell(text: str) -> str:
    """Replace parameters of functions, which an error text names, by options of commands."""
    for parameter, option in _OPTIONS.items():
        text = text.replace(parameter, option)
    text = _TYPE.sub(r"--types '\1=\2'", text)
    text = _COPY.sub(lambda found: f"capture DSN RAW --until now --copy {shlex.quote(found[1])}", text)
    return _PARAMETER.sub(lambda found: " ".join([_FLAGS[found[1]], *filter(None, [found[2] or found[3]])]), text)


def _fail(text: str, code: int) -> int:
    print(f"pgdecode: {printable(text)}", file=sys.stderr)
    return code
