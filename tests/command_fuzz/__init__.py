"""Fuzzing of the command line: random options over damaged files and folders."""
