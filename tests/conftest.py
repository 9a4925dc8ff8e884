"""Configuration of all tests: a printed seed, and a failure if native code ignored an exception."""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support import captures
from support.shell import Shell

hypothesis.settings.register_profile(
    "pgdecode",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# The quick tier takes 10 examples. The full tier takes 25 and `make properties` 20,000, by `--hypothesis-profile`.
for profile, max_examples in (("quick", 10), ("usual", 25), ("long", 20_000)):
    hypothesis.settings.register_profile(
        profile, hypothesis.settings.get_profile("pgdecode"), max_examples=max_examples
    )
hypothesis.settings.load_profile("quick")

# Tests start hundreds of processes. Without stored bytecode, each would compile the package again: 0.2 s of 0.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The JVMs of tests end before the optimizing compiler and a parallel garbage collector pay. Verification of the classes
# of Spark is a fifth of its start.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

TESTS = Path(__file__).parent
# Folders whose tests are about the bytes of each capture.
DECODING = {"changes", "envelope", "payloads"}

# The same random data each time, so that a failure comes from a change. `make properties` draws other data.
_WANTED_SEED = os.environ.get("PGDECODE_TEST_SEED") or "1"
SEED = random.SystemRandom().getrandbits(32) if _WANTED_SEED == "random" else int(_WANTED_SEED)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Use one seed for hypothesis, all processes and the tests' own random payloads."""
    os.environ["PGDECODE_TEST_SEED"] = str(SEED)
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign whole files to each process (`-n`), because tests of a file share slow fixtures.

    Of two processes, one runs Spark: a second JVM would load and compile the same classes. Of more, two do.
    """
    from xdist.scheduler import LoadFileScheduling

    n_with_spark = 1 if len(config.getoption("tx") or ()) <= 2 else 2

    @functools.cache
    def scope(file: str) -> str:
        with_spark = "support.spark_session" in (config.rootpath / file).read_text()
        return f"spark {zlib.crc32(file.encode()) % n_with_spark}" if with_spark else file

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(super()._split_scope(nodeid))

    return Files(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave captures to the full tier, and those to `make test-all` of which the bytes are not what is tested."""
    not_quick, not_full = (set(captures.NAMES) - names for names in (captures.QUICK, captures.FULL))
    for item in items:
        callspec = getattr(item, "callspec", None)
        values = callspec.params.values() if callspec else ()
        names = {value.removesuffix(".parquet") for value in values if isinstance(value, str)}
        if names & not_quick:
            item.add_marker(pytest.mark.full)
        if names & not_full and item.path.relative_to(TESTS).parts[0] not in DECODING:
            item.add_marker(pytest.mark.long)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave modules and tests out of further garbage collections, which took a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    """Print how to repeat this run."""
    return f"seed: PGDECODE_TEST_SEED={SEED}"


@pytest.fixture
def rng() -> random.Random:
    """Random numbers from the printed seed. They do not depend on which other tests run."""
    return random.Random(SEED)


@pytest.fixture(autouse=True)
def dropped_exceptions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail a test during which an exception was ignored.

    A native function that cannot raise (`noexcept`) prints "Exception ignored in" and continues. A test that means to
    provoke that clears the list.
    """
    dropped: list[str] = []
    # The object itself is not kept, because it may be about to be deleted.
    monkeypatch.setattr(
        sys, "unraisablehook", lambda event: dropped.append(f"{event.err_msg} {event.exc_type}: {event.exc_value}")
    )
    yield dropped
    assert dropped == []


@pytest.fixture(params=captures.NAMES)
def capture(request: pytest.FixtureRequest) -> captures.Capture:
    """Each capture."""
    return captures.capture(request.param)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Run commands in a folder that only this test uses."""
    monkeypatch.chdir(tmp_path)
    return Shell(capfd)
