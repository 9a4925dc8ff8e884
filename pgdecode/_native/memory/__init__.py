"""Growable memory, bits, copies and text encodings."""
