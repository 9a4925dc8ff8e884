"""Payloads of captures for tests of memory and threads."""

from __future__ import annotations

from collections.abc import Iterable

import pgdecode
from pgdecode.relations.relation_version import RelationVersion
from support import captures


def broken(payloads: Iterable[bytes]) -> list[bytes | None]:
    """Payloads that include a null, an empty payload and several truncated ones."""
    found: list[bytes | None] = list(payloads)
    found[1] = None
    found[2] = b""
    found[5::7] = [payload and payload[:-1] for payload in found[5::7]]
    return found


def tables(name: str) -> list[tuple[RelationVersion, list[bytes]]]:
    """Each relation of a capture that has only one version, with the payloads of its rows."""
    capture = captures.capture(name)
    catalog = pgdecode.RelationCatalog.from_messages(capture.column)
    by_relation: dict[int, list[bytes]] = {}
    for payload, row in zip(capture.payloads, capture.rows, strict=True):
        if row["kind"] in ("insert", "update", "delete"):
            by_relation.setdefault(row["relation_id"], []).append(payload)
    return [(version, by_relation.get(version.relation_id, [])) for version in catalog]
