"""Digits, decimals, dates and floats between text and numbers."""
