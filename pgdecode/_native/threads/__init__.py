"""Rows divided among threads, and their results merged."""
