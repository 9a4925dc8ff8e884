"""No error about a message says what it holds, however the message was spoilt."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pgdecode
from pgdecode import DecodeError, Limits
from support.generators.encoder import pieces
from support.generators.samples import MOMENT

SECRET = "s3cretMarker"


def secretive() -> list[pgdecode.Message]:
    """Messages with the marker in every text and value."""
    cell = SECRET.encode()
    return [
        pgdecode.Origin(origin_lsn=8, name=SECRET),
        pgdecode.Relation(
            relation_id=1,
            namespace=SECRET,
            name=SECRET,
            replica_identity="d",
            columns=(pgdecode.Column(0, SECRET, 25, -1),) * 2,
        ),
        pgdecode.Type(type_id=1, namespace=SECRET, name=SECRET),
        pgdecode.Insert(relation_id=1, new=(cell, cell), new_formats="tb"),
        pgdecode.Update(relation_id=1, old_type="O", old=(cell,), old_formats="t", new=(cell,), new_formats="t"),
        pgdecode.Delete(relation_id=1, old_type="K", old=(cell, None), old_formats="tn"),
        pgdecode.LogicalMessage(flags=0, lsn=8, prefix=SECRET, content=cell),
        pgdecode.BeginPrepare(prepare_lsn=8, end_lsn=8, prepare_timestamp=MOMENT, xid=7, gid=SECRET),
        pgdecode.StreamPrepare(flags=0, prepare_lsn=8, end_lsn=8, prepare_timestamp=MOMENT, xid=7, gid=SECRET),
    ]


def mutants(message: pgdecode.Message) -> Iterator[bytes]:
    """A message cut, prolonged, and with each of its pieces dropped, overwritten or prolonged."""
    marker = SECRET.encode()
    parts = [piece.data for piece in pieces(message)]
    whole = b"".join(parts)
    yield from (whole[:length] for length in range(len(whole)))
    yield from (whole + marker, marker + whole)
    for at, part in enumerate(parts):
        for other in (b"", b"\xff" * len(part), bytes(len(part)), marker, marker * 9 + b"\0"):
            yield b"".join([*parts[:at], other, *parts[at + 1 :]])


def test_no_error_repeats_what_a_payload_holds() -> None:
    limits = Limits(max_name_bytes=60, max_value_bytes=60)
    reported = []
    for payload in (mutant for message in secretive() for mutant in mutants(message)):
        for in_stream in (False, True):
            try:
                pgdecode.decode_messages([payload], in_stream=in_stream, limits=limits)
            except DecodeError as error:
                reported.append(error)
            try:
                pgdecode.decode(payload, in_stream=in_stream, limits=limits)
            except DecodeError as error:
                reported.append(error)
    codes = {error.code for error in reported}
    assert codes >= {"TRUNCATED", "TRAILING", "BAD_LENGTH", "NO_NUL", "ENCODING", "BAD_COLUMN_KIND", "LIMIT_NAME"}
    for one in reported:
        assert SECRET not in f"{one} {one!r} {one.cell} {one.args} {vars(one)}"
        assert SECRET.encode() not in pickle.dumps(one)
        assert one.__cause__ is None
        assert one.__context__ is None
