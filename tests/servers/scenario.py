"""A random workload of interleaved sessions on a live server, repeatable by its seed.

Nothing in it waits: the holder of each table and row is known beforehand, so every statement can be
run from one thread, one after the other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from servers import tables
from servers.connection import Connection
from servers.server import Server
from servers.tables import Shape, Table

N_SESSIONS = 4
BULK = (1, 1, 1, 2, 5, 20, 80, 300)
MOST_PREPARED = 16


@dataclass(eq=False)
class Open:
    """An open or prepared transaction: its xid once it has one, and the table shapes to restore by savepoint level."""

    xid: int | None = None
    gid: str | None = None
    changes_catalog: bool = False
    savepoints: list[str] = field(default_factory=list)
    undo: list[dict[Table, Shape]] = field(default_factory=lambda: [{}])


@dataclass(eq=False)
class Session:
    connection: Connection
    transaction: Open | None = None


class Scenario:
    """A database of a server with tables and sessions, and the state of every transaction."""

    def __init__(self, server: Server, database: str, seed: int) -> None:
        self.server = server
        self.database = database
        self.rng = random.Random(seed)
        self.counter = 0
        self.tables: list[Table] = []
        self.prepared: list[Open] = []
        self.outcome: dict[int, bool] = {}
        self.covered: Counter[str] = Counter()
        self.log: list[str] = []
        self.origin: str | None = None
        self.via_root = server.major >= 13 and self.rng.random() < 0.5
        self.has_partitions = server.major >= 11 and self.rng.random() < 0.4
        self.watcher = server.connect(database)
        self.sessions = [Session(server.connect(database)) for _ in range(N_SESSIONS)]
        self.set_up()

    def close(self) -> None:
        """Remove everything that the scenario made outside its database."""
        for owner in self.prepared:
            self.watcher.execute(f"ROLLBACK PREPARED '{owner.gid}'")
        if self.origin is not None:
            session = self.sessions[0].connection
            session.execute("ROLLBACK")
            session.execute("SELECT pg_replication_origin_session_reset()")
            session.execute(f"SELECT pg_replication_origin_drop('{self.origin}')")
        for connection in (self.watcher, *(session.connection for session in self.sessions)):
            connection.close()

    def fresh(self, count: int = 1) -> int:
        """The first of `count` new numbers."""
        self.counter += count
        return self.counter - count + 1

    def set_up(self) -> None:
        self.run(self.watcher, """CREATE TYPE mood AS ENUM ('sad', 'it''s fine'); CREATE SCHEMA "Odd ""schema";""")
        kinds = self.rng.choices([kind for kind in tables.KINDS if kind != "partitioned"], k=self.rng.randint(2, 5))
        for kind in kinds + ["partitioned"] * self.has_partitions:
            table = self.new_table(kind)
            self.run(self.watcher, tables.creation(table))
            self.look_up(self.watcher, table)
        self.publish()
        if self.rng.random() < 0.3:
            self.origin = f"origin of {self.database}"
            self.run(self.watcher, f"SELECT pg_replication_origin_create('{self.origin}')")
            self.run(self.sessions[0].connection, f"SELECT pg_replication_origin_session_setup('{self.origin}')")
            # Otherwise the first commit of the session is sent with a timestamp of 0, and each later one with
            # the timestamp of the first.
            self.run(self.sessions[0].connection, "SELECT pg_replication_origin_xact_setup('0/ABCD', now())")

    def publish(self) -> None:
        via_root = " WITH (publish_via_partition_root = true)" if self.via_root else ""
        self.run(self.watcher, f"CREATE PUBLICATION everything FOR ALL TABLES{via_root}")

    def new_table(self, kind: str) -> Table:
        number = self.fresh()
        types = self.rng.choices(list(tables.EXPRESSIONS), k=self.rng.randint(0, 5))
        columns = tuple((self.column_name(), type_name) for type_name in types)
        namespace = self.rng.choice(("public", "public", 'Odd "schema'))
        name = self.rng.choice((f"t{number}", f"t{number}", f"Täble {number}"))
        return Table(kind, Shape(namespace, name, tables.KINDS[kind][1], columns), index=f"index of {number}")

    def column_name(self) -> str:
        number = self.fresh()
        return self.rng.choice((f"c{number}", f"c{number}", f'Čol "{number}"'))

    def look_up(self, connection: Connection, table: Table) -> None:
        self.tables.append(table)
        table.oid = int(connection.value(f"SELECT '{table.shape.sql}'::regclass::oid"))

    def run(self, connection: Connection, sql: str) -> None:
        self.log.append(sql)
        connection.execute(sql)

    # One step is one statement of one session.

    def step(self) -> None:
        session = self.rng.choice(self.sessions)
        actions = self.actions(session)
        [action] = self.rng.choices(list(actions), weights=list(actions.values()))
        action(session)

    def actions(self, session: Session) -> dict[Callable[[Session], None], int]:
        """The possible next actions of a session, and their weights."""
        if session.transaction is None:
            return {self.begin: 10, self.write_alone: 4, self.emit_alone: 1, self.finish_prepared: 3}
        return {
            **{self.write: 50, self.savepoint: 12, self.rollback_to: 8, self.release: 4, self.truncate: 3},
            **{self.alter: 6, self.create: 1, self.drop: 1, self.emit: 1},
            **{self.commit: 6, self.rollback: 3, self.prepare: 3, self.alter_under_savepoint: 3},
            **{self.alter_and_prepare: 3, self.emit_alone: 2},
        }

    def begin(self, session: Session) -> None:
        self.run(session.connection, "BEGIN")
        session.transaction = Open()

    def write_alone(self, session: Session) -> None:
        session.transaction = Open()
        self.run(session.connection, "BEGIN")
        self.write(session)
        self.commit(session)

    def emit_alone(self, session: Session) -> None:
        self.run(session.connection, f"SELECT pg_logical_emit_message(false, 'prefix', 'outside {self.fresh()}')")

    def perhaps_emit(self) -> None:
        """Often make a message the last WAL record before that of an outcome, from the same session or another one."""
        if self.rng.random() < 0.4:
            self.emit_alone(self.rng.choice(self.sessions))

    def emit(self, session: Session) -> None:
        self.run(session.connection, "SELECT pg_logical_emit_message(true, 'prefix', E'COMMIT 1\\ninside')")
        self.note_xid(session)

    def write(self, session: Session) -> None:
        owner = self.owner(session)
        usable = [table for table in self.tables if table.may_be_used_by(owner)]
        if not usable:
            return
        table = self.rng.choice(usable)
        table.users.add(owner)
        ids = table.free_ids(owner, self.rng, self.rng.choice(BULK)) if table.sends_old_rows() else []
        kind = self.rng.choice(("insert", "update", "update", "delete")) if ids else "insert"
        if kind == "insert":
            count = self.rng.choice(BULK)
            if table.kind == "long_key":
                count = min(count, 20)
            first = self.fresh(count)
            ids = list(range(first, first + count))
            self.run(session.connection, tables.insertion(table, self.rng, first, count))
            table.ids += ids
        elif kind == "update":
            number = self.fresh()
            self.run(session.connection, tables.update(table, self.rng, ids, number))
            table.ids.append(number)
            ids = [*ids, number]
        else:
            self.run(session.connection, f"DELETE FROM {table.shape.sql} WHERE id = ANY (ARRAY{ids})")
        table.locked_ids |= dict.fromkeys(ids, owner)
        self.note_xid(session)

    def truncate(self, session: Session) -> None:
        # PostgreSQL 10 does not replicate it.
        if self.server.major < 11:
            return
        owner = self.owner(session)
        lockable = [t for t in self.tables if t.may_be_locked_by(owner) and t.kind != "partitioned"]
        chosen = self.rng.sample(lockable, min(len(lockable), self.rng.choice((1, 1, 2, 3))))
        if chosen:
            for table in chosen:
                self.lock(owner, table)
            options = self.rng.choice(("", " RESTART IDENTITY", " CASCADE"))
            names = ", ".join(table.shape.sql for table in chosen)
            self.run(session.connection, f"TRUNCATE {names}{options}")
            self.note_xid(session)

    def alter(self, session: Session) -> None:
        owner = self.owner(session)
        lockable = [t for t in self.tables if t.may_be_locked_by(owner) and t.kind != "partitioned"]
        if lockable:
            table = self.rng.choice(lockable)
            self.lock(owner, table)
            sql, shape = self.random_alteration(table)
            self.run(session.connection, sql)
            self.change_shape(session, table, shape)
            self.note_xid(session)

    def alter_under_savepoint(self, session: Session) -> None:
        """Change tables and write to them inside a savepoint, roll it back or release it, and write again."""
        self.savepoint(session)
        self.write(session)
        self.alter(session)
        self.write(session)
        before = len(self.owner(session).savepoints)
        self.rng.choice([self.rollback_to, self.rollback_to, self.release])(session)
        rolled_back = len(self.owner(session).savepoints) == before
        self.covered["DDL rolled back to a savepoint" if rolled_back else "DDL under a savepoint"] += 1
        self.write(session)

    def alter_and_prepare(self, session: Session) -> None:
        """Prepare a transaction that has changed tables and written to them, also under a savepoint."""
        self.write(session)
        self.alter(session)
        self.write(session)
        if self.rng.random() < 0.5:
            self.alter_under_savepoint(session)
        self.prepare(session)

    def random_alteration(self, table: Table) -> tuple[str, Shape]:
        return self.rng.choice(self.alterations(table))

    def alterations(self, table: Table) -> list[tuple[str, Shape]]:
        """Statements that alter a table, and what it is after each."""
        shape = table.shape
        alter = f"ALTER TABLE {shape.sql} "
        choices: list[tuple[str, Shape]] = []
        name = self.column_name()
        type_name = self.rng.choice(list(tables.EXPRESSIONS))
        default = self.rng.choice(("", " DEFAULT NULL", " DEFAULT " + self.rng.choice(("7", "'7'"))))
        if "7" in default:
            type_name = self.rng.choice(("integer", "text", "varchar(40)"))
        choices.append(
            (f"{alter}ADD {tables.quoted(name)} {type_name}{default}", tables.with_column(shape, name, type_name))
        )
        for at, (old, old_type) in enumerate(shape.columns):
            column = tables.quoted(old)
            choices.append((f"{alter}DROP {column}", tables.without_column(shape, at)))
            renamed = tables.with_column_as(shape, at, name, old_type)
            choices.append((f"{alter}RENAME {column} TO {tables.quoted(name)}", renamed))
            if wider := tables.WIDER.get(old_type):
                choices.append((f"{alter}ALTER {column} TYPE {wider}", tables.with_column_as(shape, at, old, wider)))
        if identities := tables.IDENTITIES.get(table.kind):
            identity = self.rng.choice(identities)
            choices.append((tables.identity_change(table, identity), replace(shape, identity=identity)))
        table_name = f"r{self.fresh()}"
        choices.append((f"{alter}RENAME TO {tables.quoted(table_name)}", replace(shape, name=table_name)))
        return choices

    def create(self, session: Session) -> None:
        table = self.new_table(self.rng.choice([kind for kind in tables.KINDS if kind != "partitioned"]))
        self.run(session.connection, tables.creation(table))
        self.look_up(session.connection, table)
        self.lock(self.owner(session), table)
        shape = table.shape
        table.shape = replace(shape, exists=False)
        self.change_shape(session, table, shape)
        self.note_xid(session)

    def drop(self, session: Session) -> None:
        owner = self.owner(session)
        lockable = [t for t in self.tables if t.may_be_locked_by(owner) and t.kind != "partitioned"]
        if len(lockable) > 2:
            table = self.rng.choice(lockable)
            self.lock(owner, table)
            self.run(session.connection, f"DROP TABLE {table.shape.sql}")
            self.change_shape(session, table, replace(table.shape, exists=False))
            self.note_xid(session)

    def savepoint(self, session: Session) -> None:
        owner = self.owner(session)
        owner.savepoints.append(f"s{self.fresh()}")
        owner.undo.append({})
        self.run(session.connection, f"SAVEPOINT {owner.savepoints[-1]}")

    def rollback_to(self, session: Session) -> None:
        """Roll back to a savepoint at any depth; the savepoint remains, empty."""
        owner = self.owner(session)
        if owner.savepoints:
            at = self.rng.randrange(len(owner.savepoints))
            self.run(session.connection, f"ROLLBACK TO SAVEPOINT {owner.savepoints[at]}")
            self.take_back(owner, at + 1)
            del owner.savepoints[at + 1 :]
            owner.undo.append({})

    def release(self, session: Session) -> None:
        """Release a savepoint at any depth: its changes belong to the outer level."""
        owner = self.owner(session)
        if owner.savepoints:
            at = self.rng.randrange(len(owner.savepoints))
            self.run(session.connection, f"RELEASE SAVEPOINT {owner.savepoints[at]}")
            for shapes in owner.undo[at + 1 :]:
                owner.undo[at] = {**shapes, **owner.undo[at]}
            del owner.undo[at + 1 :]
            del owner.savepoints[at:]

    def commit(self, session: Session) -> None:
        if self.would_be_missed(self.owner(session)):
            return
        self.perhaps_emit()
        self.run(session.connection, "COMMIT")
        self.end(self.owner(session), committed=True)
        session.transaction = None

    def rollback(self, session: Session) -> None:
        self.run(session.connection, "ROLLBACK")
        self.end(self.owner(session), committed=False)
        session.transaction = None

    def prepare(self, session: Session) -> None:
        owner = self.owner(session)
        # Long scenarios would reach max_prepared_transactions.
        if owner.xid is not None and len(self.prepared) < MOST_PREPARED:
            owner.gid = f"gid ☃ {self.database} {self.fresh()}"
            self.perhaps_emit()
            self.run(session.connection, f"PREPARE TRANSACTION '{owner.gid}'")
            self.covered["prepared transactions with DDL"] += owner.changes_catalog
            self.prepared.append(owner)
            session.transaction = None

    def finish_prepared(self, session: Session) -> None:
        if self.prepared:
            owner = self.rng.choice(self.prepared)
            committed = self.rng.random() < 0.6
            if committed and self.would_be_missed(owner):
                return
            self.prepared.remove(owner)
            self.perhaps_emit()
            self.run(session.connection, f"{'COMMIT' if committed else 'ROLLBACK'} PREPARED '{owner.gid}'")
            self.end(owner, committed=committed)

    def finish(self) -> None:
        """End all open transactions."""
        for session in self.sessions:
            while session.transaction is not None and session.transaction.savepoints:
                self.release(session)
        for session in self.sessions:
            if session.transaction is not None:
                (self.commit if self.rng.random() < 0.7 else self.rollback)(session)
        while self.prepared:
            self.finish_prepared(self.sessions[0])

    # State of transactions, locks and shapes.

    def owner(self, session: Session) -> Open:
        assert session.transaction is not None
        return session.transaction

    def note_xid(self, session: Session) -> None:
        owner = self.owner(session)
        if owner.xid is None:
            owner.xid = int(session.connection.value("SELECT txid_current()"))

    def would_be_missed(self, owner: Open) -> bool:
        """Whether the server's streaming of another open transaction might miss a commit.

        If a stream finds rows of a sub-transaction that was rolled back, the server discards the stream's memory, and
        with it the catalog change. Later rows are then sent with the old catalog, without the values of
        new columns (PostgreSQL 14 to 18). No decoder can correct that, so no scenario does it.
        """
        open_ones = [session.transaction for session in self.sessions]
        return owner.changes_catalog and any(other and other.savepoints for other in open_ones if other is not owner)

    def lock(self, owner: Open, table: Table) -> None:
        """Lock a table against all other transactions, for DDL."""
        owner.changes_catalog = True
        table.exclusive = owner
        table.users.add(owner)

    def change_shape(self, session: Session, table: Table, shape: Shape) -> None:
        self.owner(session).undo[-1].setdefault(table, table.shape)
        table.shape = shape

    def take_back(self, owner: Open, level: int) -> None:
        """Restore the shapes of tables before a savepoint level, and remove that level and later ones."""
        for shapes in reversed(owner.undo[level:]):
            for table, shape in shapes.items():
                table.shape = shape
        del owner.undo[level:]

    def end(self, owner: Open, *, committed: bool) -> None:
        if owner.xid is not None:
            self.outcome[owner.xid] = committed
        if not committed:
            self.take_back(owner, 0)
        for table in self.tables:
            table.users.discard(owner)
            table.exclusive = None if table.exclusive is owner else table.exclusive
            table.locked_ids = {number: other for number, other in table.locked_ids.items() if other is not owner}

    @property
    def changes_catalog(self) -> bool:
        """Whether an open or prepared transaction has an exclusive lock on a table."""
        open_ones = [session.transaction for session in self.sessions if session.transaction is not None]
        return any(owner.changes_catalog for owner in (*self.prepared, *open_ones))

    def undecided(self) -> set[int]:
        """The xids of open and prepared transactions."""
        owners = [*self.prepared, *(session.transaction for session in self.sessions)]
        return {owner.xid for owner in owners if owner is not None and owner.xid is not None}
