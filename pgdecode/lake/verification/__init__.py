"""Comparison of tables with those of a server."""
