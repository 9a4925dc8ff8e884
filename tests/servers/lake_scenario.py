"""A random workload for targets: with what the text of test_decoding cannot tell, so that only the server can compare.

Tables are added to a publication when they have rows, partitioned tables are altered and truncated, columns are
generated, and types change with USING.
"""

from __future__ import annotations

from collections.abc import Callable

from servers import tables
from servers.scenario import Scenario, Session
from servers.tables import Shape, Table

# Changes of type by the cast of PostgreSQL, and with USING where it has none. One that computes other values than the
# cast is a limit: see docs/apply.md.
CASTS = {
    "integer": ("text", "double precision", "numeric(10,2)"),
    "bigint": ("text",),
    "boolean": ("text",),
}
COMPUTED = {
    "text": ("integer", "length({0})"),
    "boolean": ("integer", "{0}::integer"),
    "bytea": ("text", "encode({0}, 'hex')"),
}


class LakeScenario(Scenario):
    """A scenario of which the tables are compared, and not the messages."""

    def publish(self) -> None:
        """Publish all tables, or some of them."""
        self.is_listed = self.rng.random() < 0.4
        listed = [table for table in self.tables if self.may_be_listed(table) and self.rng.random() < 0.6]
        self.published = {id(table) for table in listed}
        self.generated: set[int] = set()  # tables that may have generated columns
        options = ["publish_via_partition_root = true"] * self.via_root
        if self.server.major >= 18 and self.rng.random() < 0.5:
            options.append("publish_generated_columns = stored")
        names = ", ".join(table.shape.sql for table in listed)
        wanted = "" if self.is_listed and not listed else f" FOR TABLE {names}" if self.is_listed else " FOR ALL TABLES"
        settings = f" WITH ({', '.join(options)})" if options else ""
        self.run(self.watcher, f"CREATE PUBLICATION everything{wanted}{settings}")

    def may_be_listed(self, table: Table) -> bool:
        return table.shape.exists and (table.kind != "partitioned" or self.server.major >= 13)

    def actions(self, session: Session) -> dict[Callable[[Session], None], int]:
        found = super().actions(session)
        if session.transaction is None:
            return {**found, self.publish_table: 1} if self.is_listed else found
        return {**found, self.change_partitioned: 3} if self.has_partitions else found

    def publish_table(self, session: Session) -> None:
        """Publish a table that has rows."""
        others = [
            table
            for table in self.tables
            if id(table) not in self.published and self.may_be_listed(table) and table.exclusive is None
        ]
        if others:
            table = self.rng.choice(others)
            self.published.add(id(table))
            self.run(self.watcher, f"ALTER PUBLICATION everything ADD TABLE {table.shape.sql}")
            self.covered["tables published with rows"] += 1

    def change_partitioned(self, session: Session) -> None:
        """Alter or truncate a partitioned table."""
        owner = self.owner(session)
        lockable = [t for t in self.tables if t.may_be_locked_by(owner) and t.kind == "partitioned"]
        if not lockable:
            return
        table = self.rng.choice(lockable)
        self.lock(owner, table)
        if self.server.major >= 11 and self.rng.random() < 0.3:
            self.run(session.connection, f"TRUNCATE {table.shape.sql}")
            self.covered["truncates of partitioned tables"] += 1
        else:
            sql, shape = self.random_alteration(table)
            self.run(session.connection, sql)
            self.change_shape(session, table, shape)
            self.covered["DDL of partitioned tables"] += 1
        self.note_xid(session)

    def random_alteration(self, table: Table) -> tuple[str, Shape]:
        sql, shape = super().random_alteration(table)
        if self.server.major >= 18 and "GENERATED" in sql:
            self.generated.add(id(table))
        return sql, shape

    def alterations(self, table: Table) -> list[tuple[str, Shape]]:
        found = super().alterations(table)
        shape = table.shape
        if id(table) in self.generated:
            found = [(sql, after) for sql, after in found if after.identity != "f"]
        for at, (name, old) in enumerate(shape.columns):
            # A default may not be of the new type.
            column = f"ALTER {tables.quoted(name)}"
            alter = f"ALTER TABLE {shape.sql} {column} DROP DEFAULT, {column} TYPE"
            changes = [(new, "") for new in CASTS.get(old, ())]
            if old in COMPUTED:
                new, using = COMPUTED[old]
                changes.append((new, " USING " + using.format(tables.quoted(name))))
            for new, using in changes:
                found.append((f"{alter} {new}{using}", tables.with_column_as(shape, at, name, new)))
        # PostgreSQL 18 refuses updates if the replica identity has a generated column that is not published.
        if self.server.major >= 12 and (self.server.major < 18 or shape.identity != "f"):
            name = tables.quoted(f"g{self.fresh()}")
            found.append((f"ALTER TABLE {shape.sql} ADD {name} int GENERATED ALWAYS AS (id * 2) STORED", shape))
        if self.server.major >= 18 and shape.identity != "f":
            name = tables.quoted(f"g{self.fresh()}")
            found.append((f"ALTER TABLE {shape.sql} ADD {name} int GENERATED ALWAYS AS (id * 3) VIRTUAL", shape))
        # Two changes of the catalog, without a row between them.
        name, kind = self.column_name(), self.rng.choice(("integer", "text"))
        twice = tables.with_column(tables.with_column(shape, name, kind), f"{name} too", kind)
        sql = f"ALTER TABLE {shape.sql} ADD {tables.quoted(name)} {kind} DEFAULT '5'"
        found.append((f"{sql}; {sql.replace(tables.quoted(name), tables.quoted(f'{name} too'))}", twice))
        return found
