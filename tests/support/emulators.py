"""Emulators of object stores on loopback: moto's server for S3, and Azurite for Azure."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

# Credentials of the emulators. Tests search for the secrets where they must not be.
S3_SECRET = "S3-SECRET-CANARY"
# The key of Azurite's account, which its documentation publishes.
AZURE_SECRET = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
SECRETS = (S3_SECRET, AZURE_SECRET)
ACCOUNT = "devstoreaccount1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "S3-KEY-CANARY",
    "AWS_SECRET_ACCESS_KEY": S3_SECRET,
    "AZURE_STORAGE_ACCOUNT_KEY": AZURE_SECRET,
}
_SECONDS_TO_START = 60
_numbers = itertools.count()


@dataclass(frozen=True)
class Emulator:
    """An emulator. `options` are its storage options, without credentials, which are in the environment."""

    kind: str
    port: int
    options: dict[str, str]

    def new_bucket(self) -> str:
        """Create an empty bucket or container, and return its URI."""
        name = f"bucket{os.getpid()}-{next(_numbers)}"
        if self.kind == "azure":
            _create_container(self.port, name)
            return f"az://{name}"
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}"

    @property
    def shell(self) -> list[str]:
        """The options of a command."""
        return [word for name, value in self.options.items() for word in ("--storage-option", f"{name}={value}")]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(command: Sequence[str | Path], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(_SECONDS_TO_START * 10):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None:
                    pytest.skip(f"{command[0]} ended with code {process.returncode}")
                time.sleep(0.1)
        else:
            pytest.skip(f"{command[0]} does not answer")
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def s3_emulator() -> Iterator[Emulator]:
    """Start moto's server."""
    program = Path(sys.executable).parent / "moto_server"
    if not program.exists():
        pytest.skip("no moto_server: pip install 'moto[server]'")
    port = free_port()
    with server([program, "-H", "127.0.0.1", "-p", str(port)], port):
        yield Emulator("s3", port, {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"})


def azurite() -> Path | None:
    """Find Azurite: on the PATH, or where `.ci/run` installs it."""
    here = Path(__file__).parents[2] / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    found = shutil.which("azurite-blob") or (here if here.exists() else None)
    return None if found is None else Path(found)


@contextmanager
def azure_emulator() -> Iterator[Emulator]:
    """Start Azurite."""
    program = azurite()
    if program is None:
        pytest.skip("no azurite-blob: npm install --prefix build/azurite azurite")
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    with server([*command, "--skipApiVersionCheck", "--disableTelemetry"], port):
        yield Emulator("azure", port, {"account_name": ACCOUNT, "endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}"})


def _create_container(port: int, name: str) -> None:
    """Create a container, which obstore cannot do."""
    date = email.utils.formatdate(usegmt=True)
    empty = "\n" * 12
    signed = f"PUT{empty}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURE_SECRET), signed.encode(), hashlib.sha256).digest()
    connection = HTTPConnection("127.0.0.1", port)
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    assert connection.getresponse().status == 201
    connection.close()
