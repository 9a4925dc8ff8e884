"""The state of a table in a target: which payloads it has, and what the next run needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

FORMAT = "pgdecode.Applied"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Applied:
    """The state of a table in a target. It is written in the commit of the data.

    Attributes
    ----------
    position : int
        The payloads up to this position are applied, but for those of undecided transactions.
    restart_position : int
        Where the next run begins to read: at the beginning of the oldest undecided transaction, or behind `position`.
    commit_lsn : int
        The greatest LSN of a commit that is applied; -1 without one.
    commit_timestamp : datetime or None
        Of the last commit that is applied, with a time zone.
    source : mapping or None
        `system`, `database` and `slot` of captured payloads.
    options : mapping
        Options that change the rows, as JSON values: those of the next run must be the same.
    version : mapping or None
        The version of the relation whose columns the table has, as JSON.
    replication : mapping or None
        The state of the decoder, as JSON, without payloads.
    """

    position: int
    restart_position: int
    commit_lsn: int = -1
    commit_timestamp: datetime | None = None
    source: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    version: Mapping[str, Any] | None = None
    replication: Mapping[str, Any] | None = None

    @property
    def relation_id(self) -> int:
        """OID of the table."""
        return int((self.version or {})["relation"]["relation_id"])

    @property
    def payloads(self) -> str:
        """Which payloads it has, for messages."""
        path = (self.source or {}).get("path")
        return f"payloads up to position {self.position}" + ("" if path is None else f" of {path}")

    def to_json(self) -> str:
        """Return it as JSON."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.commit_timestamp is not None:
            plain["commit_timestamp"] = self.commit_timestamp.isoformat()
        return json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, **plain}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Applied:
        """Read what `to_json` made.

        Raises
        ------
        ValueError
            If it is not that, or of another version.
        """
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise ValueError(f"it is not a {FORMAT}")
        version = plain.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise ValueError(f"it has version {version} of {FORMAT}, this pgdecode reads {FORMAT_VERSION}")
        if plain["commit_timestamp"] is not None:
            plain["commit_timestamp"] = datetime.fromisoformat(plain["commit_timestamp"])
        return cls(**plain)
