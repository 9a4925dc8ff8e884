"""Reads the payloads that a target does not have, from the state that it has."""
