"""Payloads to messages: one dataclass each, or one Arrow row each."""
