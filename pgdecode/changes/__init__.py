"""Ordered payloads to the changes of committed transactions."""
