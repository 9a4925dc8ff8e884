"""Benchmarks of pgdecode and their baselines, measured in one run: `python -m benchmarks --help`."""

import os

# Arrow reads this variable when it is loaded, so it is set before. Its allocator then keeps free memory, as in the
# Spark sessions that pgdecode starts. Otherwise it sometimes returns memory, and the system clears pages for the next
# call.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
