"""Data sets as their readers see them: the manifests in `_pgdecode`, and the rows of the output files.

Nothing of the package is used: what docs/runs.md says of the files is enough.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.emulators import Emulator

Row = dict[str, Any]
LOG = "_pgdecode"
_MANIFEST = re.compile(rf"{LOG}/(\d{{10}})\.json")


@dataclass(frozen=True)
class DataSet:
    """A data set in a local folder or an object store. `location` is what a call names as OUT."""

    location: str
    contents: Callable[[], dict[str, bytes]]

    def manifests(self) -> list[dict[str, Any]]:
        """Read the manifests of the runs that belong to the data set, in order. No number is missing."""
        found = {int(match[1]): content for name, content in self.contents().items() if (match := matched(name))}
        assert sorted(found) == list(range(min(found, default=1), max(found, default=0) + 1))
        manifests = [json.loads(found[number]) for number in sorted(found)]
        first = max((at for at, manifest in enumerate(manifests) if manifest["is_first"]), default=0)
        return manifests[first:]

    def outputs(self) -> dict[str, bytes]:
        """Read the files that Spark and pyarrow find in a listing."""
        return {name: content for name, content in self.contents().items() if not is_hidden(name)}

    def checked(self) -> list[dict[str, Any]]:
        """Check that the files are those that the manifests name, and that nothing else is left."""
        manifests = self.manifests()
        named: dict[str, dict[str, Any]] = {}
        for manifest in manifests:
            if manifest["files"]:  # the caller of `save` writes its own
                assert manifest["rows"] == sum(file["rows"] for file in manifest["files"])
            named |= {file["name"]: file for file in manifest["files"]}
        contents = self.contents()
        outputs = {name: content for name, content in contents.items() if not is_hidden(name)}
        assert set(outputs) == set(named)
        for name, file in named.items():
            content = outputs[name]
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"]), name
            assert n_rows(name, content) == file["rows"], name
        # Of the states, the last one is kept; payload files are those that it needs.
        states = [name for name in contents if name.startswith(f"{LOG}/state-")]
        assert len(states) <= 1, states
        assert all(name.startswith(f"{LOG}/state-{manifests[-1]['number']:010}") for name in states)
        others = {name for name in contents if is_hidden(name) and not matched(name) and name not in states}
        others = {name for name in others if not name.startswith(f"{LOG}/payloads-")}
        assert others <= {f"{LOG}/lock"}, others
        return manifests

    def rows(self, below: str | None = None) -> list[Row]:
        """Read the rows of the files, or of those in the folder `below`, in the order of the runs."""
        contents = self.contents()
        names = [file["name"] for manifest in self.manifests() for file in manifest["files"]]
        names = [name for name in names if name in contents]  # what a later run has replaced, or a user moved
        return [row for name in names if below in (None, folder_of(name)) for row in read(name, contents[name])]


def local(folder: Path) -> DataSet:
    """A data set in a folder."""

    def contents() -> dict[str, bytes]:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    return DataSet(str(folder), contents)


def stored(uri: str, emulator: Emulator) -> DataSet:
    """A data set in an object store, such as s3://bucket/out."""
    import obstore

    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    store = objects(f"{scheme}://{bucket}", emulator)

    def contents() -> dict[str, bytes]:
        keys = [item["path"] for chunk in obstore.list(store, prefix=key) for item in chunk]
        return {name.removeprefix(f"{key}/"): bytes(obstore.get(store, name).bytes()) for name in keys}

    return DataSet(uri, contents)


def objects(bucket: str, emulator: Emulator) -> Any:
    """The obstore store of a bucket."""
    from obstore.store import from_url

    options: dict[str, Any] = emulator.options
    return from_url(bucket, client_options={"allow_http": True}, **options)


def matched(name: str) -> re.Match[str] | None:
    """Match the name of a manifest."""
    return _MANIFEST.fullmatch(name)


def is_hidden(name: str) -> bool:
    """Whether a reader leaves a file out."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


# -- rows --------------------------------------------------------------------------------------------------------------


def read(name: str, content: bytes) -> list[Row]:
    """Read the rows of a file, as values that are equal in all formats of the same kind."""
    if name.endswith(".parquet"):
        return [sparse(row) for row in plain(pq.read_table(pa.BufferReader(content))).to_pylist()]
    text = content.decode()
    if name.endswith(".jsonl"):
        return [sparse(json.loads(line)) for line in text.splitlines()]
    assert name.endswith(".csv"), name
    return [{key: value for key, value in row.items() if value} for row in csv.DictReader(io.StringIO(text))]


def n_rows(name: str, content: bytes) -> int:
    return (
        pq.read_metadata(pa.BufferReader(content)).num_rows if name.endswith(".parquet") else len(read(name, content))
    )


def plain(table: pa.Table) -> pa.Table:
    """Convert times to integers, because Python has no dates of all years."""
    return table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))


def _plain(type: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type) or pa.types.is_time64(type):
        return pa.int64()
    if pa.types.is_date32(type):
        return pa.int32()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_plain(field.type)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_plain(type.value_type)))
    return type


def sparse(row: Row) -> Row:
    """Leave out nulls: a later run may know more columns of a table. Values become text: it may know wider types."""
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            value = sparse(value) or None
        elif name not in ("old", "new") and not isinstance(value, list | None):
            value = str(value)
        if value is not None:
            found[name] = value
    return found


def ordered(rows: Iterable[Row]) -> list[str]:
    """Rows as text, sorted: for those that have no order."""
    return sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)
