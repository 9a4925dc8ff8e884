"""Generators of payloads and slots."""
