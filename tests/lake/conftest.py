"""A server for the tests of this folder; without one they are skipped."""

from __future__ import annotations

from servers.database import Database, database, postgres

__all__ = ["Database", "database", "postgres"]
