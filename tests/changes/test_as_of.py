"""`as_of`: the rows of a table after a commit, compared with those of the payloads up to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.options import options_of
from pgdecode.rows.options import Options
from support import captures
from support.generators.random_tables import T
from support.generators.slot import Slot
from support.tiers import full

COMMITS = (pgdecode.Commit, pgdecode.StreamCommit, pgdecode.CommitPrepared)


def commits_of(payloads: pa.Array) -> list[tuple[int, int, datetime]]:
    """The row, LSN and time of each commit."""
    tags = {message.tag.encode() for message in COMMITS}
    found = [(row, pgdecode.decode(data)) for row, data in enumerate(payloads.to_pylist()) if data[:1] in tags]
    return [(row, item.commit_lsn, item.commit_timestamp) for row, item in found]


def rows_of(payloads: pa.Array, table: str, **options: Any) -> pa.Table | None:
    """The rows of a table; None if no committed transaction has described it."""
    try:
        return pgdecode.snapshot(payloads, table, unrepresentable="null", **options)
    except KeyError:
        return None


@pytest.mark.parametrize("name", [full("16.shop.v1"), full("16.streams.v4"), "18.twophase.v4bin", full("18.txns.v2")])
def test_the_rows_as_of_a_commit_are_those_of_the_payloads_up_to_it(name: str) -> None:
    payloads = captures.capture(name).column
    commits = commits_of(payloads)
    names = pgdecode.RelationCatalog.from_messages(payloads).names
    for row, lsn, time in commits[:: max(1, len(commits) // 5)]:
        for table in names:
            expected = rows_of(payloads.slice(0, row + 1), table)
            for as_of in (lsn, pgdecode.lsn_to_text(lsn)):
                assert rows_of(payloads, table, as_of=as_of) == expected
            # A transaction with a replication origin has the time of its commit there, which may be any.
            end = next((later for later, _, at in commits if at > time), len(payloads))
            assert rows_of(payloads, table, as_of=time.isoformat()) == rows_of(payloads.slice(0, end), table)
            assert rows_of(payloads, table, as_of=lsn - 1) == rows_of(payloads.slice(0, row), table)


def two_commits() -> Slot:
    """Row 1 is updated by a second transaction, which renames the table too. A bad payload comes after it."""
    slot = Slot()
    slot.begin(7)
    slot.relation(T, ["id", "a"], keys=["id"], name="former")
    slot.insert(T, "1", "x")
    slot.commit()
    slot.begin(8)
    slot.relation(T, ["id", "a", "b"], keys=["id"])
    slot.update(T, "1", "y", "z")
    slot.commit()
    slot.payloads.append(b"?")
    return slot


def test_what_comes_after_the_commit_does_not_count() -> None:
    payloads = two_commits().payloads
    (_, first, _), (_, second, _) = commits_of(pa.array(payloads))
    for as_of in (first, second - 1):
        rows = pgdecode.snapshot(payloads, "public.former", range(5, 5 + len(payloads)), as_of=as_of)
        assert rows.select(["_position", "id", "a"]).to_pylist() == [{"_position": 7, "id": "1", "a": "x"}]
        assert rows.schema.metadata[b"pgdecode:undecided"] == b"0"
        assert "b" not in rows.column_names
    with pytest.raises(KeyError, match=r"no relation 'public\.former'"):
        pgdecode.snapshot(payloads, "public.former", as_of=first - 1)
    with pytest.raises(pgdecode.DecodeError):
        pgdecode.snapshot(payloads, f"public.t{T}", as_of=second)


def test_commits_before_the_first_later_one_count_as_in_a_recovery_of_postgresql() -> None:
    # Times of commits are taken before their order is decided.
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
    payloads = two_commits().payloads[:-1]
    expected = pgdecode.snapshot(payloads[:4], "public.former").drop(["_commit_timestamp"])

    def at(payload: bytes, offset: int, time: datetime) -> bytes:
        us = (time - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return payload[:offset] + us.to_bytes(8, "big", signed=True) + payload[offset + 8 :]

    for row, time in enumerate([noon, None, None, noon, noon + timedelta(seconds=1), None, None, noon]):
        if time is not None:
            payloads[row] = at(payloads[row], 9 if payloads[row][:1] == b"B" else 18, time)
    found = pgdecode.snapshot(payloads, "public.former", as_of=noon).drop(["_commit_timestamp"])
    assert found.equals(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("16/b374d848", "16/B374D848"),
        (97500059720, "16/B374D848"),
        ("97500059720", "16/B374D848"),
        ("2026-11-28T00:00:00Z", "2026-11-28 00:00:00+00:00"),
        ("2026-11-28 01:00:00.5+01", "2026-11-28 00:00:00.500000+00:00"),
        (datetime(2026, 11, 28, 1, tzinfo=timezone(timedelta(hours=1))), "2026-11-28 00:00:00+00:00"),
        (datetime(1999, 12, 31, 23, tzinfo=UTC), "1999-12-31 23:00:00+00:00"),
    ],
)
def test_an_as_of_is_an_lsn_or_a_time_and_the_manifest_has_one_form_of_each(value: Any, text: str) -> None:
    assert str(AsOf.of(value)) == text
    assert options_of(Options(as_of=value))["as_of"] == text
    assert Options(as_of=value) == Options(as_of=text)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("yesterday", ValueError, "as_of is an LSN, such as .* not 'yesterday'"),
        ("16/", ValueError, "an LSN is two hexadecimal numbers"),
        ("2026-11-28", ValueError, "as_of is a time without a time zone"),
        (datetime(2026, 11, 28), ValueError, "as_of is a time without a time zone"),
        (-1, ValueError, "an LSN is from 0"),
        (True, TypeError, "not bool"),
        (1.5, TypeError, "not float"),
    ],
)
def test_other_values_of_as_of_are_refused(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        pgdecode.snapshot([], "public.t", as_of=value)
