"""Offsets and lengths that derive from the layouts of messages."""

from __future__ import annotations

import pytest

from pgdecode.protocol.messages import (
    Begin,
    Commit,
    CommitPrepared,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    Update,
)
from pgdecode.protocol.wire import length_of, offset_of


# Source: PostgreSQL documentation, "Logical Replication Message Formats".
@pytest.mark.parametrize(
    ("message", "field", "in_stream", "offset"),
    [
        (Begin, "final_lsn", False, 1),
        (Begin, "commit_timestamp", False, 9),
        (Commit, "end_lsn", False, 10),
        (StreamCommit, "end_lsn", False, 14),
        (StreamPrepare, "end_lsn", False, 10),
        (CommitPrepared, "end_lsn", False, 10),
        (RollbackPrepared, "rollback_end_lsn", False, 10),
        (LogicalMessage, "lsn", False, 2),
        (LogicalMessage, "lsn", True, 6),
        (Relation, "relation_id", False, 1),
        (Relation, "relation_id", True, 5),
        (Update, "old_type", False, 5),
        (Update, "old_type", True, 9),
    ],
)
def test_the_offset_of_a_field_is_that_of_the_documentation(
    message: type[Message], field: str, in_stream: bool, offset: int
) -> None:
    assert offset_of(message, field, in_stream=in_stream) == offset


@pytest.mark.parametrize(
    ("message", "field"), [(Relation, "name"), (Insert, "new_formats"), (Begin, "none"), (RollbackPrepared, "none")]
)
def test_a_field_after_one_of_any_length_has_no_offset(message: type[Message], field: str) -> None:
    with pytest.raises(KeyError):
        offset_of(message, field)


@pytest.mark.parametrize(("message", "length"), [(Begin, 21), (Commit, 26), (StreamStart, 6), (StreamAbort, 9)])
def test_messages_without_text_have_one_length(message: type[Message], length: int) -> None:
    assert length_of(message) == length
