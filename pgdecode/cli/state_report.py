"""Describes the state of a data set, for `pgdecode inspect --catalog`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group

from pgdecode.changes.stored_state import replication_of
from pgdecode.cli.report import plain_table, printed, safe_text
from pgdecode.datasets.target import target_at
from pgdecode.files.envelope_text import printable
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.relations.relation_json import version_to_json
from pgdecode.relations.relation_version import BEFORE
from pgdecode.relations.table_names import qualified_name
from pgdecode.storage.object_path import FilePath


def state_figures(path: FilePath) -> dict[str, Any]:
    """Collect the figures of the state of a data set as JSON values.

    Raises
    ------
    RunFault
        If it is not a data set, or is damaged.
    """
    target = target_at(path)
    *_, manifest = target.manifests()
    stored = target.state(manifest)
    state, files = replication_of(stored), len(stored.files)
    undecided = [
        {
            "xid": item.xid,
            "gid": item.gid,
            "begin_position": item.begin_position,
            "changes": sum(payloads.rows for payloads in stored.payloads.get(item.begin_position, ())),
        }
        for item in state.undecided
    ]
    return {
        "path": printable(str(path)),
        "engine": manifest.engine,
        "what": list(manifest.what),
        "runs": manifest.number,
        "input_files": files,
        "next_position": state.position,
        "last_lsn": None if state.last_lsn < 0 else lsn_to_text(state.last_lsn),
        "undecided": undecided,
        "relations": [version_to_json(item) for item in state.relations.versions],
    }


def state_text(figures: dict[str, Any], console: Console) -> str:
    """Format figures of `state_figures` for the width and the colours of the console."""
    return printed(_parts(figures), console)


def _parts(figures: dict[str, Any]) -> Iterator[Any]:
    what = f" of {', '.join(figures['what'])}" if figures["what"] else ""
    yield Group(
        safe_text(figures["path"], "bold"),
        safe_text(f"run {figures['runs']:,}{what} by the engine {figures['engine']}"),
        safe_text(f"next position {figures['next_position']}, last commit {figures['last_lsn'] or 'none'}"),
    )
    undecided = plain_table("undecided transaction", "gid", "#began at", "#changes")
    for item in figures["undecided"]:
        gid = safe_text(item["gid"] or "-")
        undecided.add_row(str(item["xid"]), gid, str(item["begin_position"]), f"{item['changes']:,}")
    if figures["undecided"]:
        yield undecided
    relations = plain_table("relation", "#oid", "#at", "columns")
    for version in figures["relations"]:
        relation = version["relation"]
        name = safe_text(qualified_name(relation["namespace"] or "pg_catalog", relation["name"]))
        columns = safe_text(", ".join(column["name"] for column in relation["columns"]) or "no columns")
        at = ("before" if version["position"] == BEFORE else str(version["position"])) + (
            "" if version["visible_from"] is not None else " (not committed)"
        )
        relations.add_row(name, str(relation["relation_id"]), at, columns)
    yield relations
