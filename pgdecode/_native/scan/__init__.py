"""A batch of payloads to the columns of the envelope."""
