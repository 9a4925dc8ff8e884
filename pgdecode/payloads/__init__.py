"""Input of payloads, and threads."""
