"""Writes the valid inputs of all cases: recorded captures in every form that commands read, and what runs leave."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from command_fuzz.streams import captured
from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import SCHEMA
from pgdecode.capture.journal import Journal
from pgdecode.capture.server import Identity
from pgdecode.cli.main import main
from pgdecode.files.file_metadata import TYPES_KEY
from support import captures

_ORIGIN = {"system": "7", "timeline": 1, "database": "shop", "slot": "s", "publications": ["p"]}


class Input(NamedTuple):
    """An input of commands. `is_parquet`: whether pyarrow reads the same rows."""

    name: str
    tables: tuple[str, ...]
    is_parquet: bool = True


_SHOP = ("public.products", "public.customers", "public.orders")
INPUTS = (
    Input("shop.parquet", _SHOP),
    Input("streams.parquet", ("public.s1", "public.s2")),
    Input("twophase.parquet", ("public.t2",)),
    Input("types.parquet", ("public.every_type",)),
    Input("typesbin.parquet", ("public.every_type",)),
    Input("txns.parquet", ("public.a", "Odd Schema.T able", "public.gen")),
    Input("raw", _SHOP),
    Input("parts", _SHOP),
    Input("rows.csv", _SHOP, False),
    Input("rows.jsonl", _SHOP, False),
    Input("recv.bin", _SHOP, False),
    Input("frames.parquet", _SHOP, False),
    Input("hex.parquet", _SHOP, False),
)


def write_materials(folder: Path) -> None:
    """Write all valid inputs, and the outputs and states of runs over some of them."""
    folder.mkdir(parents=True)
    named = {
        "shop": "18.shop.v1",
        "streams": "18.streams.v4",
        "twophase": "18.twophase.v3",
        "types": "18.types.v1",
        "typesbin": "18.types.v1bin",
        "txns": "18.txns.v2",
    }
    tables = {name: pq.read_table(captures.DATA / f"{source}.parquet") for name, source in named.items()}
    for name, table in tables.items():
        # Fewer rows, because a case costs what its rows cost.
        pq.write_table(table.slice(0, 900), folder / f"{name}.parquet", row_group_size=300)
    shop = tables["shop"].slice(0, 600)
    _write_parts(folder / "parts", shop)
    _write_capture(folder / "raw", shop)
    _write_texts(folder, shop)
    _write_runs(folder, tables)


def _write_parts(folder: Path, table: pa.Table) -> None:
    folder.mkdir()
    for number in range(3):
        pq.write_table(table.slice(200 * number, 200), folder / f"{number}.parquet")


def _write_capture(folder: Path, table: pa.Table) -> None:
    journal = Journal(folder)
    journal.begin(Identity("7", 1, "shop", 180000), "s", ("p",), 5)
    for number in range(3):
        part = table.slice(200 * number, 200)
        rows = [
            {"seq": 200 * number + row, "lsn": item["lsn"], "received": 10**15, "data": item["data"]}
            for row, item in enumerate(part.to_pylist())
        ]
        writer = FileWriter(folder, 200 * number, "zstd")
        writer.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        types = {TYPES_KEY: json.dumps([[90001, "public.price", "numeric(12,2)"]])}
        journal.add_file(writer.seal(1000 * (number + 1), number, (0, 0), {"origin": _ORIGIN}, types))
    journal.append("gap", **{"from": "0/5"}, to="0/40", reason="why", server={**_ORIGIN, "timeline": 2})
    journal.add_position(4000)
    journal.close()


def _write_texts(folder: Path, table: pa.Table) -> None:
    rows = table.to_pylist()
    lsn = "0/16B3748"
    lines = [f"{lsn},{row['xid']},\\x{row['data'].hex()}\n" for row in rows]
    (folder / "rows.csv").write_text("".join(["lsn,xid,data\n", *lines]))
    objects = [json.dumps({"lsn": lsn, "xid": row["xid"], "data": "\\x" + row["data"].hex()}) for row in rows]
    (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in objects))
    (folder / "recv.bin").write_bytes(b"".join(row["data"] + b"\n" for row in rows))
    frames = [b"w" + struct.pack("!qqq", row["lsn"], row["lsn"], 0) + row["data"] for row in rows]
    pq.write_table(pa.table({"seq": table["seq"], "data": pa.array(frames, pa.binary())}), folder / "frames.parquet")
    texts = [row["data"].hex() for row in rows]
    pq.write_table(pa.table({"seq": table["seq"], "data": texts}), folder / "hex.parquet")


def _write_runs(folder: Path, tables: dict[str, pa.Table]) -> None:
    """Decode halves of captures, so that other commands can continue: with open transactions, and between them."""
    for name, middle in (("streams", 450), ("shop", 300)):
        table = tables[name].slice(0, 900)
        pq.write_table(table.slice(0, middle), folder / f"{name}1.parquet")
        pq.write_table(table.slice(middle), folder / f"{name}2.parquet")
        _run("decode", folder / f"{name}1.parquet", folder / f"{name}-run", "--changes")
    _run("inspect", folder / "shop.parquet", "--write-catalog", folder / "catalog.json")
    _run("decode", folder / "types.parquet", folder / "there.parquet")
    run = folder / "shop-run"
    left = run / "_pgdecode" / "new" / "left"
    left.mkdir(parents=True)
    for path in [*run.glob("*.parquet")]:
        shutil.copy(path, left)


def _run(*words: str | Path) -> None:
    with captured() as streams:
        code = main([str(word) for word in words])
    assert code == 0, streams[1].getvalue()
