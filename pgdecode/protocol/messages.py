"""The pgoutput messages, field by field in wire order.

There is one frozen dataclass per message. The annotations give the wire layout: how each field is encoded (`Form`) and
which envelope column it fills. The native wire plan, the envelope's Arrow schema, the documentation's tables and the
tests' encoder derive from these classes.

Source: PostgreSQL documentation, "Logical Replication Message Formats" (protocol versions 1-4), and
src/backend/replication/logical/proto.c for what the documentation does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple

from pgdecode.protocol.wire import Form, Wire, wire_fields

# The xid of a copy: the rows that a table has at an LSN, as a transaction whose commit LSN is that LSN. No transaction
# of a server has this xid (InvalidTransactionId). Several copies, and then a commit, may have the same LSN.
COPY_XID = 0
# The prefix of the logical message that describes a copy.
COPY_PREFIX = "pgdecode.copy"


@dataclass(frozen=True, slots=True)
class Message:
    """Base of the 19 messages. `tag` is the first byte on the wire, `kind` its name in the envelope.

    A field is also available under the name of its envelope column: `begin.lsn` is `begin.final_lsn`.

    Examples
    --------
    >>> begin = pgdecode.decode(bytes.fromhex("4200000016b374d8480002a1f2c3d4e5f6fffffffe"))
    >>> begin.tag, begin.kind, begin.lsn == begin.final_lsn
    ('B', 'begin', True)
    """

    tag: ClassVar[str]
    kind: ClassVar[str]

    def __getattr__(self, column: str) -> Any:
        for item in wire_fields(type(self)):
            if item.wire.column == column and item.name != column:
                return getattr(self, item.name)
        raise AttributeError(f"{type(self).__name__} has no field {column!r}")


@dataclass(frozen=True, slots=True)
class StreamedMessage(Message):
    """Base of the messages that carry an xid right after the tag inside a streamed transaction.

    `xid` is None outside a stream. Inside, it is the xid of the sub-transaction. Stream Start has the top-level xid.
    """

    xid: Annotated[int | None, Wire(Form.XID_PREFIX, "xid", minimum=1)] = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Relation message. Flag 1: the column is part of the replica identity key.

    Examples
    --------
    >>> relation = pgdecode.decode(bytes.fromhex("5200004001730074006400010169640000000017ffffffff"))
    >>> relation.columns
    (Column(flags=1, name='id', type_id=23, type_modifier=-1),)
    """

    flags: Annotated[int, Wire(Form.FLAGS, maximum=1)]
    name: Annotated[str, Wire(Form.NAME)]
    type_id: Annotated[int, Wire(Form.UINT32)]
    type_modifier: Annotated[int, Wire(Form.INT32)]


@dataclass(frozen=True, slots=True)
class Begin(Message):
    """Start of a transaction that is sent after it committed.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("4200000016b374d8480002a1f2c3d4e5f6fffffffe"))
    >>> message.final_lsn, message.xid
    (97500059720, 4294967294)
    """

    tag: ClassVar[str] = "B"
    kind: ClassVar[str] = "begin"
    final_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    commit_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """End of the transaction that a Begin started.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("430000000016b374d84800000016b374d8500002a1f2c3d4e5f6"))
    >>> message.flags, message.end_lsn
    (0, 97500059728)
    """

    tag: ClassVar[str] = "C"
    kind: ClassVar[str] = "commit"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    commit_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    commit_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]


@dataclass(frozen=True, slots=True)
class Origin(Message):
    """Replication origin of a transaction. It never carries an xid; inside a stream its LSN is 0.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("4f00000016b374d8486f72675f6100"))
    Origin(origin_lsn=97500059720, name='org_a')
    """

    tag: ClassVar[str] = "O"
    kind: ClassVar[str] = "origin"
    origin_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    name: Annotated[str, Wire(Form.TEXT, "name")]


@dataclass(frozen=True, slots=True)
class Relation(StreamedMessage):
    """A table's columns, sent before its first change and again after a schema change.

    An empty `namespace` means pg_catalog. `replica_identity` is d(efault), n(othing), f(ull) or i(ndex).

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("5200004001730074006400010169640000000017ffffffff"))
    >>> message.relation_id, message.name, [column.name for column in message.columns]
    (16385, 't', ['id'])
    """

    tag: ClassVar[str] = "R"
    kind: ClassVar[str] = "relation"
    relation_id: Annotated[int, Wire(Form.UINT32, "relation_id")]
    namespace: Annotated[str, Wire(Form.NAME, "namespace", may_be_empty=True)]
    name: Annotated[str, Wire(Form.NAME, "name")]
    replica_identity: Annotated[str, Wire(Form.LETTER, "replica_identity", letters="dnfi")]
    columns: Annotated[tuple[Column, ...], Wire(Form.COLUMNS, "columns")]


@dataclass(frozen=True, slots=True)
class Type(StreamedMessage):
    """Name of a type that is not built in. For a domain: the OID of the domain and the name of its base type.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("59000040027075626c6963006d6f6f6400"))
    Type(xid=None, type_id=16386, namespace='public', name='mood')
    """

    tag: ClassVar[str] = "Y"
    kind: ClassVar[str] = "type"
    type_id: Annotated[int, Wire(Form.UINT32, "type_id")]
    namespace: Annotated[str, Wire(Form.NAME, "namespace", may_be_empty=True)]
    name: Annotated[str, Wire(Form.NAME, "name")]


@dataclass(frozen=True, slots=True)
class Insert(StreamedMessage):
    """A new row. One value per tuple column, None for formats n (null) and u (unchanged TOAST).

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("49000040014e0001740000000135"))
    Insert(xid=None, relation_id=16385, new=(b'5',), new_formats='t')
    """

    tag: ClassVar[str] = "I"
    kind: ClassVar[str] = "insert"
    relation_id: Annotated[int, Wire(Form.UINT32, "relation_id")]
    new: Annotated[tuple[bytes | None, ...], Wire(Form.NEW_TUPLE, "new")]
    new_formats: Annotated[str, Wire(Form.FORMATS, "new_formats")]


@dataclass(frozen=True, slots=True)
class Update(StreamedMessage):
    """A changed row. `old_type` is K (key columns only), O (whole old row) or None (nothing sent).

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("55000040014e000274000000016175"))
    >>> message.new, message.new_formats
    ((b'a', None), 'tu')
    """

    tag: ClassVar[str] = "U"
    kind: ClassVar[str] = "update"
    relation_id: Annotated[int, Wire(Form.UINT32, "relation_id")]
    old_type: Annotated[str | None, Wire(Form.OLD_TYPE, "old_type", letters="KO", optional=True)]
    old: Annotated[tuple[bytes | None, ...] | None, Wire(Form.OLD_TUPLE, "old")]
    old_formats: Annotated[str | None, Wire(Form.FORMATS, "old_formats")]
    new: Annotated[tuple[bytes | None, ...], Wire(Form.NEW_TUPLE, "new")]
    new_formats: Annotated[str, Wire(Form.FORMATS, "new_formats")]


@dataclass(frozen=True, slots=True)
class Delete(StreamedMessage):
    """A deleted row: its key (K) or the whole row (O). In a K tuple, n in a non-key column means "not sent".

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("44000040014b00027400000001316e"))
    Delete(xid=None, relation_id=16385, old_type='K', old=(b'1', None), old_formats='tn')
    """

    tag: ClassVar[str] = "D"
    kind: ClassVar[str] = "delete"
    relation_id: Annotated[int, Wire(Form.UINT32, "relation_id")]
    old_type: Annotated[str, Wire(Form.OLD_TYPE, "old_type", letters="KO")]
    old: Annotated[tuple[bytes | None, ...], Wire(Form.OLD_TUPLE, "old")]
    old_formats: Annotated[str, Wire(Form.FORMATS, "old_formats")]


@dataclass(frozen=True, slots=True)
class Truncate(StreamedMessage):
    """Tables emptied by one TRUNCATE. Option 1 is CASCADE, 2 is RESTART IDENTITY.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("54000000020300004001ffffffff"))
    Truncate(xid=None, options=3, relation_ids=(16385, 4294967295))
    """

    tag: ClassVar[str] = "T"
    kind: ClassVar[str] = "truncate"
    relation_count: ClassVar[Annotated[int, Wire(Form.COUNT)]]  # only on the wire; equals len(relation_ids)
    options: Annotated[int, Wire(Form.FLAGS, "options", maximum=3)]
    relation_ids: Annotated[tuple[int, ...], Wire(Form.RELATION_IDS, "relation_ids")]


@dataclass(frozen=True, slots=True)
class LogicalMessage(StreamedMessage):
    """A message written by pg_logical_emit_message. Flag 1: transactional. `content` is always bytes.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("4d0100000016b374d84874657374000000000568656c6c6f"))
    LogicalMessage(xid=None, flags=1, lsn=97500059720, prefix='test', content=b'hello')
    """

    tag: ClassVar[str] = "M"
    kind: ClassVar[str] = "message"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=1)]
    lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    prefix: Annotated[str, Wire(Form.TEXT, "prefix")]
    content: Annotated[bytes, Wire(Form.CONTENT, "content")]


@dataclass(frozen=True, slots=True)
class StreamStart(Message):
    """Start of a block of a transaction in progress. Messages carry an xid until the next Stream Stop.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("530000030401"))
    StreamStart(xid=772, first_segment=True)
    """

    tag: ClassVar[str] = "S"
    kind: ClassVar[str] = "stream_start"
    xid: Annotated[int, Wire(Form.UINT32, "xid", minimum=1)]
    first_segment: Annotated[bool, Wire(Form.FLAGS, "first_segment", maximum=1)]


@dataclass(frozen=True, slots=True)
class StreamStop(Message):
    """End of the block that a Stream Start began.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("45"))
    StreamStop()
    """

    tag: ClassVar[str] = "E"
    kind: ClassVar[str] = "stream_stop"


@dataclass(frozen=True, slots=True)
class StreamCommit(Message):
    """Commit of a streamed transaction.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("630000030400000000000000001000000000000000180002a1f2c3d4e5f6"))
    >>> message.xid, message.commit_lsn
    (772, 16)
    """

    tag: ClassVar[str] = "c"
    kind: ClassVar[str] = "stream_commit"
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    commit_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    commit_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]


@dataclass(frozen=True, slots=True)
class StreamAbort(Message):
    """Abort of a streamed transaction (subxid = xid) or of one sub-transaction.

    The last two fields are sent only with streaming = parallel, both or neither. Their presence shows in the length of
    the message, not in the protocol version.

    Examples
    --------
    >>> pgdecode.decode(bytes.fromhex("410000030400000305"))
    StreamAbort(xid=772, subxid=773, abort_lsn=None, abort_timestamp=None)
    """

    tag: ClassVar[str] = "A"
    kind: ClassVar[str] = "stream_abort"
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    subxid: Annotated[int, Wire(Form.UINT32, "subxid")]
    abort_lsn: Annotated[int | None, Wire(Form.LSN, "lsn", optional=True)] = None
    abort_timestamp: Annotated[datetime | None, Wire(Form.TIMESTAMP, "timestamp", optional=True)] = None


@dataclass(frozen=True, slots=True)
class BeginPrepare(Message):
    """Start of a transaction that is sent after it was prepared.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("62000000000000001000000000000000180002a1f2c3d4e5f6000003046700"))
    >>> message.xid, message.gid
    (772, 'g')
    """

    tag: ClassVar[str] = "b"
    kind: ClassVar[str] = "begin_prepare"
    prepare_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    prepare_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    gid: Annotated[str, Wire(Form.TEXT, "gid")]


@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """PREPARE TRANSACTION of the transaction that a Begin Prepare started.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("5000000000000000001000000000000000180002a1f2c3d4e5f6000003046700"))
    >>> message.xid, message.gid
    (772, 'g')
    """

    tag: ClassVar[str] = "P"
    kind: ClassVar[str] = "prepare"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    prepare_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    prepare_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    gid: Annotated[str, Wire(Form.TEXT, "gid")]


@dataclass(frozen=True, slots=True)
class CommitPrepared(Message):
    """COMMIT PREPARED.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("4b00000000000000001000000000000000180002a1f2c3d4e5f6000003046700"))
    >>> message.xid, message.gid
    (772, 'g')
    """

    tag: ClassVar[str] = "K"
    kind: ClassVar[str] = "commit_prepared"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    commit_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    commit_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    gid: Annotated[str, Wire(Form.TEXT, "gid")]


@dataclass(frozen=True, slots=True)
class RollbackPrepared(Message):
    """ROLLBACK PREPARED.

    Examples
    --------
    >>> times = "0000000000000000 0002a1f2c3d4e5f6"
    >>> message = pgdecode.decode(bytes.fromhex(f"7200 0000000000000010 0000000000000018 {times} 00000304 6700"))
    >>> message.xid, message.gid
    (772, 'g')
    """

    tag: ClassVar[str] = "r"
    kind: ClassVar[str] = "rollback_prepared"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    prepare_end_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    rollback_end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    prepare_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "prepare_timestamp")]
    rollback_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    gid: Annotated[str, Wire(Form.TEXT, "gid")]


@dataclass(frozen=True, slots=True)
class StreamPrepare(Message):
    """PREPARE TRANSACTION of a streamed transaction.

    Examples
    --------
    >>> message = pgdecode.decode(bytes.fromhex("7000000000000000001000000000000000180002a1f2c3d4e5f6000003046700"))
    >>> message.xid, message.gid
    (772, 'g')
    """

    tag: ClassVar[str] = "p"
    kind: ClassVar[str] = "stream_prepare"
    flags: Annotated[int, Wire(Form.FLAGS, "flags", maximum=0)]
    prepare_lsn: Annotated[int, Wire(Form.LSN, "lsn")]
    end_lsn: Annotated[int, Wire(Form.LSN, "end_lsn")]
    prepare_timestamp: Annotated[datetime, Wire(Form.TIMESTAMP, "timestamp")]
    xid: Annotated[int, Wire(Form.UINT32, "xid")]
    gid: Annotated[str, Wire(Form.TEXT, "gid")]


MESSAGES: tuple[type[Message], ...] = (
    Begin,
    Commit,
    Origin,
    Relation,
    Type,
    Insert,
    Update,
    Delete,
    Truncate,
    LogicalMessage,
    StreamStart,
    StreamStop,
    StreamCommit,
    StreamAbort,
    BeginPrepare,
    Prepare,
    CommitPrepared,
    RollbackPrepared,
    StreamPrepare,
)


class EnvelopeColumn(NamedTuple):
    """A column of the envelope; `type` is a key of `envelope.schema`'s table of Arrow types."""

    name: str
    type: str
    default: bool = True  # False: built only if `fields` names it


# The envelope of decode_messages and parse_pgoutput, in order. The message classes above say what each field fills.
ENVELOPE: tuple[EnvelopeColumn, ...] = (
    EnvelopeColumn("kind", "string"),
    EnvelopeColumn("xid", "int64"),
    EnvelopeColumn("subxid", "int64"),
    EnvelopeColumn("flags", "int16"),
    EnvelopeColumn("lsn", "int64"),
    EnvelopeColumn("end_lsn", "int64"),
    EnvelopeColumn("timestamp", "timestamp[us, UTC]"),
    EnvelopeColumn("prepare_timestamp", "timestamp[us, UTC]"),
    EnvelopeColumn("gid", "string"),
    EnvelopeColumn("relation_id", "int64"),
    EnvelopeColumn("relation_ids", "list<int64>"),
    EnvelopeColumn("options", "int16"),
    EnvelopeColumn("namespace", "string"),
    EnvelopeColumn("name", "string"),
    EnvelopeColumn("replica_identity", "string"),
    EnvelopeColumn("columns", "list<column>"),
    EnvelopeColumn("type_id", "int64"),
    EnvelopeColumn("first_segment", "bool"),
    EnvelopeColumn("prefix", "string"),
    EnvelopeColumn("content", "binary"),
    EnvelopeColumn("old_type", "string"),
    EnvelopeColumn("old", "list<binary>"),
    EnvelopeColumn("old_formats", "string"),
    EnvelopeColumn("new", "list<binary>"),
    EnvelopeColumn("new_formats", "string"),
    EnvelopeColumn("error", "string"),
    EnvelopeColumn("xid_basis", "string", default=False),
)

# Values of the xid_basis column: how the presence of an xid prefix was decided. The scanner writes the index.
XID_BASES: tuple[str, ...] = ("explicit", "order", "structure", "evidence", "guess")
