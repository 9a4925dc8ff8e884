"""Servers of Spark on this machine, each a process of its own: a standalone cluster, and a server of Spark Connect."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from spark_udfs.runtime.java import ensure_java

SPARK = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master (\S+)")
_CONNECT = re.compile(r"Spark Connect server started at: \S*:(\d+)")
_SECONDS = 120


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its URL, and a folder for its logs and its executors."""

    master: str
    folder: Path


@contextmanager
def standalone_cluster(n_workers: int, environment: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Start a cluster whose workers have one core each, and end its processes at the end.

    `environment` has variables for the workers, which pass them to their executors.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgdecode-cluster-")))
        # spark-submit takes its options from the environment, but the processes of a cluster take others.
        variables = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        }
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = ["spark-class", "org.apache.spark.deploy.master.Master", *options]
        master = _started(stack, folder / "master.log", command, _MASTER, variables)
        for number in range(n_workers):
            work = folder / f"worker{number}"
            work.mkdir()
            options_of_worker = [*options, "--cores", "1", "--memory", "1g", "--work-dir", str(work), master]
            command = ["spark-class", "org.apache.spark.deploy.worker.Worker", *options_of_worker]
            _started(stack, folder / f"worker{number}.log", command, _WORKER, {**variables, **(environment or {})})
        yield Cluster(master, folder)


@contextmanager
def connect_server(settings: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server of Spark Connect with a local Spark of two threads. Yield its URL.

    `environment` has variables for the server, and through it for its Python workers.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgdecode-connect-")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        chosen = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **settings,
        }
        options = [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
        command = ["spark-submit", "--master", "local[2]", *options]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        _started(stack, folder / "server.log", command, _CONNECT, environment or {})
        yield f"sc://127.0.0.1:{port}"


def _started(
    stack: ExitStack, log: Path, command: list[str], started: re.Pattern[str], environment: Mapping[str, str]
) -> str:
    """Start a program of Spark, and wait until its log has a text. Return the text's first group."""
    ensure_java()
    base = {**os.environ, "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK)}
    with log.open("wb") as output:
        program = [str(SPARK / "bin" / command[0]), *command[1:]]
        process = subprocess.Popen(program, stdout=output, stderr=output, env={**base, **environment})
    stack.callback(_end, process)
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and process.poll() is None:
        found = started.search(log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"{command[0]} has not started within {_SECONDS} s:\n{log.read_text(errors='replace')[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
