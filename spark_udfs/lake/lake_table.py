"""A table of Delta or Iceberg: its columns, the version of the relation that they are, and the applied position."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pgdecode.datasets.errors import RunError
from pgdecode.lake.stored_types import stored_field
from pgdecode.relations.relation_json import version_from_json, version_to_json
from pgdecode.relations.relation_version import RelationVersion
from spark_udfs.runtime.tasks import changed_settings
from spark_udfs.schema.spark_types import arrow_schema, quoted, spark_schema

LakeFormat = Literal["delta", "iceberg"]
# The property of a table with the version of the relation whose columns it has, as JSON.
_VERSION = "pgdecode.version"
_DELTA_APP = "spark.databricks.delta.write.txnAppId"
_DELTA_NUMBER = "spark.databricks.delta.write.txnVersion"
_DELTA_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_ICEBERG_POSITION = "pgdecode.position"
_ICEBERG_CHANGE = "pgdecode.change"
# Greater than all positions.
_ALL_CHANGES = 2**63 - 1
# How many entries of a history to read at first.
_RECENT = 20
# Properties that Spark shows, and that are no properties.
_NOT_WRITTEN = re.compile(r"delta\.(feature\..*|min(Reader|Writer)Version)|current-snapshot-id|format|format-version")


@dataclass(frozen=True)
class Applied:
    """What is applied to a table.

    Attributes
    ----------
    position : int
        The greatest `_commit_position`; -1 if it is not known, or if nothing is.
    app_id : str
        Of Delta's transactions. After a RESTORE it is another one, because Delta keeps the numbers of transactions.
    change : int or None
        The `_position` of the last change, if the rest of its transaction is not applied.
    """

    position: int = -1
    app_id: str = "pgdecode"
    change: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The commit and the change up to which all is applied."""
        return self.position, _ALL_CHANGES if self.change is None else self.change

    def is_at(self, other: Applied) -> bool:
        """Whether the same is applied."""
        return self.place == other.place


@dataclass
class LakeTable:
    """A table of a catalog.

    Attributes
    ----------
    spark : SparkSession
    name : str
        As Spark's SQL takes it.
    format : {"delta", "iceberg"}
    columns : StructType
    version : RelationVersion or None
        Whose columns it has. None if it was not made by `merge_into`, or the changes did not tell it.
    is_partitioned : bool
    properties : dict
    """

    spark: SparkSession
    name: str
    format: LakeFormat
    columns: T.StructType
    version: RelationVersion | None
    is_partitioned: bool
    properties: dict[str, str]

    @classmethod
    def open(cls, spark: SparkSession, name: str) -> LakeTable | None:
        """Return a table; None if it does not exist.

        Raises
        ------
        RunError
            If it has another format.
        """
        if not spark.catalog.tableExists(name):
            return None
        described = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()]
        provider = next((value.lower() for key, value in described if key == "Provider"), "")
        if provider not in get_args(LakeFormat):
            raise RunError(f"table {name} has the format {provider or 'unknown'!r}: merge needs Delta or Iceberg")
        properties = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        version = properties.get(_VERSION)
        return cls(
            spark,
            name,
            "delta" if provider == "delta" else "iceberg",
            spark.table(name).schema,
            None if version is None else version_from_json(json.loads(version)),
            any(re.match(r"# (Partition|Clustering)", key) for key, _ in described),
            {key: value for key, value in properties.items() if not _NOT_WRITTEN.fullmatch(key)},
        )

    @classmethod
    def create(
        cls,
        spark: SparkSession,
        name: str,
        format: LakeFormat,
        columns: T.StructType,
        version: RelationVersion | None,
    ) -> LakeTable:
        """Make a table without rows."""
        fields = (f"{quoted(item.name)} {ddl_of(item.dataType)}{_NOT_NULL[item.nullable]}" for item in columns)
        properties = "" if version is None else f" TBLPROPERTIES ({_property(version)})"
        spark.sql(f"CREATE TABLE {name} ({', '.join(fields)}) USING {format}{properties}")
        made = cls.open(spark, name)
        assert made is not None
        return made

    @staticmethod
    def format_of(spark: SparkSession, name: str, using: LakeFormat | None) -> LakeFormat:
        """Return the format in which to make a table: the given one, or that of the catalog.

        Raises
        ------
        ValueError
            If the settings of the catalog do not tell it.
        """
        parts = re.findall(r"`(?:[^`]|``)*`|[^.]+", name)
        catalog = parts[0].strip("`") if len(parts) > 2 else spark.catalog.currentCatalog()
        kind = (spark.conf.get(f"spark.sql.catalog.{catalog}", None) or "").lower()
        found: LakeFormat | None = using or next((item for item in get_args(LakeFormat) if item in kind), None)
        if found is None:
            raise ValueError(f"table {name} does not exist: pass using='delta' or using='iceberg' to make it")
        return found

    def frame(self) -> DataFrame:
        """Return the rows."""
        return self.spark.table(self.name)

    # -- what is applied -----------------------------------------------------------------------------------------------

    def applied(self) -> Applied:
        """Read what is applied, from the commits of the table that it has and that are not expired."""
        return self._of_delta() if self.format == "delta" else self._of_iceberg()

    def _of_iceberg(self) -> Applied:
        # Only the ancestors of the current snapshot count, so that a table that was rolled back goes on from there.
        found = self.spark.sql(
            f"SELECT max(struct(CAST(s.summary['{_ICEBERG_POSITION}'] AS BIGINT), "
            f"coalesce(CAST(s.summary['{_ICEBERG_CHANGE}'] AS BIGINT), {_ALL_CHANGES}))) FROM {self.name}.snapshots "
            f"AS s JOIN {self.name}.history AS h ON s.snapshot_id = h.snapshot_id "
            f"WHERE h.is_current_ancestor AND s.summary['{_ICEBERG_POSITION}'] IS NOT NULL"
        ).first()
        if found is None or found[0] is None:
            return Applied()
        position, change = found[0]
        return Applied(position, change=None if change == _ALL_CHANGES else change)

    def _of_delta(self) -> Applied:
        for limit in (f" LIMIT {_RECENT}", ""):
            history = self.spark.sql(f"DESCRIBE HISTORY {self.name}{limit}")
            rows = history.select("version", "timestamp", "operation", "operationParameters", "userMetadata").collect()
            found = _newest(rows, self.name)
            if found is not None:
                return found
            if len(rows) < _RECENT:
                break
        return Applied()

    @contextmanager
    def commit(self, applied: Applied, *, is_repeated: bool = False) -> Iterator[None]:
        """Write what is applied in the commit of one statement.

        Parameters
        ----------
        applied : Applied
        is_repeated : bool
            Whether the table has it already. Delta skips the statement otherwise, if the table has it already.

        Raises
        ------
        RunError
            If the table does not have this state afterwards, because another writer was faster.
        """
        if self.format == "delta":
            about = {"position": applied.position, "app_id": applied.app_id}
            if applied.change is not None:
                about["change"] = applied.change
            settings = {_DELTA_METADATA: json.dumps({"pgdecode": about})}
            # The number of Delta's transaction belongs to the commit with the rest of the changes.
            if not is_repeated and applied.change is None:
                settings |= {_DELTA_APP: applied.app_id, _DELTA_NUMBER: str(applied.position)}
        else:
            prefix = "spark.sql.iceberg.snapshot-property."
            settings = {f"{prefix}{_ICEBERG_POSITION}": str(applied.position)}
            if applied.change is not None:
                settings[f"{prefix}{_ICEBERG_CHANGE}"] = str(applied.change)
        if applied.position < 0:
            settings = {}
        with changed_settings(self.spark, settings):
            yield
        if settings and not self.applied().is_at(applied):
            raise RunError(
                f"table {self.name}: the commit up to position {applied.position} is not the last one: another writer "
                "has merged changes meanwhile, or has replaced the table. Use one writer for a table"
            )

    # -- columns -------------------------------------------------------------------------------------------------------

    @property
    def has_names(self) -> bool:
        """Whether columns can be renamed and dropped without writing the rows again."""
        return self.format == "iceberg" or self.properties.get("delta.columnMapping.mode", "none") != "none"

    @property
    def has_widening(self) -> bool:
        """Whether columns can get a wider type without writing the rows again."""
        return self.format == "iceberg" or self.properties.get("delta.enableTypeWidening") == "true"

    def alter(self, clause: str) -> None:
        """Change the columns."""
        self.spark.sql(f"ALTER TABLE {self.name} {clause}")

    def write_version(self, version: RelationVersion) -> None:
        """Write the version of the relation whose columns the table has now."""
        if self.version != version:
            self.alter(f"SET TBLPROPERTIES ({_property(version)})")

    def replace(self, rows: DataFrame, version: RelationVersion | None) -> None:
        """Replace columns and rows in one commit. Properties stay.

        Raises
        ------
        RunError
            If the table has partitions, which would get lost.
        """
        if self.is_partitioned:
            raise RunError(
                f"table {self.name} has partitions: it is not written again for a schema change. Change its columns by "
                "ALTER TABLE, or pass schema_changes='ignore'"
            )
        properties = dict(self.properties)
        if version is not None:
            properties[_VERSION] = json.dumps(version_to_json(version))
        writer = rows.writeTo(self.name).using(self.format)
        for name, value in properties.items():
            writer = writer.tableProperty(name, value)
        with self.commit(self.applied(), is_repeated=True):
            writer.createOrReplace()


_NOT_NULL = {True: "", False: " NOT NULL"}


def stored_columns(columns: T.StructType, format: LakeFormat, not_null: Sequence[str] = ()) -> T.StructType:
    """Return the columns that a table has for those of net changes."""
    stored = spark_schema(pa.schema([stored_field(item, format) for item in arrow_schema(columns)]))
    return T.StructType([T.StructField(item.name, item.dataType, item.name not in not_null) for item in stored])


def _newest(history: Sequence[Any], name: str) -> Applied | None:
    """Find the last commit of ours in a history of Delta, which begins with the newest one."""
    restored: str | None = None
    last: int | None = None
    for row in history:
        if last is not None and row.version > last:
            continue
        if row.operation == "RESTORE":
            # Delta keeps the numbers of transactions that were restored away, so the next need another name.
            restored = restored or f"pgdecode {row.version}"
            version = row.operationParameters.get("version")
            if not version:
                raise RunError(
                    f"table {name} was restored to a time, so its position is not known: restore it to a version"
                )
            last = int(version)
        elif (row.userMetadata or "").startswith('{"pgdecode"'):
            found = json.loads(row.userMetadata)["pgdecode"]
            return Applied(found["position"], restored or found["app_id"], found.get("change"))
    return None if restored is None else Applied(-1, restored)


def _property(version: RelationVersion) -> str:
    text = json.dumps(version_to_json(version)).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{_VERSION}' = '{text}'"


def ddl_of(kind: T.DataType) -> str:
    """Return a type as SQL takes it, with quoted names of fields."""
    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(f'{quoted(item.name)}: {ddl_of(item.dataType)}' for item in kind)}>"
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{ddl_of(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return kind.simpleString()
