"""Entries of the log of a Delta table: the actions of a commit, and the state of pgdecode in its commit info.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from pgdecode.lake.applied import Applied
from pgdecode.lake.data_file import DataFile, order_value

LOG = "_delta_log"
# Keys in the commit info.
_APPLIED, _SCHEMA, _TABLE = "pgdecode.applied", "pgdecode.schema", "pgdecode.table"
# Delta's default of delta.dataSkippingNumIndexedCols. Columns after these have no statistics, but for those of the key.
_INDEXED_COLUMNS = 32
# Characters of a text in statistics, as Spark writes them.
_PREFIX = 32
_LAST_CHARACTER = "\U0010ffff"
# Readers may take decimals in JSON as floating point, which has this many digits.
_EXACT_DIGITS = 15
_EPOCH = date(1970, 1, 1)
_US_PER_DAY = 86_400_000_000
_FIRST_DAY, _END_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days + 1

# Features of writers, by the version of the protocol that has them without a name.
_LEGACY_FEATURES = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, "columnMapping"),
    (6, "identityColumns"),
)
# A table may support these, as long as it does not use them.
_KNOWN_FEATURES = {*(name for _, name in _LEGACY_FEATURES), "timestampNtz", "deletionVectors", "vacuumProtocolCheck"}
_NTZ = "timestampNtz"
_REFUSED_PROPERTIES = {
    "delta.appendOnly": "append-only",
    "delta.enableChangeDataFeed": "change data feed",
    "delta.enableDeletionVectors": "deletion vectors",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.enableTypeWidening": "type widening",
}
_REFUSED_FIELDS = {
    "delta.generationExpression": "generated columns",
    "delta.identity.start": "identity columns",
    "delta.invariants": "column invariants",
    "delta.columnMapping.id": "column mapping",
}


@dataclass(frozen=True)
class Protocol:
    """The protocol of a table."""

    reader: int = 1
    writer: int = 2
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    def with_timestamps(self) -> Protocol:
        """Return the protocol with timestamps without zone, which are a feature."""
        if _NTZ in self.writer_features:
            return self
        readers, writers = set(self.reader_features), set(self.writer_features)
        if self.reader == 2:
            readers.add("columnMapping")
        if self.writer < 7:
            writers |= {name for version, name in _LEGACY_FEATURES if version <= self.writer}
        return Protocol(3, 7, (*sorted(readers), _NTZ), (*sorted(writers), _NTZ))

    def action(self) -> dict[str, Any]:
        """Return the action that sets it."""
        action: dict[str, Any] = {"minReaderVersion": self.reader, "minWriterVersion": self.writer}
        if self.reader >= 3:
            action["readerFeatures"] = [*self.reader_features]
        if self.writer >= 7:
            action["writerFeatures"] = [*self.writer_features]
        return {"protocol": action}


def refused_features(
    protocol: Protocol, partitions: Collection[str], configuration: Mapping[str, Any], schema: Mapping[str, Any]
) -> list[str]:
    """List the features of a table that are not written, by the names that users know."""
    found = ["partitions"] if partitions else []
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.append("column mapping")
    if any(name.startswith("delta.constraints.") for name in configuration):
        found.append("check constraints")
    found += [text for name, text in _REFUSED_PROPERTIES.items() if str(configuration.get(name)).lower() == "true"]
    fields = [field.get("metadata", {}) for field in schema["fields"]]
    found += [text for name, text in _REFUSED_FIELDS.items() if any(name in metadata for metadata in fields)]
    unknown = {*protocol.reader_features, *protocol.writer_features} - _KNOWN_FEATURES
    found += [f"feature {name}" for name in sorted(unknown)]
    if protocol.reader > 3 or protocol.writer > 7:
        found.append(f"protocol {protocol.reader}, {protocol.writer}")
    return list(dict.fromkeys(found))


# -- entries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """The state of pgdecode in a commit info.

    Attributes
    ----------
    table : str
        Its name as "schema.table".
    applied : Applied
    schema : pa.Schema
        With the types of typed tables.
    """

    table: str
    applied: Applied
    schema: pa.Schema

    def info(self) -> dict[str, str]:
        """Return it for a commit info."""
        schema = zlib.compress(self.schema.serialize())
        return {_TABLE: self.table, _APPLIED: self.applied.to_json(), _SCHEMA: base64.b64encode(schema).decode()}

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> State:
        """Read what `info` made.

        Raises
        ------
        ValueError
            If it is damaged, or of another version.
        """
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(info[_SCHEMA]))))
            return cls(info[_TABLE], Applied.from_json(info[_APPLIED]), schema)
        except (LookupError, TypeError, OSError, zlib.error, pa.ArrowException) as error:
            raise ValueError(f"it is damaged ({type(error).__name__})") from error


def state_at(version: int, read: Callable[[int], bytes | None], version_at: Callable[[Any], int]) -> State | None:
    """Find the state of a version of a table: that of the last commit of pgdecode before it. None without one.

    A commit that restores a former version has the state of that version.

    Parameters
    ----------
    version : int
    read : callable
        Returns the content of the entry of a version; None if it is not in the log any more.
    version_at : callable
        Returns the version that the table had at a time, which is the parameter of a restore.
    """
    while version >= 0 and (content := read(version)) is not None:
        info = commit_info(content)
        if _APPLIED in info:
            return State.of(info)
        restored = info.get("operation") == "RESTORE"
        version = min(_restored_version(info, version_at), version - 1) if restored else version - 1
    return None


def _restored_version(info: Mapping[str, Any], version_at: Callable[[Any], int]) -> int:
    parameters = info.get("operationParameters") or {}
    version = parameters.get("version")
    if version is not None and str(version) != "null":
        return int(version)
    return version_at(parameters.get("datetime", parameters.get("timestamp")))


def commit_info(content: bytes) -> dict[str, Any]:
    """Return the commit info of an entry; empty if it has none."""
    for line in content.splitlines():
        if line.lstrip().startswith(b'{"commitInfo"'):
            found: dict[str, Any] = json.loads(line)["commitInfo"]
            return found
    return {}


def is_only_info(content: bytes) -> bool:
    """Whether a commit changes nothing, as those of VACUUM."""
    return all(json.loads(line).keys() == {"commitInfo"} for line in content.splitlines() if line.strip())


def added_names(content: bytes) -> set[str]:
    """Return the names of the files that a commit adds."""
    lines = (json.loads(line) for line in content.splitlines() if line.strip())
    return {line["add"]["path"].rpartition("/")[2] for line in lines if "add" in line}


def entry(info: Mapping[str, Any], actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Make an entry of the log. The commit info comes first."""
    lines = [{"commitInfo": info}, *actions]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def now_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def add_action(path: str, file: DataFile, keys: Collection[str]) -> dict[str, Any]:
    """Return the action that adds a file. `path` is relative to the folder of the table."""
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": file.bytes,
            "modificationTime": now_ms(),
            "dataChange": True,
            "stats": statistics(file, keys),
        }
    }


def remove_action(path: str, file: DataFile) -> dict[str, Any]:
    """Return the action that removes a file."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": now_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.bytes,
        }
    }


# -- statistics --------------------------------------------------------------------------------------------------------


def statistics(file: DataFile, keys: Collection[str]) -> str:
    """Return the statistics of a file, as JSON: of the first columns, and of those of the key."""
    minima: list[str] = []
    maxima: list[str] = []
    nulls: list[str] = []
    for number, (name, bounds) in enumerate(file.bounds.items()):
        if number >= _INDEXED_COLUMNS and name not in keys:
            continue
        label = json.dumps(name)
        if bounds.nulls is not None:
            nulls.append(f"{label}:{bounds.nulls}")
        for bound, made, is_maximum in ((bounds.minimum, minima, False), (bounds.maximum, maxima, True)):
            text = None if bound is None else _bound(bound, is_maximum)
            if text is not None:
                made.append(f"{label}:{text}")
    parts = [
        f'"{part}":{{{",".join(items)}}}'
        for part, items in (("minValues", minima), ("maxValues", maxima), ("nullCount", nulls))
    ]
    return "{" + ",".join([f'"numRecords":{file.rows}', *parts]) + "}"


def _bound(bound: pa.Scalar, is_maximum: bool) -> str | None:
    """Return a bound as JSON; None if there is no text that all readers take for a bound."""
    kind = bound.type
    if pa.types.is_integer(kind):
        return str(bound.as_py())
    if pa.types.is_string(kind):
        text = bound.as_py()
        return None if (found := _text_bound(text, is_maximum)) is None else json.dumps(found)
    if pa.types.is_decimal(kind):
        value = bound.as_py()
        return format(value, "f") if len(value.as_tuple().digits) <= _EXACT_DIGITS else None
    if pa.types.is_date32(kind):
        days = order_value(bound)
        return f'"{_EPOCH + timedelta(days)}"' if _FIRST_DAY <= days < _END_DAY else None
    if pa.types.is_timestamp(kind):
        return _timestamp_bound(order_value(bound), is_maximum, "" if kind.tz is None else "Z")
    return None


def _text_bound(text: str, is_maximum: bool) -> str | None:
    if len(text) <= _PREFIX:
        return text
    if not is_maximum:
        return text[:_PREFIX]
    # A text that goes on with the last character is not less than the prefix and one such character.
    return None if text[_PREFIX] == _LAST_CHARACTER else text[:_PREFIX] + _LAST_CHARACTER


def _timestamp_bound(us: int, is_maximum: bool, zone: str) -> str | None:
    """Round a bound away from the values to milliseconds, because not all readers take microseconds."""
    ms = -(-us // 1000) if is_maximum else us // 1000
    days, rest = divmod(ms, _US_PER_DAY // 1000)
    if not _FIRST_DAY <= days < _END_DAY:
        return None
    seconds, ms = divmod(rest, 1000)
    time_of_day = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"
    return f'"{_EPOCH + timedelta(days)}T{time_of_day}{zone}"'
