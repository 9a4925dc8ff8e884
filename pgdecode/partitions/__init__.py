"""Decoding the parts of a sequence of payloads apart."""
