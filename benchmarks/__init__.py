"""Benchmarks of pgdecode beside their baselines, in one run: `python -m benchmarks --help`."""
