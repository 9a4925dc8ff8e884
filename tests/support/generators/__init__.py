"""Payloads and slots of the tests' own making."""
