"""Damages files and folders: bytes, names, JSON documents, Parquet schemas and footers."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# Where bytes are changed: the footer of a Parquet file is at its end.
_FOOTER_BYTES = 1200
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, -(2**70), 10**400, 1.5, float("nan"), float("inf")),
    *("", "0", "x", "0/0", "FFFFFFFF/FFFFFFFF", "../x", "a\0b", "\ud800", "x" * 5000, "public.orders"),
    *([], [1], [[]], [None], {}, {"x": 1}, {"version": 1}),
)


def files_below(path: Path) -> list[Path]:
    """List a file, or the files below a folder, in sorted order."""
    if not path.is_dir() or path.is_symlink():
        return [path]
    return sorted(found for found in path.rglob("*") if found.is_file() and not found.is_symlink())


def damage(path: Path, others: list[Path], rng: random.Random) -> str:
    """Damage a file, or the names in a folder. Return a description."""
    if not os.path.lexists(path):
        return "missing"
    kinds = list(_ANY)
    if path.is_file() and not path.is_symlink():
        kinds += [*_BYTES, *_BYTES]
        if path.suffix == ".parquet":
            kinds += _PARQUET
        if path.suffix in (".json", ".jsonl") or path.name == "current":
            kinds += [*_JSON, *_JSON, *_JSON]
    kind = rng.choice(kinds)
    with suppress(OSError):  # a file that an earlier damage has made special
        kind(path, others, rng)
    return f"{kind.__name__.strip('_')} {path.name}"


# --- names and kinds of files ---


def _renamed(path: Path, others: list[Path], rng: random.Random) -> None:
    names = ["x.parquet", "_hidden.parquet", ".hidden", "00000000000000000007.parquet", "a\nb.parquet", "x.csv"]
    names += [os.fsdecode(b"\xff.parquet"), "x" * 255, path.name + "0", path.stem]
    path.rename(path.with_name(rng.choice(names)))


def _removed(path: Path, others: list[Path], rng: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _as_folder(path: Path, others: list[Path], rng: random.Random) -> None:
    _removed(path, others, rng)
    path.mkdir()


def _as_link(path: Path, others: list[Path], rng: random.Random) -> None:
    _removed(path, others, rng)
    targets = [path.name, "nowhere", "/dev/null", "/proc/self/mem", "..", ".", *map(str, others[:1])]
    path.symlink_to(rng.choice(targets))


def _as_pipe(path: Path, others: list[Path], rng: random.Random) -> None:
    if path.suffix == ".parquet":
        _removed(path, others, rng)
        os.mkfifo(path)


def _as_socket(path: Path, others: list[Path], rng: random.Random) -> None:
    _removed(path, others, rng)
    with socket.socket(socket.AF_UNIX) as bound:
        # The path of a socket has at most 108 bytes.
        place = os.open(path.parent, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{place}/{path.name}")
        os.close(place)


def _unreadable(path: Path, others: list[Path], rng: random.Random) -> None:
    # Through a link, the mode of its target would change, such as that of /dev/null for the whole machine.
    if not path.is_symlink():
        path.chmod(rng.choice([0, 0o111, 0o444]))


def _duplicated(path: Path, others: list[Path], rng: random.Random) -> None:
    target = path.with_name(f"{rng.choice(['0', 'zz', '00000000000000000001'])}{path.suffix}")
    # A link to a parent would be copied for ever.
    if os.path.lexists(target) or path.is_symlink():
        return
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True)
    elif path.is_file():
        shutil.copyfile(path, target)


def _swapped(path: Path, others: list[Path], rng: random.Random) -> None:
    other = rng.choice([item for item in others if item != path and os.path.lexists(item)] or [path])
    if other == path or other in path.parents or path in other.parents:
        return
    hidden = path.with_name("swap")
    path.rename(hidden)
    other.rename(path)
    hidden.rename(other)


def _emptied_folder(path: Path, others: list[Path], rng: random.Random) -> None:
    if path.is_dir() and not path.is_symlink():
        for item in path.iterdir():
            _removed(item, others, rng)


# --- bytes ---


def _truncated(path: Path, others: list[Path], rng: random.Random) -> None:
    size = path.stat().st_size
    ends = [0, 1, 3, 4, 8, 12, size - 1, size - 4, size - 8, size - 9, rng.randint(0, size), rng.randint(0, size)]
    os.truncate(path, max(0, min(rng.choice(ends), size)))


def _flipped(path: Path, others: list[Path], rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _flipped_at_the_end(path: Path, others: list[Path], rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 4])):
        if content:
            at = rng.randrange(max(0, len(content) - _FOOTER_BYTES), len(content))
            content[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ (1 << rng.randrange(8))])
    path.write_bytes(content)


def _spliced(path: Path, others: list[Path], rng: random.Random) -> None:
    """Repeat, remove or insert a range."""
    content = path.read_bytes()
    first, last = sorted(rng.randint(0, len(content)) for _ in range(2))
    between = rng.choice([b"", content[first:last] * 2, rng.randbytes(rng.randint(0, 100)), bytes(last - first), b"\n"])
    path.write_bytes(content[:first] + between + content[last:])


def _noise(path: Path, others: list[Path], rng: random.Random) -> None:
    noise = rng.randbytes(rng.choice([0, 1, 7, 100, 3000]))
    odd = (
        *(
            b"",
            b"\n",
            b"\0",
            b"\xff" * 50,
            b"PAR1",
            b"PAR1PAR1",
            b"PAR1\x00\x00\x00\x00PAR1",
            b"PAR1\xff\xff\xff\xffPAR1",
        ),
        *(b"PARE", b"null", b"[]", b"{}\n", b"[" * 100_000, b"9" * 5000, b'{"format": ["x"]}', b"data\n\\x\n", noise),
        b'"' * 7,
    )
    path.write_bytes(rng.choice(odd))


def _of_another(path: Path, others: list[Path], rng: random.Random) -> None:
    """Give the content of another file."""
    found = [item for item in others if item.is_file() and item != path]
    if found:
        path.write_bytes(rng.choice(found).read_bytes())


# --- JSON ---


def _json_changed(path: Path, others: list[Path], rng: random.Random) -> None:
    """Change values of a document, or of some lines."""
    text = path.read_text(errors="replace")
    try:
        document = json.loads(text)
    except ValueError:
        lines = text.splitlines(keepends=True)
        for _ in range(rng.choice([1, 1, 3])):
            if lines:
                at = rng.randrange(len(lines))
                try:
                    lines[at] = json.dumps(_mutated(json.loads(lines[at]), rng)) + "\n"
                except (ValueError, RecursionError):
                    lines[at] = rng.choice(["null\n", "{}\n", "\n", "[]\n", '{"event": "file"}\n'])
        path.write_text("".join(lines), errors="surrogatepass")
        return
    except RecursionError:
        return
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        document = _mutated(document, rng)
    path.write_text(json.dumps(document), errors="surrogatepass")


def _mutated(value: Any, rng: random.Random) -> Any:
    """Replace, remove, add or repeat one value at a random depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice([*value])
        action = rng.random()
        if action < 0.2:
            return {other: item for other, item in value.items() if other != name}
        if action < 0.3:
            return {**value, rng.choice(["", "x", "version", name.upper()]): rng.choice(_ODD_VALUES)}
        return {**value, name: _mutated(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        action = rng.random()
        if action < 0.15:
            return value[:at] + value[at + 1 :]
        if action < 0.3:
            return [*value, value[at]]
        return [*value[:at], _mutated(value[at], rng), *value[at + 1 :]]
    if type(value) is int and rng.random() < 0.4:
        return value + rng.choice([-1, 1, 1000, -1000, 2**32])
    return rng.choice(_ODD_VALUES)


def _line_changed(path: Path, others: list[Path], rng: random.Random) -> None:
    """Repeat, remove or move whole lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines:
        return
    line = lines.pop(rng.randrange(len(lines)))
    for _ in range(rng.randrange(3)):
        lines.insert(rng.randint(0, len(lines)), line)
    path.write_bytes(b"".join(lines))


# --- Parquet ---


def _other_schema(path: Path, others: list[Path], rng: random.Random) -> None:
    """Write the rows with other columns."""
    try:
        table = pq.read_table(path)
    except Exception:  # an earlier damage
        return
    n = table.num_rows
    _COLUMNS: dict[str, Callable[[], pa.Array]] = {
        "text": lambda: pa.array([f"{row}" for row in range(n)]),
        "json": lambda: pa.array(['{"action": "I"}'] * n),
        "nulls": lambda: pa.nulls(n),
        "null binary": lambda: pa.nulls(n, pa.binary()),
        "decimal": lambda: pa.array([Decimal(row) for row in range(n)], pa.decimal128(38, 0)),
        "float": lambda: pa.array([row / 2 for row in range(n)]),
        "nan": lambda: pa.array([float("nan")] * n),
        "bool": lambda: pa.array([True] * n),
        "timestamp": lambda: pa.array([2**62] * n, pa.timestamp("us")),
        "uint64": lambda: pa.array([2**64 - 1 - row for row in range(n)], pa.uint64()),
        "uint64 small": lambda: pa.array([*range(n)], pa.uint64()),
        "int32": lambda: pa.array([*range(n)], pa.int32()),
        "descending": lambda: pa.array([*range(n, 0, -1)], pa.int64()),
        "negative": lambda: pa.array([*range(-n, 0)], pa.int64()),
        "greatest": lambda: pa.array([2**63 - 1] * n, pa.int64()),
        "some nulls": lambda: pa.array([None if row % 7 == 3 else row for row in range(n)], pa.int64()),
        "list": lambda: pa.array([[b"x"]] * n, pa.list_(pa.binary())),
        "struct": lambda: pa.array([{"data": b"x"}] * n),
        "dictionary": lambda: pa.array([b"B"] * n).dictionary_encode(),
        "fixed": lambda: pa.array([b"BCDE"] * n, pa.binary(4)),
        "map": lambda: pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        "empty": lambda: pa.array([b""] * n),
        "date": lambda: pa.array(list(range(n)), pa.date32()),
        "duration": lambda: pa.array(list(range(n)), pa.duration("us")),
        "half": lambda: pa.array(list(range(n)), pa.float16()),
    }
    for _ in range(rng.choice([1, 1, 2])):
        if len({*table.schema.names}) < table.num_columns:
            break
        name = rng.choice([*table.schema.names, "seq", "data", "position", "lsn"])
        action = rng.random()
        if action < 0.1 and name in table.schema.names:
            table = table.drop_columns([name])
        elif action < 0.15:
            table = table.slice(0, 0)
        elif action < 0.2:
            table = table.select([])
        elif action < 0.25:
            table = pa.concat_tables([table, table])
        elif action < 0.3 and name in table.schema.names:
            table = table.rename_columns(["data" if other == name else other for other in table.schema.names])
        elif action < 0.35 and name in table.schema.names:
            table = table.append_column(name, table[name])
        elif table.num_rows == n:
            column = _COLUMNS[rng.choice([*_COLUMNS])]()
            at = table.schema.get_field_index(name)
            table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    if rng.random() < 0.3:
        keys = [b"pgdecode.types", b"pgdecode.catalog", b"pgdecode.control", b"pgdecode.capture", b"ARROW:schema"]
        values = [b"", b"null", b"[]", b"{}", b"\xff", b'[["x", 1, 2]]', b'[[1, "a.b", "a.b"]]', b'{"origin": 1}']
        values += [b'{"origin": {"system": []}, "file": {"session": "x"}}', b"[" * 50_000, b"1" * 5000]
        metadata = {**(table.schema.metadata or {}), rng.choice(keys): rng.choice(values)}
        table = table.replace_schema_metadata(metadata)
    hidden = path.with_name("rewritten")
    options: dict[str, Any] = {
        "compression": rng.choice(["snappy", "zstd", "gzip", "none", "lz4", "brotli"]),
        "use_dictionary": rng.random() < 0.5,
        "row_group_size": rng.choice([1 + n // 2, 17, 10**6]),
        "version": rng.choice(["1.0", "2.6"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "store_schema": rng.random() < 0.5,
    }
    try:
        pq.write_table(table, hidden, **options)
    except (pa.ArrowException, OSError, ValueError):
        hidden.unlink(missing_ok=True)  # Parquet has no such type
        return
    hidden.replace(path)


def _footer_changed(path: Path, others: list[Path], rng: random.Random) -> None:
    """Change bytes of the footer alone, without its length."""
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    if not 0 < length <= len(content) - 8:
        return
    start = len(content) - 8 - length
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(start, len(content) - 8)
        value = content[at]
        content[at] = rng.choice([value ^ (1 << rng.randrange(8)), 0xFF, 0x80, 0, (value + 2) & 255, (value - 2) & 255])
    path.write_bytes(content)


_ANY = (
    *(_renamed, _removed, _as_folder, _as_link, _as_pipe, _as_socket, _unreadable, _duplicated, _swapped),
    _emptied_folder,
)
_BYTES = (_truncated, _truncated, _flipped, _flipped_at_the_end, _spliced, _noise, _of_another)
_JSON = (_json_changed, _json_changed, _json_changed, _line_changed)
_PARQUET = (_other_schema, _other_schema, _other_schema, _footer_changed, _footer_changed, _footer_changed)
