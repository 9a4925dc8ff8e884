"""Benchmarks of pgdecode beside their baselines, in one run: `python -m benchmarks --help`."""

import os

# Before Arrow is loaded, which reads it then: its allocator keeps memory that is free, as in the Spark sessions that
# pgdecode starts. Else it gives some back now and then, and whichever call comes next has the system clear pages.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
