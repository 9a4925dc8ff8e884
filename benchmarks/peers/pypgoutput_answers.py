"""Decodes payloads with the Python package pypgoutput in PACKAGES, as node_answers.mjs describes."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

KINDS = {name[0]: name for name in ("Begin", "Commit", "Relation", "Insert", "Update", "Delete", "Truncate")}


def load_decoders(packages: Path) -> ModuleType:
    """Load only the file of the decoders: the package itself imports a database driver."""
    spec = importlib.util.spec_from_file_location("pypgoutput_decoders", packages / "pypgoutput" / "decoders.py")
    assert spec is not None
    assert spec.loader is not None
    decoders = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = decoders
    spec.loader.exec_module(decoders)
    return decoders


def microseconds(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def row(name: str, data: Any) -> dict[str, Any]:
    """Write a tuple: its values, and the letters of their formats."""
    values = [None if item.col_data is None else item.col_data.encode().hex() for item in data.column_data]
    return {name: values, f"{name}_formats": "".join(item.col_data_category for item in data.column_data)}


def plain(message: Any) -> dict[str, Any]:
    """Write a message as the conformance suite does."""
    kind = type(message).__name__.lower()
    match kind:
        case "begin":
            return {
                "kind": kind,
                "lsn": message.lsn,
                "timestamp": microseconds(message.commit_ts),
                "xid": message.tx_xid,
            }
        case "commit":
            about = {"flags": message.flags, "lsn": message.lsn_commit, "end_lsn": message.lsn}
            return {"kind": kind, **about, "timestamp": microseconds(message.commit_ts)}
        case "relation":
            columns = [
                {"flags": c.part_of_pkey, "name": c.name, "type_id": c.type_id, "type_modifier": c.atttypmod}
                for c in message.columns
            ]
            about = {"namespace": message.namespace, "name": message.relation_name, "columns": columns}
            identity = message.replica_identity_setting
            return {"kind": kind, "relation_id": message.relation_id, "replica_identity": identity, **about}
        case "truncate":
            return {"kind": kind, "options": message.option_bits, "relation_ids": message.relation_ids}
    answer: dict[str, Any] = {"kind": kind, "relation_id": message.relation_id}
    if kind != "delete":
        answer |= row("new", message.new_tuple)
    if getattr(message, "old_tuple", None) is not None:
        answer |= row("old", message.old_tuple)
        answer["old_type"] = message.message_type if kind == "delete" else message.optional_tuple_identifier
    return answer


def main() -> None:
    """Answer a payload with each line of standard input."""
    decoders = load_decoders(Path(sys.argv[1]))
    for line in sys.stdin:
        payload = bytes.fromhex(json.loads(line)["payload"])
        try:
            name = KINDS[chr(payload[0])]
            answer = plain(getattr(decoders, name)(payload))
        except Exception as error:
            answer = {"refused": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
