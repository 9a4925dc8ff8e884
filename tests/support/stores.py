"""Object stores, for all tests that need them: `pytest_plugins = ["support.stores"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.emulators import ENVIRONMENT, Emulator, azure_emulator, s3_emulator
from support.tiers import full


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    """Put the emulators' credentials into the environment. The tests' Spark has them too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def s3(credentials: None) -> Iterator[Emulator]:
    """Return the emulator of S3."""
    with s3_emulator() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def azure(credentials: None) -> Iterator[Emulator]:
    """Return the emulator of Azure."""
    with azure_emulator() as emulator:
        yield emulator


@pytest.fixture(params=["s3", full("azure")])
def store(request: pytest.FixtureRequest) -> Emulator:
    """Each emulator."""
    found: Emulator = request.getfixturevalue(request.param)
    return found
