"""One payload of every form, written byte by byte from the documentation, and its message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from pgdecode.protocol import messages as m

# 741013993088502 us = 8576 days, 13 h, 13 min and 13.088502 s after 2000-01-01
MOMENT = datetime(2023, 6, 25, 13, 13, 13, 88502, tzinfo=UTC)
MOMENT_HEX = "0002a1f2c3d4e5f6"


class Sample(NamedTuple):
    """A payload, whether it is decoded as inside a stream, and its message."""

    payload: bytes
    message: m.Message

    @property
    def in_stream(self) -> bool:
        return isinstance(self.message, m.StreamedMessage) and self.message.xid is not None


def sample(message: m.Message, *groups: str) -> Sample:
    """Join groups of hex digits into a payload."""
    return Sample(bytes.fromhex("".join(groups)), message)


SAMPLES: dict[str, Sample] = {
    "begin": sample(
        m.Begin(final_lsn=0x16B374D848, commit_timestamp=MOMENT, xid=0xFFFFFFFE),
        "42 00000016b374d848" + MOMENT_HEX + "fffffffe",  # B, final LSN, commit timestamp, xid
    ),
    "begin before 2000": sample(
        m.Begin(final_lsn=0, commit_timestamp=datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), xid=3),
        "42 0000000000000000 ffffffffffffffff 00000003",  # timestamp -1 us
    ),
    "commit": sample(
        m.Commit(flags=0, commit_lsn=0x16B374D848, end_lsn=0x7FFFFFFFFFFFFFFF, commit_timestamp=MOMENT),
        "43 00 00000016b374d848 7fffffffffffffff" + MOMENT_HEX,  # C, flags, commit LSN, end LSN, timestamp
    ),
    "origin": sample(
        m.Origin(origin_lsn=0x16B374D848, name="org_é"),
        "4f 00000016b374d848 6f72675fc3a9 00",  # O, LSN, 'org_é'
    ),
    "origin in a stream has LSN 0": sample(
        m.Origin(origin_lsn=0, name="o"),
        "4f 0000000000000000 6f 00",
    ),
    "relation": sample(
        m.Relation(
            relation_id=0x80000000,
            namespace="public",
            name="t",
            replica_identity="d",
            columns=(m.Column(1, "id", 23, -1), m.Column(0, "wörter", 1043, 0x44)),
        ),
        "52 80000000 7075626c6963 00 74 00 64 0002",  # R, oid, 'public', 't', d, 2 columns
        "01 6964 00 00000017 ffffffff",  # key, 'id', int4, no modifier
        "00 77c3b672746572 00 00000413 00000044",  # no key, 'wörter', varchar, 64 + 4
    ),
    "relation in a stream": sample(
        m.Relation(
            xid=0x304,
            relation_id=0x4001,
            namespace="s",
            name="t",
            replica_identity="f",
            columns=(m.Column(1, "c", 25, -1),),
        ),
        "52 00000304 00004001 73 00 74 00 66 0001",
        "01 63 00 00000019 ffffffff",
    ),
    "relation of pg_catalog without columns": sample(
        m.Relation(relation_id=0x4001, namespace="", name="t", replica_identity="n", columns=()),
        "52 00004001 00 74 00 6e 0000",
    ),
    "type": sample(
        m.Type(type_id=0x4002, namespace="public", name="mood"),
        "59 00004002 7075626c6963 00 6d6f6f64 00",  # Y, oid, 'public', 'mood'
    ),
    "type in a stream": sample(
        m.Type(xid=0x304, type_id=0x4002, namespace="public", name="mood"),
        "59 00000304 00004002 7075626c6963 00 6d6f6f64 00",
    ),
    "type of a domain over int4": sample(
        m.Type(type_id=0xFFFFFFFF, namespace="", name="int4"),
        "59 ffffffff 00 696e7434 00",
    ),
    "insert": sample(
        m.Insert(relation_id=0x4001, new=(b"5",), new_formats="t"),
        "49 00004001 4e 0001 74 00000001 35",  # I, oid, N, 1 column, text, len 1, '5'
    ),
    "insert of every column kind": sample(
        m.Insert(relation_id=0x4001, new=(None, None, b"", b"\x00\xff", b""), new_formats="nutbb"),
        "49 00004001 4e 0005 6e 75 74 00000000 62 00000002 00ff 62 00000000",
    ),
    "insert in a stream": sample(
        m.Insert(xid=0x304, relation_id=0x4001, new=(b"5", None), new_formats="tn"),
        "49 00000304 00004001 4e 0002 74 00000001 35 6e",
    ),
    "insert into a table without columns": sample(
        m.Insert(relation_id=0x4001, new=(), new_formats=""),
        "49 00004001 4e 0000",
    ),
    "update without an old tuple": sample(
        m.Update(relation_id=0x4001, old_type=None, old=None, old_formats=None, new=(b"a", None), new_formats="tu"),
        "55 00004001 4e 0002 74 00000001 61 75",
    ),
    "update with a key": sample(
        m.Update(
            relation_id=0x4001, old_type="K", old=(b"1", None), old_formats="tn", new=(b"2", b"b"), new_formats="tt"
        ),
        "55 00004001 4b 0002 74 00000001 31 6e",  # U, oid, K, 2 columns, '1', null
        "4e 0002 74 00000001 32 74 00000001 62",  # N, 2 columns, '2', 'b'
    ),
    "update with a toasted key": sample(
        m.Update(
            relation_id=0x4001, old_type="K", old=(b"k" * 9, None), old_formats="tn", new=(None, b""), new_formats="ut"
        ),
        "55 00004001 4b 0002 74 00000009 6b6b6b6b6b6b6b6b6b 6e",
        "4e 0002 75 74 00000000",
    ),
    "update with the old row in a stream": sample(
        m.Update(
            xid=0x80000000,
            relation_id=0xFFFFFFFF,
            old_type="O",
            old=(b"\x00\x01", None),
            old_formats="bn",
            new=(None, None),
            new_formats="un",
        ),
        "55 80000000 ffffffff 4f 0002 62 00000002 0001 6e 4e 0002 75 6e",
    ),
    "update of a table without columns": sample(
        m.Update(relation_id=0x4001, old_type="O", old=(), old_formats="", new=(), new_formats=""),
        "55 00004001 4f 0000 4e 0000",
    ),
    "delete by key": sample(
        m.Delete(relation_id=0x4001, old_type="K", old=(b"1", None), old_formats="tn"),
        "44 00004001 4b 0002 74 00000001 31 6e",
    ),
    "delete by old row in a stream": sample(
        m.Delete(xid=0x304, relation_id=0x4001, old_type="O", old=(b"1",), old_formats="t"),
        "44 00000304 00004001 4f 0001 74 00000001 31",
    ),
    "truncate of two": sample(
        m.Truncate(options=3, relation_ids=(0x4001, 0xFFFFFFFF)),
        "54 00000002 03 00004001 ffffffff",  # T, 2 relations, cascade and restart identity, oids
    ),
    "truncate of none": sample(
        m.Truncate(options=0, relation_ids=()),
        "54 00000000 00",
    ),
    "truncate in a stream": sample(
        m.Truncate(xid=0x304, options=1, relation_ids=(0x4001,)),
        "54 00000304 00000001 01 00004001",
    ),
    "logical message": sample(
        m.LogicalMessage(flags=0, lsn=0x16B374D848, prefix="é", content=b"\x00\xff"),
        "4d 00 00000016b374d848 c3a9 00 00000002 00ff",  # M, flags, LSN, 'é', 2 bytes
    ),
    "logical message in a stream": sample(
        m.LogicalMessage(xid=0x304, flags=1, lsn=0x16B374D848, prefix="test", content=b"hello"),
        "4d 00000304 01 00000016b374d848 74657374 00 00000005 68656c6c6f",
    ),
    "logical message without prefix and content": sample(
        m.LogicalMessage(flags=1, lsn=8, prefix="", content=b""),
        "4d 01 0000000000000008 00 00000000",
    ),
    "stream start, first segment": sample(
        m.StreamStart(xid=0x304, first_segment=True),
        "53 00000304 01",
    ),
    "stream start, later segment": sample(
        m.StreamStart(xid=0xFFFFFFFF, first_segment=False),
        "53 ffffffff 00",
    ),
    "stream stop": sample(
        m.StreamStop(),
        "45",
    ),
    "stream commit": sample(
        m.StreamCommit(xid=0x304, flags=0, commit_lsn=0x10, end_lsn=0x18, commit_timestamp=MOMENT),
        "63 00000304 00 0000000000000010 0000000000000018" + MOMENT_HEX,
    ),
    "stream abort of 9 bytes": sample(
        m.StreamAbort(xid=0x304, subxid=0x305),
        "41 00000304 00000305",
    ),
    "stream abort of 25 bytes": sample(
        m.StreamAbort(xid=0x304, subxid=0x304, abort_lsn=0x16B374D848, abort_timestamp=MOMENT),
        "41 00000304 00000304 00000016b374d848" + MOMENT_HEX,
    ),
    "begin prepare": sample(
        m.BeginPrepare(prepare_lsn=0x10, end_lsn=0x18, prepare_timestamp=MOMENT, xid=0x304, gid="gid é"),
        "62 0000000000000010 0000000000000018" + MOMENT_HEX + "00000304 67696420c3a9 00",
    ),
    "prepare": sample(
        m.Prepare(flags=0, prepare_lsn=0x10, end_lsn=0x18, prepare_timestamp=MOMENT, xid=0x304, gid="g"),
        "50 00 0000000000000010 0000000000000018" + MOMENT_HEX + "00000304 67 00",
    ),
    "commit prepared": sample(
        m.CommitPrepared(flags=0, commit_lsn=0x10, end_lsn=0x18, commit_timestamp=MOMENT, xid=0x304, gid="g"),
        "4b 00 0000000000000010 0000000000000018" + MOMENT_HEX + "00000304 67 00",
    ),
    "rollback prepared": sample(
        m.RollbackPrepared(
            flags=0,
            prepare_end_lsn=0x10,
            rollback_end_lsn=0x18,
            prepare_timestamp=datetime(2000, 1, 1, tzinfo=UTC),
            rollback_timestamp=MOMENT,
            xid=0x304,
            gid="g",
        ),
        "72 00 0000000000000010 0000000000000018 0000000000000000" + MOMENT_HEX + "00000304 67 00",
    ),
    "stream prepare": sample(
        m.StreamPrepare(flags=0, prepare_lsn=0x10, end_lsn=0x18, prepare_timestamp=MOMENT, xid=0x304, gid=""),
        "70 00 0000000000000010 0000000000000018" + MOMENT_HEX + "00000304 00",
    ),
}

each_sample = pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in SAMPLES.items()])
