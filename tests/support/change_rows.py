"""What a ChangeDecoder gives, as rows in the form of tests/support/oracles/reference_changes.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_rows import CHANGES
from support.compare import rows_of
from support.oracles.reference_changes import Change


def with_errors(batch: pa.RecordBatch) -> list[Change]:
    """The rows of a batch, `error` among their columns; maps are dicts, timestamps microseconds."""
    batch.validate(full=True)
    assert batch.schema == CHANGES
    rows = rows_of(batch)
    for row in rows:
        for part in ("old", "new"):
            pairs = row[part]
            if pairs is not None:
                row[part] = dict(pairs)
                assert len(row[part]) == len(pairs)
    return rows


def changes_of(batch: pa.RecordBatch) -> list[Change]:
    """The rows of a batch, none of which has an error."""
    rows = with_errors(batch)
    errors = [row.pop("error") for row in rows]
    assert errors == [None] * len(rows)
    return rows


def decoded(payloads: Any, position: Any = None, **options: Any) -> list[Change]:
    """The changes of payloads, by one call of a decoder; with `include_uncommitted` all of them, in their order."""
    decoder = ChangeDecoder(**options)
    changes = changes_of(decoder.decode(payloads, position))
    return in_order(changes + changes_of(decoder.undecided())) if options.get("include_uncommitted") else changes


def in_order(changes: Iterable[Change]) -> list[Change]:
    """The committed ones as they come, then the others by position: what the reference gives."""
    found = list(changes)
    others = [change for change in found if not change["committed"]]
    # Tables of one truncate have one position, and stay in their order.
    return [change for change in found if change["committed"]] + sorted(others, key=lambda row: row["position"])


def through_json(decoder: ChangeDecoder, **options: Any) -> ChangeDecoder:
    """Another decoder that goes on where this one stands, its state having been text in between."""
    return ChangeDecoder(state=json.loads(json.dumps(decoder.state)), **options)


def in_pieces(payloads: Sequence[bytes | None], bounds: Sequence[int], **options: Any) -> list[Change]:
    """The changes of payloads that are cut at the bounds, each piece by a decoder of its own."""
    decoder = ChangeDecoder(**options)
    changes = []
    for start, end in zip([0, *bounds], [*bounds, len(payloads)], strict=True):
        changes += changes_of(decoder.decode(payloads[start:end]))
        decoder = through_json(decoder, **options)
    if options.get("include_uncommitted"):
        return in_order(changes + changes_of(decoder.undecided()))
    return changes


def permissive(payloads: list[bytes], **options: Any) -> list[Change]:
    return with_errors(ChangeDecoder(mode="PERMISSIVE", **options).decode(payloads))


def seen(rows: list[Change]) -> list[tuple[int, Any]]:
    """Position of each row, and its new values or the code of its error."""
    return [(row["position"], row["error"].split()[0] if row["error"] else row["new"]) for row in rows]
