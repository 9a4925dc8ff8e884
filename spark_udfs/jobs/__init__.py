"""Whole jobs: `decode_files`."""
