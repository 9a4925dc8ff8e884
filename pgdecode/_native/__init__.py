"""The compiled modules; their sources are in src/, in the same folders."""
