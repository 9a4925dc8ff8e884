"""A server for the tests of this folder; without one they are skipped."""

from __future__ import annotations

from servers.database import Database, Warnings, database, postgres, with_admin

__all__ = ["Database", "Warnings", "database", "postgres", "with_admin"]
