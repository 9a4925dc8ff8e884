"""Compares the output of a scenario's slots, folded by the reference, with the server's own information."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable
from typing import Any

import pgdecode
from pgdecode import ChangeDecoder, RelationCatalog
from servers import tables
from servers.reading import Message, Mode, Slots
from servers.scenario import Scenario
from support import compare
from support.change_rows import changes_of
from support.net_batches import known_key, random_cuts
from support.oracles import reference, reference_changes, replay, testdecoding
from support.oracles.net_fold import applied
from support.oracles.reference_changes import Change
from support.oracles.replay import Row

EPOCH_SQL = "(extract(epoch FROM pg_xact_commit_timestamp('{xid}'::xid)) * 1000000)::bigint"


class Account:
    """The server's information at one moment: test_decoding's output, its tables, and the commit time of each xid."""

    def __init__(self, scenario: Scenario, slots: Slots) -> None:
        self.scenario = scenario
        self.texts = {
            two_phase: printed(scenario, slots.read_text(two_phase=two_phase))
            for two_phase in ([False, True] if scenario.server.major >= 15 else [False])
        }
        self.timestamps: dict[int, int] = {}
        self.undecided = scenario.undecided()
        self.names = {table.oid: state_name(table) for table in scenario.tables}
        self.state: dict[str, Any] = {}
        # A table that an open transaction has locked cannot be read, and a dropped table has no state.
        self.unreadable = set()
        for table in scenario.tables:
            if table.exclusive is not None or not table.shape.exists:
                self.unreadable.add(state_name(table))
            else:
                self.add_state(table)

    def add_state(self, table: tables.Table) -> None:
        shape, watcher = table.shape, self.scenario.watcher
        names = [shape.name]
        if table.kind == "partitioned" and not self.scenario.via_root:
            names = tables.leaf_names(table)
            self.unreadable.add(state_name(table))
        for name in names:
            sql = f"{tables.quoted(shape.namespace)}.{tables.quoted(name)}"
            [[columns], *_] = watcher.execute(
                "SELECT json_agg(attname ORDER BY attnum)::text FROM pg_attribute "
                f"WHERE attrelid = '{sql}'::regclass AND attnum > 0 AND NOT attisdropped"
            )
            self.state[replay.table_name(shape.namespace, name)] = {
                "columns": replay.json.loads(columns or "[]"),
                "rows": watcher.execute(f"SELECT * FROM {sql}"),
            }

    def timestamp(self, xid: int) -> int:
        """Commit time of a transaction, in microseconds since 1970."""
        if xid not in self.timestamps:
            self.timestamps[xid] = self.read_timestamp(xid)
        return self.timestamps[xid]

    def read_timestamp(self, xid: int) -> int:
        return int(self.scenario.watcher.value(f"SELECT {EPOCH_SQL.format(xid=xid)}"))


def state_name(table: tables.Table) -> str:
    return replay.table_name(table.shape.namespace, table.shape.name)


def printed(scenario: Scenario, text: str) -> list[testdecoding.TextTransaction]:
    """The test_decoding text, with the names under which partitions are published."""
    roots = {
        f"{table.shape.namespace}.{leaf}": f"{table.shape.namespace}.{table.shape.name}"
        for table in scenario.tables
        if table.kind == "partitioned" and scenario.via_root
        for leaf in tables.leaf_names(table)
    }
    return testdecoding.without(testdecoding.parse(text), published_as=roots)


def fold(messages: Iterable[Message]) -> tuple[list[Change], list[Change], replay.Keys]:
    """The reference's committed changes, its other changes, and the replica identities."""
    pairs = [(position, message.payload) for position, message in enumerate(messages)]
    changes = reference_changes.changes(pairs, include_uncommitted=True)
    committed = reference_changes.changes(pairs)
    assert changes[: len(committed)] == committed
    return committed, changes[len(committed) :], reference_changes.key_columns(pairs)


def problems(account: Account, mode: Mode, messages: list[Message], text_twin: list[Change] | None) -> list[str]:
    """Differences of the output of one mode. A binary mode must equal its text twin except for values."""
    scenario = account.scenario
    committed, others, keys = fold(messages)
    found = wrong_envelopes(messages)
    found += wrong_outcomes(account, committed, others)
    found += wrong_xids(messages, [*committed, *others])
    if not mode.binary:
        found += wrongly_decoded(messages, committed, [*committed, *others])
    if mode.binary:
        if text_twin is None:
            return found
        same = [shape_of(change) for change in committed] == [shape_of(change) for change in text_twin]
        return found if same else [*found, "not the changes of its twin in text"]
    unordered = {
        f"{t.shape.namespace}.{t.shape.name}" for t in scenario.tables if t.kind == "partitioned" and scenario.via_root
    }
    found += testdecoding.differences(committed, account.texts[mode.two_phase], unordered=unordered)
    rows = replay.replay(committed, keys, names=account.names)
    unreadable = account.unreadable
    found += replay.differences(rows, account.state, tables=unreadable)[0]
    found += wrong_net_changes(account, messages, committed)
    return found


def problems_of_sessions(account: Account, mode: Mode, sessions: list[list[Message]]) -> list[str]:
    """Differences of a subscriber that was cut and began again, with and without announced reconnects."""
    messages = [message for session in sessions for message in session]
    pairs = [(position, message.payload) for position, message in enumerate(messages)]
    places = list(itertools.accumulate(len(session) for session in sessions))[:-1]
    announced = reference_changes.Fold(pairs, drop_duplicates=True, reconnects=places)
    committed = announced.committed()
    unordered = {
        f"{t.shape.namespace}.{t.shape.name}"
        for t in account.scenario.tables
        if t.kind == "partitioned" and account.scenario.via_root
    }
    found = wrong_outcomes(account, committed, [])
    found += testdecoding.differences(committed, account.texts[mode.two_phase], unordered=unordered)
    try:
        alone = reference_changes.Fold(pairs, drop_duplicates=True).committed()
    except reference_changes.Refused:
        alone = committed
    if alone != committed:
        found.append("the fold without announced reconnects gives other changes")
    return found + wrongly_decoded_sessions(sessions, committed)


def wrongly_decoded_sessions(sessions: list[list[Message]], committed: list[Change]) -> list[str]:
    """Differences of the package over several sessions, with and without announced reconnects."""
    found = []
    decoder = ChangeDecoder(drop_duplicates=True)
    changes = []
    position = 0
    for number, session in enumerate(sessions):
        if number:
            decoder.reconnected()
        # The state is stored in the middle of each session.
        for part in (session[: len(session) // 2], session[len(session) // 2 :]):
            places = range(position, position + len(part))
            changes += changes_of(decoder.decode([message.payload for message in part], places))
            decoder = ChangeDecoder(drop_duplicates=True, state=json.loads(json.dumps(decoder.state)))
            position += len(part)
    if sorted(changes, key=place) != committed:
        found.append("ChangeDecoder with announced reconnects gives other changes")
    try:
        batch = ChangeDecoder(drop_duplicates=True).decode(
            [message.payload for session in sessions for message in session]
        )
    except pgdecode.DecodeError as error:
        return found if len(sessions) > 1 else [*found, f"ChangeDecoder refuses one session: {error}"]
    if changes_of(batch) != committed:
        found.append("ChangeDecoder without announced reconnects gives other changes")
    return found


def place(change: Change) -> tuple[int, int]:
    return change["commit_position"], change["position"]


def wrong_envelopes(messages: list[Message]) -> list[str]:
    """Differences between `decode_messages` and the reference decoder."""
    payloads = [message.payload for message in messages]
    try:
        compare.assert_same_rows(pgdecode.decode_messages(payloads), reference.decode_sequence(payloads))
    except AssertionError as error:
        return [f"decode_messages: {error}"]
    return []


def wrongly_decoded(messages: list[Message], committed: list[Change], everything: list[Change]) -> list[str]:
    """Differences between the package and the reference: in one part, and in two parts with the state stored."""
    payloads = [message.payload for message in messages]
    found = []
    if changes_of(ChangeDecoder().decode(payloads)) != committed:
        found.append("ChangeDecoder gives other changes")
    decoder = ChangeDecoder(include_uncommitted=True)
    batches = [decoder.decode(payloads[: len(payloads) // 2])]
    decoder = ChangeDecoder(include_uncommitted=True, state=json.loads(json.dumps(decoder.state)))
    batches += [decoder.decode(payloads[len(payloads) // 2 :]), decoder.undecided()]
    ours = [change for batch in batches for change in changes_of(batch)]
    if sorted(map(repr, ours)) != sorted(map(repr, everything)):
        found.append("ChangeDecoder gives other changes with those that were not committed")
    return found


def shape_of(change: Change) -> list[Any]:
    """A change without its values, which is equal in binary and in text."""
    names = [
        None if part is None else [(name, value is None) for name, value in part.items()]
        for part in (change["old"], change["new"])
    ]
    kept = ("op", "xid", "commit_lsn", "commit_timestamp", "relation_id", "relation_name", "old_type", "unchanged")
    return [*names, *(change[name] for name in kept)]


def wrong_outcomes(account: Account, committed: list[Change], others: list[Change]) -> list[str]:
    """Differences from the outcomes that sessions know, and from the commit times that the server recorded."""
    outcome = account.scenario.outcome
    found = [f"{xid} is committed" for xid in {c["xid"] for c in committed} if outcome.get(xid) is not True]
    for change in others:
        xid = change["xid"]
        if change["committed"] is None and xid not in account.undecided:
            found.append(f"{xid} is undecided")
        # A row of an aborted sub-transaction has its own xid, regardless of the outcome of the transaction.
        if change["committed"] is False and outcome.get(xid) is not False and change["subxid"] is None:
            found.append(f"{xid} is aborted")
    for xid, timestamp in {(change["xid"], change["commit_timestamp"]) for change in committed}:
        if timestamp != account.timestamp(xid):
            found.append(f"{xid} is committed at another time")
    return found


def wrong_xids(messages: list[Message], changes: list[Change]) -> list[str]:
    """Differences between the transaction of each row and the xid that the SQL function returns with it."""
    return [
        f"position {change['position']}: xid is {change['xid']}, the SQL function returns {xid}"
        for change in changes
        if (xid := messages[change["position"]].xid) not in (None, change["xid"])
    ]


def wrong_net_changes(account: Account, messages: list[Message], committed: list[Change]) -> list[str]:
    """Differences between the server's tables and those that net changes leave, in batches that are cut anywhere."""
    payloads = [message.payload for message in messages]
    rng = random.Random(len(payloads))
    cuts = random_cuts(rng, len(payloads))
    found, problems = dict[str, list[Row]](), []
    spelled = {replay.table_name(item["namespace"], item["relation_name"]) for item in committed}
    oids = {item["relation_id"] for item in committed}
    catalog = RelationCatalog.from_messages(payloads)
    types: dict[str | int, str] = {item.type_id: "text" for version in catalog for item in version.columns}
    for oid in sorted(oids):
        names = {version.qualified_name for version in catalog.versions(oid)}
        table, name = names.pop(), account.names.get(oid)
        # Rows under a former name of the table are not in the table of its name.
        if names or name is None or name not in spelled & set(account.state):
            continue
        decoder, rows = ChangeDecoder(types=types), list[Row]()
        for start, end in itertools.pairwise(cuts):
            try:
                typed = decoder.table(payloads[start:end], table, range(start, end))
            except KeyError:  # not described yet
                decoder.decode(payloads[start:end], range(start, end))
                continue
            try:
                net = pgdecode.net_changes(typed)
            except ValueError as error:
                if "apart" in str(error):  # another key or type of key within the batch
                    break
                raise
            columns = [column for column in net.schema.names if column[0] != "_"]
            rows = [{column: row.get(column, replay.UNKNOWN) for column in columns} for row in rows]
            rows = applied(rows, net.to_pylist(), known_key(net))
        else:
            found[name] = rows
    state = {name: account.state[name] for name in found}
    problems += replay.differences(found, state)[0]
    return [f"net changes, cut at {cuts}: {problem}" for problem in problems]
