"""Codecs of PostgreSQL types, one module per family: text and binary decoders side by side."""
