"""Decoding of PostgreSQL logical replication (pgoutput) payloads: Arrow in, Arrow out."""

import importlib
from typing import Any

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.envelope.decoder import MessageDecoder, decode, decode_messages
from pgdecode.files.captured_payloads import CapturedPayloads, read_capture
from pgdecode.net.net_changes import NetChanges, net_changes
from pgdecode.net.snapshot import snapshot
from pgdecode.payloads.unwrap import UnwrapError, Unwrapped, unwrap
from pgdecode.protocol.errors import (
    ArityMismatch,
    BadColumnKind,
    BadEncoding,
    BadFlags,
    BadLength,
    BadTupleTag,
    BadValue,
    BatchExpands,
    BatchTooLarge,
    CommitOrder,
    DecodeError,
    EmptyName,
    EmptyPayload,
    InvalidRelation,
    LimitExceeded,
    MissingTerminator,
    NameTooLong,
    NotARow,
    OtherRelation,
    OutOfRange,
    PayloadTooLong,
    RepeatedColumn,
    StreamDesync,
    TooManyColumns,
    TooManyRelations,
    TrailingBytes,
    TransactionDesync,
    TruncatedMessage,
    UndeclaredSetting,
    UndecodableZone,
    UnknownRelation,
    UnknownTag,
    UnknownType,
    Unrepresentable,
    ValueTooLong,
    WrongSize,
)
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.protocol.messages import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
)
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_decoder import decode_rows
from pgdecode.rows.row_schema import row_schema

# pyproject.toml reads the version from here, so it is also available in a tree without installed metadata.
__version__ = "0.2.0"

__all__ = [
    "ArityMismatch",
    "BadColumnKind",
    "BadEncoding",
    "BadFlags",
    "BadLength",
    "BadTupleTag",
    "BadValue",
    "BatchExpands",
    "BatchTooLarge",
    "Begin",
    "BeginPrepare",
    "CapturedPayloads",
    "ChangeDecoder",
    "Column",
    "Commit",
    "CommitOrder",
    "CommitPrepared",
    "DecodeError",
    "Delete",
    "EmptyName",
    "EmptyPayload",
    "Insert",
    "InvalidRelation",
    "LimitExceeded",
    "Limits",
    "LogicalMessage",
    "Message",
    "MessageDecoder",
    "MissingTerminator",
    "NameTooLong",
    "NetChanges",
    "NotARow",
    "Origin",
    "OtherRelation",
    "OutOfRange",
    "PayloadTooLong",
    "Prepare",
    "Relation",
    "RelationCatalog",
    "RelationVersion",
    "RepeatedColumn",
    "RollbackPrepared",
    "StreamAbort",
    "StreamCommit",
    "StreamDesync",
    "StreamPrepare",
    "StreamStart",
    "StreamStop",
    "TooManyColumns",
    "TooManyRelations",
    "TrailingBytes",
    "TransactionDesync",
    "Truncate",
    "TruncatedMessage",
    "Type",
    "UndeclaredSetting",
    "UndecodableZone",
    "UnknownRelation",
    "UnknownTag",
    "UnknownType",
    "Unrepresentable",
    "UnwrapError",
    "Unwrapped",
    "Update",
    "ValueTooLong",
    "WrongSize",
    "__version__",
    "decode",
    "decode_messages",
    "decode_rows",
    "lake",
    "lsn_from_text",
    "lsn_to_text",
    "net_changes",
    "read_capture",
    "row_schema",
    "snapshot",
    "unwrap",
]


def __getattr__(name: str) -> Any:
    """Import `pgdecode.lake` when it is used."""
    if name == "lake":
        return importlib.import_module("pgdecode.lake")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
