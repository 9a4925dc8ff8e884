"""The output of a ChangeDecoder, as rows in the form of tests/support/oracles/reference_changes.py."""

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
    """The rows of a batch, including `error`; maps are dicts, timestamps are microseconds."""
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
    """The rows of a batch, after checking that no row has an error."""
    rows = with_errors(batch)
    errors = [row.pop("error") for row in rows]
    assert errors == [None] * len(rows)
    return rows


def decoded(payloads: Any, position: Any = None, **options: Any) -> list[Change]:
    """Decode the changes of payloads in one call; with `include_uncommitted` all changes, in order of position."""
    decoder = ChangeDecoder(**options)
    changes = changes_of(decoder.decode(payloads, position))
    return in_order(changes + changes_of(decoder.undecided())) if options.get("include_uncommitted") else changes


def in_order(changes: Iterable[Change]) -> list[Change]:
    """Sort rows like the reference: committed ones in their order, then the others by position."""
    found = list(changes)
    others = [change for change in found if not change["committed"]]
    # The tables of one truncate have the same position and keep their order.
    return [change for change in found if change["committed"]] + sorted(others, key=lambda row: row["position"])


def through_json(decoder: ChangeDecoder, **options: Any) -> ChangeDecoder:
    """Make another decoder that continues from this one's state, after a round trip through JSON text."""
    return ChangeDecoder(state=json.loads(json.dumps(decoder.state)), **options)


def in_pieces(payloads: Sequence[bytes | None], bounds: Sequence[int], **options: Any) -> list[Change]:
    """Decode payloads that are split at the bounds, each part with a new decoder."""
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
