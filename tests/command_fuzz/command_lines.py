"""Makes random command lines: one that fits the materials, then options of the command, fitting or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from command_fuzz.materials import INPUTS, Input
from pgdecode.cli.commands import COMMANDS, command_named

_ODD_WORDS = (
    *(
        "",
        " ",
        "-",
        "--",
        "nope",
        "0",
        "-1",
        "1",
        "7",
        "99999999999999999999",
        "1e3",
        "NaN",
        "x=y",
        "=",
        "a=",
        "'",
        '"',
    ),
    *("public.orders", "public.", ".", "..", "/", "data", "seq", "lsn", "data,seq", ",", "é", "\udcff\udcfe", "a\nb"),
    *("\x1b[31m", "x" * 300, "x" * 5000, "a\0b", "s3://", "s3:x", "ftp://h/x", "file:///x", "%s", "{}", "now", "1d"),
    *("10GB", "0/0", "16/B374D848", "FFFFFFFFF/0", "[bold]x[/bold]", "[/]"),
)
_VALUES: dict[str, tuple[str, ...]] = {
    "payload": ("data", "data", "seq", "xid", "DATA"),
    "position": ("seq", "seq", "lsn", "xid", "data", "frame_lsn", "capture_session"),
    "session": ("xid", "lsn", "seq", "data", "capture_session", "frame_lsn"),
    "keep": ("seq", "seq,lsn", "lsn", "xid", "data", "frame_lsn", "capture_session", "nope"),
    "fields": ("kind,xid", "new,old", "lsn", "xid_basis", "error", "columns", "kind,kind"),
    "kinds": ("insert", "begin,commit", "error", "update,delete", "relation"),
    "types": (
        "public.price=numeric(12,2)",
        "790=money(2)",
        "x=(a int4, b x)",
        "x=x",
        "99999999999999999999=int4",
        "x=int4[]",
    ),
    "encoding": ("UTF8", "LATIN1", "SQL_ASCII", "GBK", "nope"),
    "datestyle": ("ISO, MDY", "SQL, DMY", "German", "nope"),
    "catalog": ("catalog.json", "rows.csv", "raw", "nope", "/dev/null"),
    "bad": ("bad.parquet", "bad.csv", "there.parquet", "no/bad.parquet", "out/bad.parquet"),
    "write_catalog": ("written.json", "catalog.json", "no/x.json", "raw"),
    "storage_options": ("region=x", "endpoint=http://127.0.0.1:1", "=", "x"),
    "older_than": ("0s", "1d", "999999d", "1w", "-1d", "٣d"),
    "conf": ("spark.x=y", "x"),
    "until": ("now", "0/10", "1ms", "nope", "0s"),
    "messages": ("on", "3", "0", "-1", "²"),
    "retain": ("7d", "1KB", "nope", "0"),
    "file_size": ("64MB", "1", "0", "nope", "9" * 30 + "GB"),
    "file_time": ("30s", "1ms", "nope", "9" * 400 + "s"),
    "publications": ("p", "q", ""),
}


@dataclass
class Line:
    """A command line.

    Attributes
    ----------
    words : list of str
    inputs : list of str
        Names of the materials that it reads.
    outputs : list of str
        Names of what it may write.
    input : Input or None
    is_plain : bool
        Whether it has no other options than those that choose what to write.
    """

    words: list[str]
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)
    input: Input | None = None
    is_plain: bool = True


def command_line(rng: random.Random, port: int) -> Line:
    """Make a command line. `port` is that of a server, for commands that connect."""
    makers, weights = zip(*_MAKERS, strict=True)
    maker = _capture if port != 1 and rng.random() < 0.6 else rng.choices(makers, weights)[0]
    line: Line = maker(rng, port)
    n_more = rng.choices([0, 1, 2, 3, 6], [60, 18, 10, 7, 5])[0]
    if n_more and line.words[0] in COMMANDS:
        line.is_plain = False
        for _ in range(n_more):
            line.words += _random_option(line, rng)
    if rng.random() < 0.03:
        line.is_plain = False
        at = rng.randrange(len(line.words))
        action = rng.random()
        if action < 0.3:
            line.words.insert(at, rng.choice(_ODD_WORDS))
        elif action < 0.6:
            line.words[at] = rng.choice(_ODD_WORDS)
        elif action < 0.8:
            del line.words[at]
        else:
            rng.shuffle(line.words)
    if "spark" in line.words:
        line.words = ["local" if word == "spark" else word for word in line.words]
    return line


def _random_option(line: Line, rng: random.Random) -> list[str]:
    options = [item for item in command_named(line.words[0]).params if isinstance(item, click.Option)]
    if not options:
        return ["--help"]
    option = rng.choice(options)
    name = rng.choice(option.opts + option.secondary_opts)
    if option.is_flag:
        return [name]
    value = _value(option, line, rng)
    if option.name in ("bad", "write_catalog"):
        line.outputs.append(value)
    if option.name == "catalog":
        line.inputs.append(value)
    return [f"{name}={value}"] if rng.random() < 0.2 else [name, value]


def _value(option: click.Option, line: Line, rng: random.Random) -> str:
    if option.name == "retry":
        return rng.choice(["0s", "nope"])  # others wait
    if rng.random() < 0.15:
        return rng.choice(_ODD_WORDS)
    if option.name in ("tables", "snapshots"):
        return rng.choice([*(line.input.tables if line.input else ()), "public.nope", "x"])
    if isinstance(option.type, click.Choice):
        # Spark takes seconds to start; its own tests have its errors.
        return str(rng.choice([value for value in option.type.choices if value != "spark"]))
    if isinstance(option.type, click.IntRange):
        return rng.choice(["1", "2", "7", "1000", "0", "-1", "100000", "9" * 20])
    return rng.choice(_VALUES.get(option.name or "", _ODD_WORDS))


def _input(rng: random.Random) -> Input:
    return rng.choice(INPUTS)


def _out(rng: random.Random) -> str:
    names = ["out", "out.parquet", "out.jsonl", "out.csv", "there.parquet", "shop-run", "out/below", "raw"]
    return rng.choices(names, [8, 8, 4, 4, 1, 1, 1, 1])[0]


def _what(source: Input, rng: random.Random) -> list[str]:
    tables = list(source.tables)
    some = rng.sample(tables, rng.randint(1, len(tables)))
    choices: list[list[str]] = [
        *([], ["--messages"], ["--changes"], ["--changes"]),
        ["--table", some[0]],
        [word for name in some for word in ("--table", name)],
        ["--snapshot", some[0]],
        [word for name in some for word in ("--snapshot", name)],
    ]
    return rng.choice(choices)


def _decode(rng: random.Random, port: int) -> Line:
    source, out = _input(rng), _out(rng)
    words = ["decode", source.name, out, *_what(source, rng)]
    if rng.random() < 0.2:
        words += ["--overwrite"]
    return Line(words, [source.name], [out], source)


def _continue(rng: random.Random, port: int) -> Line:
    name = rng.choice(["shop", "streams"])
    source, out = f"{name}{rng.choice('1222')}.parquet", f"{name}-run"
    words = ["decode", source, out, "--changes"]
    if rng.random() < 0.2:
        words += ["--overwrite"]
    return Line(words, [source, out, out, out], [out])


def _inspect(rng: random.Random, port: int) -> Line:
    source = _input(rng)
    return Line(["inspect", source.name, *rng.choice([[], ["--json"]])], [source.name], [], source)


def _inspect_state(rng: random.Random, port: int) -> Line:
    name = rng.choice(["shop-run", "streams-run"])
    return Line(["inspect", name, "--catalog", *rng.choice([[], ["--json"]])], [name], [])


def _cat(rng: random.Random, port: int) -> Line:
    source = _input(rng)
    return Line(["cat", source.name, *rng.choice([[], ["--changes"], ["--no-json"]])], [source.name], [], source)


def _with_catalog(rng: random.Random, port: int) -> Line:
    command = rng.choice([["cat", "shop2.parquet"], ["decode", "shop2.parquet", "out"]])
    return Line(
        [*command, "--changes", "--start", "anywhere", "--catalog", "catalog.json"],
        ["catalog.json", "catalog.json", "shop2.parquet"],
        ["out"],
    )


def _capture(rng: random.Random, port: int) -> Line:
    dsn = f"host=127.0.0.1 port={port} dbname=shop user=u connect_timeout=2"
    names = ["raw", "new", "raw/00000000000000000000.parquet", "no/where", "parts"]
    out = rng.choices(names, [6, 6, 1, 1, 1])[0]
    words = ["capture", dsn, out, "--slot", "s", "--publication", "p", "--retry", "0s"]
    words += rng.choice(
        [["--until", "now"], ["--until", "100ms"], ["--status"], ["--status", "--json"], ["--drop-slot"]]
    )
    if "--status" not in words and rng.random() < 0.3:
        words += [rng.choice(["--accept-gap", "--create-slot", "--two-phase"])]
    return Line(words, [out, "raw", "raw/_capture.jsonl"], [out])


def _capture_nowhere(rng: random.Random, port: int) -> Line:
    dsn = rng.choice(
        ["host=127.0.0.1 port=1", "host=/nowhere", "postgresql://u:p@ss@h/x", "x", "é=1", "port=x", "service=no"]
    )
    words = ["capture", f"{dsn}", rng.choice(["raw", "new"]), "--slot", "s", "--publication", "p", "--retry", "0s"]
    return Line([*words, *rng.choice([[], ["--status"]])], ["raw", "raw/_capture.jsonl"], ["raw", "new"])


def _demo(rng: random.Random, port: int) -> Line:
    return Line(["demo", rng.choice(["raw", "shop.parquet", "there.parquet"]), *rng.choice([[], ["x"]])], [], [])


def _wild(rng: random.Random, port: int) -> Line:
    words = [rng.choice([*(name for name in COMMANDS if name not in ("demo", "capture")), "x", "--help", "--version"])]
    words += [rng.choice(_ODD_WORDS) for _ in range(rng.randrange(5))]
    return Line(words, ["."], [word for word in words if word])


_MAKERS: tuple[tuple[Callable[[random.Random, int], Line], int], ...] = (
    (_decode, 40),
    (_continue, 16),
    (_inspect, 10),
    (_inspect_state, 6),
    (_cat, 10),
    (_with_catalog, 4),
    (_capture, 10),
    (_capture_nowhere, 2),
    (_demo, 1),
    (_wild, 3),
)


def command_of(line: Line) -> Any:
    """Return the name of the command, for counts."""
    return line.words[0] if line.words and line.words[0] in COMMANDS else "other"
