"""Statistics of decoded messages, counted batch by batch, for `pgdecode inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.json_text import timestamp_to_text
from pgdecode.envelope.decoder import decode
from pgdecode.envelope.kind_codes import kind_code, kind_of
from pgdecode.files.envelope_batches import DecodedBatch
from pgdecode.files.envelope_text import printable
from pgdecode.files.transaction_statistics import TransactionSize, TransactionStatistics
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.protocol.messages import COPY_PREFIX, MESSAGES, Column, LogicalMessage, Type
from pgdecode.protocol.wire import offset_of
from pgdecode.relations.column_history import renames_of
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_schema import sql_type_name
from pgdecode.storage.object_path import FilePath
from pgdecode.types.user_types import UserType

# Envelope columns that `MessageStatistics.add` reads; `kind` as codes.
FIELDS = (
    *("kind", "xid", "subxid", "lsn", "end_lsn", "timestamp", "relation_id", "relation_ids", "namespace", "name"),
    *("replica_identity", "columns", "type_id", "first_segment", "old_formats", "new_formats", "error"),
)
# The greatest number of relations, versions of relations and types to keep. Only a corrupt file has more.
MAX_KEPT = 100_000
REPLICA_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
CHANGES = ("insert", "update", "delete", "truncate")
_PREFIX_AT = offset_of(LogicalMessage, "prefix")
_COPY_PREFIX = COPY_PREFIX.encode() + b"\0"
_DEFINITION = ("relation_id", "namespace", "name", "replica_identity", "columns")
_FORMATS = {"t": "text", "b": "binary", "n": "null", "u": "unchanged"}


@dataclass
class RelationStatistics:
    """Statistics of one relation: its last definition, hashes of all definitions, and its changes by kind."""

    definition: dict[str, Any] | None = None
    versions: set[int] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)


@dataclass
class ErrorStatistics:
    """Number of bad rows with one error code, and the location of the first."""

    rows: int
    file: FilePath
    row: int
    text: str


_ENDS = ("first", "last")


class MessageStatistics:
    """Statistics of all messages in files. Their size depends on the number of relations and types, not of messages."""

    def __init__(self) -> None:
        self.rows = 0
        self.null_rows = 0
        self.empty_payloads = 0
        self.payload_bytes = 0
        self.messages: Counter[str] = Counter()
        self.message_bytes: Counter[str] = Counter()
        self.first_segments = 0
        self.aborts: Counter[str] = Counter()
        self.values: Counter[str] = Counter()
        self.relations: dict[int, RelationStatistics] = {}
        self.types: dict[int, Type] = {}
        self.copies: dict[str, dict[str, Any]] = {}  # by table, the message of its last copy
        self.errors: dict[str, ErrorStatistics] = {}
        self.lsn_range: tuple[int, int] | None = None
        self.time_range: tuple[int, int] | None = None
        self.left_out = 0
        self._kept = 0

    def add(self, batch: DecodedBatch, file: FilePath, payload: str) -> None:
        """Count the rows of a batch whose envelope has the columns `FIELDS`, with codes of kinds."""
        envelope = batch.envelope
        self.rows += batch.n_read
        self.payload_bytes += batch.n_bytes
        self._add_errors(envelope.column("error"), batch.rows, file)
        self._add_transactions(envelope)
        self._add_definitions(envelope)
        self._add_kinds(envelope, batch.source.column(payload), batch.n_bad)
        self._add_values(envelope)
        self._add_ranges(envelope)
        self._add_copies(envelope, batch.source.column(payload))

    @classmethod
    def of(cls, batch: DecodedBatch, file: FilePath, payload: str) -> MessageStatistics:
        """Make the statistics of one batch. `merge` adds them to those of the batches before."""
        statistics = cls()
        statistics.add(batch, file, payload)
        return statistics

    def merge(self, other: MessageStatistics) -> None:
        """Add the statistics of the messages that come next."""
        for name in ("rows", "null_rows", "empty_payloads", "payload_bytes", "first_segments", "left_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("messages", "message_bytes", "aborts", "values"):
            getattr(self, name).update(getattr(other, name))
        for oid, found in other.relations.items():
            relation = self._relation(oid) if found.definition is not None else None
            if relation is not None:
                relation.definition = found.definition
                for version in found.versions:
                    self._keep(relation.versions, version)
            for kind, n_messages in found.changes.items():
                self._count(oid, kind, n_messages)
        for oid, type in other.types.items():
            self._add_type(oid, type)
        for copy in other.copies.values():
            self._add_copy(copy)
        for code, error in other.errors.items():
            if code in self.errors:
                self.errors[code].rows += error.rows
            else:
                self.errors[code] = error
        self.lsn_range = _union(self.lsn_range, other.lsn_range)
        self.time_range = _union(self.time_range, other.time_range)

    @property
    def protocol_version(self) -> int:
        """Return the lowest protocol version that has all messages seen so far."""
        if self.aborts["parallel"]:
            return 4
        if any("prepare" in kind for kind in self.messages):
            return 3
        return 2 if any(kind.startswith("stream") for kind in self.messages) else 1

    @property
    def transactions(self) -> dict[str, int]:
        """Count beginnings and ends of transactions. `begun` includes `streamed`."""
        seen = self.messages
        return {
            "begun": seen["begin"] + seen["begin_prepare"] + self.first_segments,
            "streamed": self.first_segments,
            "committed": seen["commit"] + seen["commit_prepared"] + seen["stream_commit"],
            "prepared": seen["prepare"] + seen["stream_prepare"],
            "rolled_back": seen["rollback_prepared"],
            "aborted": self.aborts["whole"],
            "subtransactions_aborted": self.aborts["sub"],
            "stream_blocks": seen["stream_start"],
        }

    def as_dict(
        self, transaction_statistics: TransactionStatistics | None = None, user_types: Iterable[UserType] = ()
    ) -> dict[str, Any]:
        """Return all statistics as plain JSON types.

        Parameters
        ----------
        transaction_statistics : TransactionStatistics, optional
            Of the same messages, if they were in slot order.
        user_types : iterable of UserType
            From the footers of the files.
        """
        described = {item.oid: item for item in user_types}
        followed = transaction_statistics is not None and transaction_statistics.complete
        history: dict[int, list[RelationVersion]] = {}
        for version in () if transaction_statistics is None else transaction_statistics.catalog:
            history.setdefault(version.relation_id, []).append(version)
        return {
            "rows": self.rows,
            "null_rows": self.null_rows,
            "empty_payloads": self.empty_payloads,
            "payload_bytes": self.payload_bytes,
            "kinds": {
                message.kind: {"messages": self.messages[message.kind], "bytes": self.message_bytes[message.kind]}
                for message in MESSAGES
                if message.kind in self.messages
            },
            "transactions": {
                **self.transactions,
                "undecided": transaction_statistics.n_undecided
                if transaction_statistics is not None and followed
                else None,
            },
            "largest_transactions": [_size_dict(item) for item in transaction_statistics.largest]
            if transaction_statistics is not None and followed
            else None,
            "open_transactions": [_size_dict(item) for item in transaction_statistics.open]
            if transaction_statistics is not None and followed
            else None,
            "order": {
                "position": None if transaction_statistics is None else transaction_statistics.position,
                "followed": followed,
                "repeated": transaction_statistics.n_repeated
                if transaction_statistics is not None and followed
                else None,
                "fault": None
                if transaction_statistics is None or transaction_statistics.fault is None
                else printable(transaction_statistics.fault),
            },
            "lsn": None if self.lsn_range is None else dict(zip(_ENDS, map(lsn_to_text, self.lsn_range), strict=True)),
            "time": self.time_range and dict(zip(_ENDS, map(timestamp_to_text, self.time_range), strict=True)),
            "protocol": {
                "version_at_least": self.protocol_version,
                "streamed": self.messages["stream_start"] > 0,
                "two_phase": any("prepare" in kind for kind in self.messages),
                "parallel": self.aborts["parallel"] > 0,
                "binary_tuples": self.values["binary"] > 0,
            },
            "values": {name: self.values[name] for name in _FORMATS.values()},
            "relations": [
                _relation_dict(
                    oid,
                    relation,
                    [
                        (item, None if transaction_statistics is None else transaction_statistics.time_of(item))
                        for item in history.get(oid, ())
                    ],
                    lambda type_id: sql_type_name(type_id, self.types, described),
                )
                for oid, relation in sorted(self.relations.items())
            ],
            "types": [
                {
                    "type_id": oid,
                    "namespace": type.namespace,
                    "name": type.name,
                    "described": described[oid].key if oid in described else None,
                }
                for oid, type in sorted(self.types.items())
            ],
            "copies": list(self.copies.values()),
            "left_out": self.left_out,
            "errors": [
                {
                    "code": code,
                    "rows": error.rows,
                    "first": {"file": printable(str(error.file)), "row": error.row, "error": error.text},
                }
                for code, error in sorted(self.errors.items())
            ],
        }

    def _add_errors(self, errors: pa.Array, rows: Sequence[int], file: FilePath) -> None:
        if errors.null_count == len(errors):
            return
        for row, text in zip(rows, errors.to_pylist(), strict=True):
            if text is not None:
                self.errors.setdefault(text.partition(" ")[0], ErrorStatistics(0, file, row, text)).rows += 1

    def _add_kinds(self, envelope: pa.RecordBatch, payloads: pa.Array, n_bad: int) -> None:
        lengths = pc.binary_length(payloads)
        n_empty = pc.equal(lengths, 0).true_count
        self.empty_payloads += n_empty
        keys = ["relation_id", "kind"]
        table = pa.table([*(envelope.column(key) for key in keys), lengths], [*keys, "bytes"])
        grouped = table.group_by(keys, use_threads=False).aggregate([([], "count_all"), ("bytes", "sum")])
        for oid, code, n_messages, n_bytes in zip(*(column.to_pylist() for column in grouped.columns), strict=True):
            kind = kind_of(code)
            if kind is None:
                self.null_rows += n_messages - n_bad - n_empty
                continue
            self.messages[kind] += n_messages
            self.message_bytes[kind] += n_bytes
            if oid is not None:
                self._count(oid, kind, n_messages)

    def _add_transactions(self, envelope: pa.RecordBatch) -> None:
        self.first_segments += envelope.column("first_segment").true_count
        aborts = envelope.filter(pc.equal(envelope.column("kind"), kind_code("stream_abort")))
        if aborts.num_rows:
            whole = pc.equal(aborts.column("xid"), aborts.column("subxid")).true_count
            parallel = aborts.num_rows - aborts.column("lsn").null_count
            self.aborts.update(whole=whole, sub=aborts.num_rows - whole, parallel=parallel)

    def _add_definitions(self, envelope: pa.RecordBatch) -> None:
        kinds = envelope.column("kind")
        for row in _rows(envelope, pc.equal(kinds, kind_code("relation")), _DEFINITION):
            relation = self._relation(row.pop("relation_id"))
            if relation is not None:
                relation.definition = row
                self._keep(relation.versions, hash(repr(row)))
        for row in _rows(envelope, pc.equal(kinds, kind_code("type")), ("type_id", "namespace", "name")):
            self._add_type(row["type_id"], Type(row["type_id"], row["namespace"], row["name"]))

    def _add_values(self, envelope: pa.RecordBatch) -> None:
        for found in pc.value_counts(envelope.column("relation_ids").flatten()).to_pylist():
            self._count(found["values"], "truncate", found["counts"])
        for name in ("old_formats", "new_formats"):
            formats = _bytes_of(envelope.column(name))
            for letter, word in _FORMATS.items():
                self.values[word] += formats.count(letter.encode())

    def _add_ranges(self, envelope: pa.RecordBatch) -> None:
        # The LSN of an Origin message is from another server's WAL.
        origins = pc.equal(envelope.column("kind"), kind_code("origin"))
        for name in ("lsn", "end_lsn"):
            found = envelope.column(name)
            self.lsn_range = _wider(self.lsn_range, pc.if_else(origins, None, found) if origins.true_count else found)
        self.time_range = _wider(self.time_range, envelope.column("timestamp").cast(pa.int64()))

    def _add_copies(self, envelope: pa.RecordBatch, payloads: pa.Array) -> None:
        """Add the messages of copies, which are never streamed."""
        messages = payloads.filter(pc.equal(envelope.column("kind"), kind_code("message")))
        are_copies = pc.equal(pc.binary_slice(messages, _PREFIX_AT, _PREFIX_AT + len(_COPY_PREFIX)), _COPY_PREFIX)
        for payload in messages.filter(are_copies).to_pylist():
            # Any client can send a message with this prefix.
            with suppress(DecodeError, ValueError, KeyError, TypeError):
                found = load_json(decode(payload).content)
                rows, lsn = int(found["rows"]), lsn_from_text(found["lsn"])
                self._add_copy({"table": printable(str(found["table"])), "lsn": lsn_to_text(lsn), "rows": rows})

    def _add_copy(self, copy: dict[str, Any]) -> None:
        # In the order of their LSNs.
        if self.copies.pop(copy["table"], None) is not None or self._take_place():
            self.copies[copy["table"]] = copy

    def _count(self, oid: int, kind: str, n_messages: int) -> None:
        relation = self._relation(oid)
        if relation is None:
            self.left_out += n_messages
        else:
            relation.changes[kind] += n_messages

    def _relation(self, oid: int) -> RelationStatistics | None:
        if oid not in self.relations and self._take_place():
            self.relations[oid] = RelationStatistics()
        return self.relations.get(oid)

    def _add_type(self, oid: int, type: Type) -> None:
        if oid in self.types or self._take_place():
            self.types[oid] = type
        else:
            self.left_out += 1

    def _keep(self, versions: set[int], version: int) -> None:
        if version in versions:
            return
        if not versions or self._take_place():
            versions.add(version)
        else:
            self.left_out += 1

    def _take_place(self) -> bool:
        """Use one of the `MAX_KEPT` places; False if none is left."""
        if self._kept >= MAX_KEPT:
            return False
        self._kept += 1
        return True


def _rows(envelope: pa.RecordBatch, chosen: pa.Array, names: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = envelope.select(list(names)).filter(chosen).to_pylist()
    return rows


def _bytes_of(texts: pa.StringArray) -> bytes:
    """Return the bytes of all texts of an envelope, whose nulls have none."""
    ends = pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, texts.buffers()[1]], offset=texts.offset)
    data = texts.buffers()[2]
    return b"" if data is None else data[ends[0].as_py() : ends[-1].as_py()].to_pybytes()


def _wider(known: tuple[int, int] | None, column: pa.Array) -> tuple[int, int] | None:
    found = pc.min_max(column).as_py()
    return _union(known, None if found["min"] is None else (found["min"], found["max"]))


def _union(known: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the range that covers both ranges."""
    if known is None or other is None:
        return known or other
    return min(known[0], other[0]), max(known[1], other[1])


def _size_dict(item: TransactionSize) -> dict[str, Any]:
    time = None if item.time_us is None else timestamp_to_text(item.time_us)
    return {"xid": item.xid, "gid": item.gid, "position": item.position, "changes": item.changes, "time": time}


def _relation_dict(
    oid: int,
    relation: RelationStatistics,
    known: Sequence[tuple[RelationVersion, int | None]],
    type_of: Callable[[int], str | None],
) -> dict[str, Any]:
    seen = relation.definition or {}
    renamed: dict[int, dict[str, str]] = {}
    for item in renames_of(version for version, _ in known if version.visible_from is not None):
        renamed.setdefault(id(item.version), {})[item.old] = item.new
    return {
        "relation_id": oid,
        "namespace": seen.get("namespace"),
        "name": seen.get("name"),
        "replica_identity": REPLICA_IDENTITIES.get(seen.get("replica_identity", "")),
        "versions": len(relation.versions),
        "columns": [_column_dict(column, type_of) for column in seen.get("columns") or []],
        "history": [
            {
                "position": version.position,
                "xid": version.xid,
                "visible_from": version.visible_from,
                "time": None if time_us is None else timestamp_to_text(time_us),
                "namespace": version.relation.namespace,
                "name": version.name,
                "replica_identity": REPLICA_IDENTITIES.get(version.replica_identity),
                "columns": [_column_dict(_as_mapping(column), type_of) for column in version.columns],
                "renamed": renamed.get(id(version), {}),
            }
            for version, time_us in known
        ],
        **{f"{kind}s": relation.changes[kind] for kind in CHANGES},
    }


def _as_mapping(column: Column) -> dict[str, Any]:
    """Return the fields of a column. `asdict` copies each value, which takes long with thousands of tables."""
    return {
        "flags": column.flags,
        "name": column.name,
        "type_id": column.type_id,
        "type_modifier": column.type_modifier,
    }


def _column_dict(column: Mapping[str, Any], type_of: Callable[[int], str | None]) -> dict[str, Any]:
    return {
        "name": column["name"],
        "type_id": column["type_id"],
        "type": type_of(column["type_id"]),
        "type_modifier": column["type_modifier"],
        "key": bool(column["flags"] & 1),
    }
