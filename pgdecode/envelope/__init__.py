"""Decoding of payloads to messages: one dataclass or one Arrow row per payload."""
