"""A secret in the data of payloads, and all forms in which a text could reveal it."""

from __future__ import annotations

import base64
import traceback

import pgdecode
from pgdecode import Column, Relation
from pgdecode.protocol import messages as m
from support.generators.encoder import encode
from support.generators.samples import MOMENT
from support.generators.slot import Slot

SECRET = "zQ7fnordX9wV"
T = 16385


def forms() -> list[str]:
    """The secret as text, in hexadecimal, in base64 at each of three offsets, and as a list of numbers."""
    raw = SECRET.encode()
    found = [SECRET, raw.hex(), raw.hex().upper(), " ".join(f"{byte:02x}" for byte in raw), ", ".join(map(str, raw))]
    found += ["".join(f"\\x{byte:02x}" for byte in raw), "".join(f"\\{byte:03o}" for byte in raw)]
    for lead in range(3):
        # The part of the base64 text that does not depend on the adjacent bytes.
        text = base64.b64encode(bytes(lead) + raw).decode().rstrip("=")
        found.append(text[-(-lead * 8 // 6) : len(text) // 4 * 4 - 4])
    return found


FORMS = forms()


def leaks(text: str) -> list[str]:
    """The forms of the secret in a text. Six consecutive characters of a form already count."""
    pieces = [SECRET[at : at + 6] for at in range(len(SECRET) - 5)]
    return [form for form in (*FORMS, *pieces) if form in text]


def texts_of(error: BaseException) -> str:
    """All texts of an error and its causes, as in a log."""
    parts = [str(error), repr(error), repr(error.args), *traceback.format_exception(error)]
    if isinstance(error, pgdecode.DecodeError):
        parts += [error.detail, error.cell, repr(error.__dict__)]
    return "\n".join(parts)


def planted() -> dict[str, bytes]:
    """A message of every kind that has data, with the secret in each field."""
    raw = SECRET.encode()
    old = (raw, None, raw)
    found: dict[str, m.Message] = {
        "insert": m.Insert(relation_id=T, new=(raw, raw, raw), new_formats="tbt"),
        "update": m.Update(
            relation_id=T, old_type="K", old=old, old_formats="tnb", new=(raw, None, raw), new_formats="tut"
        ),
        "full update": m.Update(
            relation_id=T, old_type="O", old=old, old_formats="tnt", new=(raw, raw, None), new_formats="bbu"
        ),
        "delete": m.Delete(relation_id=T, old_type="K", old=old, old_formats="tnt"),
        "insert in a stream": m.Insert(xid=800, relation_id=T, new=(raw, raw, raw), new_formats="ttt"),
        "message": m.LogicalMessage(flags=1, lsn=8, prefix=SECRET, content=raw),
        "message in a stream": m.LogicalMessage(xid=800, flags=1, lsn=8, prefix=SECRET, content=raw),
        "origin": m.Origin(origin_lsn=8, name=SECRET),
        "begin_prepare": m.BeginPrepare(prepare_lsn=8, end_lsn=16, prepare_timestamp=MOMENT, xid=700, gid=SECRET),
        "prepare": m.Prepare(flags=0, prepare_lsn=8, end_lsn=16, prepare_timestamp=MOMENT, xid=700, gid=SECRET),
        "commit_prepared": m.CommitPrepared(
            flags=0, commit_lsn=8, end_lsn=16, commit_timestamp=MOMENT, xid=700, gid=SECRET
        ),
        "rollback_prepared": m.RollbackPrepared(
            flags=0,
            prepare_end_lsn=8,
            rollback_end_lsn=16,
            prepare_timestamp=MOMENT,
            rollback_timestamp=MOMENT,
            xid=700,
            gid=SECRET,
        ),
        "stream_prepare": m.StreamPrepare(
            flags=0, prepare_lsn=8, end_lsn=16, prepare_timestamp=MOMENT, xid=800, gid=SECRET
        ),
    }
    return {name: encode(message) for name, message in found.items()}


def spoilt(payload: bytes) -> list[bytes]:
    """The payload truncated at each byte, with each byte changed, and with trailing bytes."""
    cut = [payload[:at] for at in range(len(payload))]
    changed = [
        payload[:at] + bytes([byte]) + payload[at + 1 :]
        for at in range(len(payload))
        for byte in {0, 0xFF, payload[at] ^ 0x80, payload[at] ^ 1} - {payload[at]}
    ]
    return [*cut, *changed, payload + b"\0", payload + payload, payload[1:], b"w" + payload]


def relation(*type_ids: int, names: tuple[str, ...] = ("a", "b", "c")) -> Relation:
    columns = tuple(Column(1, name, type_id, -1) for name, type_id in zip(names, type_ids, strict=True))
    return Relation(relation_id=T, namespace="s", name="t", replica_identity="d", columns=columns)


PLANTED = planted()


def sequence(type_id: int) -> list[bytes]:
    """Every message with the secret in its own transaction, for a table whose columns have one type."""
    slot = Slot()
    slot.begin(700)
    slot.payloads.append(encode(relation(type_id, type_id, type_id)))
    slot.payloads += [PLANTED[name] for name in ("insert", "update", "full update", "delete", "message", "origin")]
    slot.commit()
    slot.payloads += [PLANTED[name] for name in ("begin_prepare", "insert", "prepare", "commit_prepared")]
    slot.start(800, first=True)
    slot.payloads += [PLANTED[name] for name in ("message in a stream", "insert in a stream")]
    slot.stop()
    slot.payloads += [PLANTED["stream_prepare"], PLANTED["rollback_prepared"]]
    return slot.payloads


def bad_sequence() -> list[bytes]:
    """The same for integer columns, where the secret is not a valid value, and with a truncated message."""
    payloads = sequence(23)
    return [*payloads, PLANTED["message"][:-1]]


PLANTED_SEQUENCE = bad_sequence()
